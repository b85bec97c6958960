// Which layers each stage of a pipeline has. Pure functions.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/types.hpp"
#include "deck/deck.hpp"
#include "topology/mesh.hpp"

namespace tessera {

/// A stage and its chunks, which are runs of the model's layers: one, or with virtual stages as many. The first stage has the embedding as
/// well, before its first chunk; the last one the head, after its last.
struct Stage {
  int number = 0, count = 1;
  std::vector<Range> layers;  ///< by chunk
  bool first() const { return number == 0; }
  bool last() const { return number == count - 1; }
  int chunks() const { return std::max(1, static_cast<int>(layers.size())); }
  /// The chunk that has a layer; -1: none.
  int chunk_of(std::int64_t layer) const;
};

/// Runs of layers that a stage has.
int chunks_of_stage(const PipelineKeys& keys);
/// pipeline.layers, by virtual stage: stage s of p has the numbers s, s + p and so on. Without the key the cut whose slowest virtual stage,
/// by FLOPs, is the fastest, and of those cuts one whose fullest stage holds the least: parameters with their state, and kept activations
/// of all micro-batches under way. All phases of a run have the cut of its last one, since the state stays where it lies.
std::vector<std::int64_t> layers_of_stages(const Deck& deck, const Mesh& mesh);
Stage stage_of(const Deck& deck, const Mesh& mesh, int world_rank);

}  // namespace tessera
