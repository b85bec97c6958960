// Which mesh a deck should have on a machine: over how many tensor-, pipeline-, context- and expert-parallel ranks.
#pragma once
#include <vector>

#include "schedule/simulate/recommend.hpp"

namespace tessera {

/// Of one mesh the fastest step that was found to fit.
struct MeshChoice {
  Choice choice;  ///< bytes are those of the rank that needs the most
  Mesh mesh;
};

struct MeshRecommendation {
  std::vector<MeshChoice> choices;  ///< fastest first, one for a mesh
  std::int64_t meshes = 0;          ///< that the rules of decks allow
  std::int64_t planned = 0, simulated = 0;
  TierBytes least{};  ///< of the smallest plan, where no choice fits
};

/// Of all meshes of so many ranks: first each with a few steps (ZeRO stage 1, without stages of a pipeline 3 too; as little made again as
/// fits), then the fastest few with all stages, sizes of micro-batches, recompute and orders of a pipeline. Tensor-, context- and
/// expert-parallel ranks stay inside a node. Not a proof, as Recommender's answer is one: a mesh that its first steps show slow is not
/// looked at again. Where state lies is as the deck says.
MeshRecommendation recommend_meshes(const Deck& deck, const MachineProfile& machine, int ranks, int ranks_per_node, bool side_by_side,
                                    const LimitsOf& limits);

}  // namespace tessera
