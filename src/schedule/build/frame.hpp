// What does not change while a schedule is built.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "optimizer/state.hpp"
#include "schedule/build/micro_batches.hpp"
#include "schedule/build/request.hpp"
#include "schedule/task.hpp"
#include "zero/unit_plan.hpp"

namespace tessera {

inline std::size_t index(int i) { return static_cast<std::size_t>(i); }

/// The segments that a rank trains or evaluates: those of its stage, cut over its axes, without what only frozen tensors would need.
std::vector<Segment> segments_of_stage(const BuildRequest& request, const ModelShape& shape);
/// The model, and what a training run has beside it.
std::vector<Tower> towers_of_stage(const BuildRequest& request, const ModelShape& shape);

/// Of a unit whose momenta meet as signs: what each of these ranks sends another.
SignBlocks sign_blocks_of(const Unit& unit, const Group& ranks);
/// Of a rank's parts of all tensors.
std::int64_t mean_elements(const SignBlocks& blocks);

/// A request, and what follows from it for units and tensors, and for where bytes lie.
class Frame {
 public:
  /// All outlive the frame.
  Frame(const BuildRequest& request, const ModelShape& shape, const std::vector<Tower>& towers);

  const BuildRequest& request;
  const Deck& deck;
  const Layout& layout;
  const ModelShape& shape;
  const Tier local_tier;  ///< where kernels work
  const Tier comm_tier;   ///< what collectives touch
  const Tier below_tier;  ///< where gradients and pieces of the optimizer pass
  const std::vector<ChosenOptimizer> optimizers;

  bool training() const { return request.training(); }
  bool on_gpu() const { return shape.backend == kernels::Backend::cuda; }
  bool has_experts() const { return shape.experts.E > 0; }
  bool offloads() const;
  bool offloads_parameters() const;
  /// Whether a step leaves its update to the next, so that it runs beside the forward pass. Where kernels make it, nothing would be won.
  bool updates_late() const { return offloads(); }
  /// Whether reductions run beside the backward pass, at the cost of one more unit's gradient in memory.
  bool overlaps() const;
  /// A bucket of the deck in elements. NCCL has no call for pieces of shards: they go as a group of reduces or of broadcasts, a rank each.
  /// So GPUs take shards whole, as far as 32 bits count.
  std::int64_t bucket(std::int64_t size) const { return on_gpu() ? std::max(size, gpu_bucket) : size; }
  /// Of a step, on each rank.
  std::int64_t micro_batches() const { return accumulation_steps(deck, request.data.size); }

  // ---- Units ----

  /// The buffer of what blocks of such codes have taken from a unit's gradients.
  std::string error_name(int unit, Wire wire) const {
    return fmt::format("gradient_error.{}.{}", kernels::code_bits(wire), unit_at(unit).name);
  }
  int units() const { return static_cast<int>(layout.units.size()); }
  const Unit& unit_at(int unit) const { return layout.units[index(unit)]; }
  const UnitPlan& plan(int unit) const { return plans_[index(unit)]; }
  /// That updates a unit's tensors, and its number among all.
  int optimizer_number(int unit) const;
  const ChosenOptimizer& optimizer_of(int unit) const { return optimizers[index(optimizer_number(unit))]; }
  DType compute() const { return deck.precision.compute; }
  /// Whether gradients carry a scale of the loss until they are exact sums, or, where they are none, until norm and update read them.
  bool scales_loss() const { return training() && deck.precision.scales_loss(); }
  bool scales_sums() const { return scales_loss() && !deck.run.reproducible; }
  DType type_of(int unit) const { return unit_at(unit).type(compute()); }
  std::int64_t compute_bytes(std::int64_t n) const { return n * static_cast<std::int64_t>(size_of(compute())); }
  /// Of a unit's elements in the compute copy on this rank.
  std::int64_t parameter_bytes(int unit, std::int64_t n) const {
    const UnitPlan& p = plan(unit);
    return p.encoded ? kernels::wire_bytes(p.wire, n) : n * static_cast<std::int64_t>(size_of(type_of(unit)));
  }
  /// Whether kernels read the master weights themselves.
  bool copy_is_master(int unit) const {
    const UnitPlan& p = plan(unit);
    return type_of(unit) == DType::f32 && !p.encoded && p.parameters_offloaded == p.gradient.offloaded;
  }
  /// Of gradients as the step keeps them, and as they meet.
  std::int64_t gradient_bytes(int unit, std::int64_t n) const { return n * static_cast<std::int64_t>(size_of(plan(unit).gradient.kept)); }
  std::int64_t sum_bytes(int unit, std::int64_t n) const { return n * static_cast<std::int64_t>(size_of(plan(unit).gradient.sum)); }
  /// Whether shards of other replicas join a rank's part of a compute copy as a program begins, beside its first passes. With late updates
  /// they do so after the update, as whole copies always do.
  bool refreshed_first(int unit) const;
  /// Whether a tensor has a copy that is packed for its products.
  bool keeps_packed(const ValueInfo& v) const;
  struct Packed {
    int unit = 0;
    const ValueInfo* value = nullptr;
  };
  /// Packed copies, each once: the head's passes share one.
  const std::vector<Packed>& packed() const { return packed_; }

  // ---- Offloaded state ----

  /// The tier of what copies to and from the host touch there.
  Tier below(bool pinned) const { return on_gpu() && pinned ? Tier::pinned : Tier::host; }
  /// Where optimizer state lies that is offloaded.
  Tier state_home() const;
  /// Elements that are on their way at a time: a piece goes up while the next is updated.
  std::int64_t offload_piece() const;

  // ---- The stage ----

  const Stage& stage() const { return request.stage; }
  bool pipelined() const { return stage().count > 1; }
  /// Of the stage's chunks.
  int chunk_of(SegmentNumber s) const { return chunks_[index(s.tower)][index(s.segment)]; }
  bool begins_chunk(SegmentNumber s) const { return s.segment == 0 || chunk_of(s.before()) != chunk_of(s); }
  bool ends_chunk(SegmentNumber s) const {
    return s.segment + 1 == std::ssize(chunks_[index(s.tower)]) || begins_chunk({s.tower, s.segment + 1});
  }
  /// The number of a chunk among those of all stages: its virtual stage.
  int virtual_stage(int chunk) const { return chunk * stage().count + stage().number; }
  /// Whether gradients of weights are apart from the backward passes.
  bool parts_backward() const;
  /// Of the stream that goes from stage to stage.
  std::int64_t stream_elements() const { return shape.rows() / request.mesh.size(Axis::tp) * shape.C; }

 private:
  std::vector<UnitPlan> plans_;           // by unit
  std::vector<std::vector<int>> chunks_;  // by tower and segment
  std::vector<Packed> packed_;
};

std::string packed_name(const ValueInfo& v);

}  // namespace tessera
