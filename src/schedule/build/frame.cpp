#include "schedule/build/frame.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "model/record/leave_frozen.hpp"
#include "model/towers/towers.hpp"
#include "optimizer/state.hpp"
#include "schedule/build/memory_kind.hpp"

namespace tessera {
namespace {

/// Elements that go up while the next ones are updated: large enough for the memory's full rate, small enough that little waits for the
/// first or the last.
constexpr std::int64_t most_piece_elements = std::int64_t{1} << 22;

std::vector<int> chunks_of(const Stage& stage, const std::vector<Segment>& segments) {
  std::vector<int> chunks;
  for (const Segment& segment : segments)
    chunks.push_back(segment.layer >= 0 ? stage.chunk_of(segment.layer) : chunks.empty() ? 0 : stage.chunks() - 1);
  return chunks;
}

/// What is offloaded leaves the memory that kernels use, also where that is a part of the host's.
Tier kernel_tier(const BuildRequest& request) {
  const bool apart =
      request.deck.run.device == RunDevice::cuda || (request.training() && kernel_memory(request.deck) == MemoryKind::device);
  return apart ? Tier::device : Tier::host;
}

}  // namespace

namespace {
/// Those of a model of this shape that a rank has, with all that they can do.
std::vector<Segment> recorded_segments(const BuildRequest& request, const ModelShape& shape) {
  const Group tensor = request.group(axes({Axis::tp})), context = request.group(axes({Axis::cp})),
              experts = request.group(axes({Axis::ep}));
  std::vector<Segment> segments =
      model_segments(cut_over_cp(cut_over_ep(cut_over_tp(shape, tensor.size, tensor.rank), experts.rank), context.rank));
  const Stage& stage = request.stage;
  if (stage.count > 1)
    std::erase_if(segments, [&, s = std::ssize(segments), i = std::ptrdiff_t{0}](const Segment& segment) mutable {
      const std::ptrdiff_t at = i++;
      if (at == 0) return !stage.first();
      if (at == s - 1) return !stage.last();
      return stage.chunk_of(segment.layer) < 0;
    });
  return segments;
}

Tower tower_beside(const BuildRequest& request, const TowerRow& row) {
  const Deck deck = row.deck(request.deck);
  Tower tower{.name = std::string(row.name), .prefix = row.prefix(), .segments = recorded_segments(request, model_shape(deck))};
  const bool own = !row.shares_tensors(request.deck);
  for (Segment& segment : tower.segments) {
    segment.name = tower.prefix + segment.name;
    segment.backward.clear();
    for (ValueInfo& v : segment.values)
      if (own && is_of_tensor(v.kind)) v.name = tower.prefix + v.name;
  }
  return tower;
}
}  // namespace

std::vector<Tower> towers_of_stage(const BuildRequest& request, const ModelShape& shape) {
  std::vector<Tower> towers;
  towers.push_back({.name = "model", .prefix = {}, .segments = segments_of_stage(request, shape)});
  for (const TowerRow* row : tower_rows())
    if (row->wanted(request.deck)) towers.push_back(tower_beside(request, *row));
  return towers;
}

std::vector<Segment> segments_of_stage(const BuildRequest& request, const ModelShape& shape) {
  if (!request.training() && request.evaluation_micro_batches == 0) return {};
  std::vector<Segment> segments = recorded_segments(request, shape);
  if (request.training()) {
    // On a later stage something below may always need the gradient of the stream.
    const std::ptrdiff_t bottom = request.stage.first() ? std::ranges::count(chunks_of(request.stage, segments), 0) : 0;
    leave_frozen(segments, request.layout, static_cast<std::size_t>(bottom));
  }
  return segments;
}

Frame::Frame(const BuildRequest& r, const ModelShape& s, const std::vector<Tower>& towers)
    : request(r),
      deck(r.deck),
      layout(r.layout),
      shape(s),
      local_tier(kernel_tier(r)),
      comm_tier(r.mesh.ranks() > 1 && local_tier == Tier::host ? Tier::shared : local_tier),
      below_tier(below(deck.zero.offload_optimizer.pin_memory)),
      optimizers(chosen_optimizers(deck.optimizer)) {
  const UnitRules rules{.stage = static_cast<int>(deck.zero.stage),
                        .reproducible = deck.run.reproducible,
                        .gradients = deck.precision.gradients,
                        .training = training(),
                        .offload_optimizer = offloads(),
                        .offload_ratio = deck.zero.offload_optimizer.ratio,
                        .offload_parameters = offloads_parameters(),
                        .quantized_weights = deck.zero.quantized_weights,
                        .quantized_gradients = deck.zero.quantized_gradients,
                        .tied = deck.model.tied,
                        .own_gradients = training() && sends_signs(deck.optimizer),
                        .error_feedback = deck.zero.error_feedback.enabled,
                        .fp8 = &shape.fp8};
  for (int u = 0; u < units(); ++u) plans_.push_back(plan_unit(layout, u, rules, groups_of_unit(r.mesh, unit_at(u).owners, r.rank)));
  std::set<std::string> seen;
  for (const Tower& tower : towers) {
    chunks_.push_back(chunks_of(r.stage, tower.segments));
    for (const Segment& segment : tower.segments)
      for (const ValueInfo& v : segment.values)
        if (v.kind == ValueKind::packed_weight && keeps_packed(v) && seen.insert(packed_name(v)).second)
          packed_.push_back({layout.find(v.name).unit, &v});
  }
  if (deck.kernels.pack_weights && training() && seen.empty())
    fail(ExitCode::usage, "kernels.pack_weights = true, and this processor's {} product has no packed form: leave the key out",
         name_of(compute()));
}

int Frame::optimizer_number(int unit) const {
  const auto found = std::ranges::find(optimizers, unit_at(unit).optimizer, &ChosenOptimizer::name);
  TESSERA_REQUIRE(found != optimizers.end(), "unit {} is updated by {}", unit_at(unit).name, unit_at(unit).optimizer);
  return static_cast<int>(found - optimizers.begin());
}

bool Frame::offloads() const { return training() && deck.zero.offload_optimizer.device != OffloadDevice::none; }
bool Frame::offloads_parameters() const { return training() && deck.zero.offload_param.device != OffloadDevice::none; }

bool Frame::overlaps() const {
  const OverlapComm overlap = deck.zero.overlap_comm;
  const RunLanes lanes = deck.run.lanes;
  if (overlap == OverlapComm::no || lanes == RunLanes::inline_order) return false;
  // Lanes of a host run in the order of the list unless ranks have threads to spare, which schedules do not know.
  return on_gpu() || overlap == OverlapComm::yes || lanes == RunLanes::threads;
}

bool Frame::refreshed_first(int unit) const {
  const UnitPlan& p = plan(unit);
  return training() && !unit_at(unit).frozen && p.sources.size > 1 && !p.storage.parameters_whole && !updates_late();
}

bool Frame::keeps_packed(const ValueInfo& v) const { return training() && plan(layout.find(v.name).unit).storage.parameters_whole; }

Tier Frame::state_home() const { return deck.zero.offload_optimizer.device == OffloadDevice::nvme ? Tier::nvme : Tier::host; }

std::int64_t Frame::offload_piece() const {
  const std::int64_t most = std::min(most_piece_elements, deck.zero.sub_group_size);
  if (state_home() != Tier::nvme) return most;
  // Whole blocks, also of the compute copy: a write of a part of a block reads the block first.
  const std::int64_t block = deck.nvme.block_bytes() / compute_bytes(1);
  return most < block ? most : most / block * block;
}

bool Frame::parts_backward() const { return deck.pipeline.schedule == PipelineSchedule::zero_bubble && stage().number > 0; }

std::string packed_name(const ValueInfo& v) { return fmt::format("packed.{}.{}", v.name, v.product.b_transposed ? "forward" : "backward"); }

}  // namespace tessera
