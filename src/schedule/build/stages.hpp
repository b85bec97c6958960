// Which layers each stage of a pipeline has, and in which order a stage works on the micro-batches of a step. Pure functions.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/types.hpp"
#include "deck/deck.hpp"
#include "topology/mesh.hpp"

namespace tessera {

/// A stage and its layers. The first one has the embedding as well, the last one the head.
struct Stage {
  int number = 0, count = 1;
  Range layers;  ///< of the model; of a pipeline alone
  bool first() const { return number == 0; }
  bool last() const { return number == count - 1; }
};

/// pipeline.layers; without it the cut whose slowest stage, by FLOPs, is the fastest, and of those cuts one whose fullest stage holds
/// the least: parameters with their state, and kept activations of all micro-batches under way.
std::vector<std::int64_t> layers_of_stages(const Deck& deck, const Mesh& mesh);
Stage stage_of(const Deck& deck, const Mesh& mesh, int world_rank);

/// Micro-batches whose forward pass has begun on a stage and whose backward pass has not ended, at most.
std::int64_t in_flight(const Stage& stage, std::int64_t micro_batches);

/// A run of micro-batches that a stage treats alike: forward passes, backward passes, or of each repetition one and then the other.
struct PipelinePhase {
  std::string name;
  bool forward = false, backward = false;
  bool first = false, last = false;  ///< the backward passes are those of the step's first or last micro-batch
  std::int64_t repeat = 1, micro = 0;
  std::int64_t ahead = 0;  ///< forward passes are of the micro-batch so many after the repetition's own
};
/// "1F1B" (Narayanan et al., arXiv:1806.03377, PipeDream-Flush in arXiv:2006.09503): forward passes until each stage after this one has
/// work, then one forward and one backward pass in turn, then the backward passes that are left. `first_apart`: the first forward pass
/// is a phase of its own.
std::vector<PipelinePhase> one_forward_one_backward(const Stage& stage, std::int64_t micro_batches, bool first_apart);

}  // namespace tessera
