// In which order a stage of a pipeline works on the micro-batches of a step. Pure functions.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "schedule/build/stages.hpp"

namespace tessera {

/// A run of micro-batches that a stage treats alike: of each repetition a forward pass, then a backward pass, then the gradients of
/// weights that the backward pass of an earlier micro-batch has left, as far as there are any.
struct PipelinePhase {
  std::string name;  ///< phases of one name differ in `repeat` and `micro` alone
  bool forward = false, backward = false, weights = false;
  bool first = false, last = false;                  ///< the backward passes are those of the step's first or last micro-batch
  bool first_weights = false, last_weights = false;  ///< and so the gradients of weights
  std::int64_t repeat = 1, micro = 0;
  std::int64_t ahead = 0;                     ///< forward passes are of the micro-batch so many after the repetition's own
  std::int64_t behind = 0;                    ///< gradients of weights of the one so many before
  int forward_chunk = 0, backward_chunk = 0;  ///< of the stage's chunks
};

/// pipeline.schedule for a stage. `first_apart`: the first forward pass is a phase of its own.
///
/// "1f1b" (Narayanan et al., arXiv:1806.03377, PipeDream-Flush in arXiv:2006.09503): forward passes until each stage after this one has
/// work, then one forward and one backward pass in turn, then the backward passes that are left.
///
/// "zero_bubble" (ZB-H1 of Qi et al., arXiv:2401.10241): the same, but for gradients of weights, which run as many micro-batches later as
/// there are stages before this one. So the gradient that those wait for comes sooner, and what was put off runs while they drain. The
/// first stage sends no gradient on: it parts nothing.
///
/// "interleaved" (Narayanan et al., arXiv:2104.04473): micro-batches in groups, of which each passes one chunk of the stage after the
/// other. A group has as many as there are stages, so that the first stage need not wait for what comes round from the last; of a number
/// that is no multiple, some have one more.
std::vector<PipelinePhase> pipeline_order(const PipelineKeys& keys, const Stage& stage, std::int64_t micro_batches, bool first_apart);
/// Micro-batches of the largest group of the interleaved order.
std::int64_t group_size(std::int64_t micro_batches, int stages);
/// Forward passes alone, of chunks in the same order.
std::vector<PipelinePhase> forward_order(const Stage& stage, std::int64_t micro_batches);

/// Micro-batches of a chunk that lie between two of its passes, at most.
struct InFlight {
  std::int64_t to_backward = 0;  ///< whose forward pass has begun, and whose backward pass has not ended
  // Where gradients of weights are apart, else 0:
  std::int64_t to_weights = 0;           ///< whose forward pass has begun, and whose gradients of weights have not ended
  std::int64_t backward_to_weights = 0;  ///< whose backward pass has begun, and whose gradients of weights have not ended
  bool crosses = false;                  ///< a forward pass and the backward pass of its micro-batch are in two repetitions
};
/// By chunk.
std::vector<InFlight> in_flight(const std::vector<PipelinePhase>& phases, int chunks);
/// Chunks of micro-batches that a stage has something of at a time, at most; without virtual stages: micro-batches.
std::int64_t most_in_flight(const std::vector<PipelinePhase>& phases);

/// What of a stage's time is bubble where all chunks take the same time, transfers none, and a pass forward, one backward to the inputs
/// and one to the weights are as long as each other.
double even_bubble(const PipelineKeys& keys, int stages, std::int64_t micro_batches);

}  // namespace tessera
