#include "schedule/plan/memory_passes.hpp"

#include <algorithm>

namespace tessera {
namespace {

double traffic_of(const Use& use) { return static_cast<double>(use.bytes) * (use.access == Access::add ? 2 : 1); }

struct Visitor {
  const Task& task;
  const Schedule& schedule;
  using Pass = std::optional<MemoryPass>;

  double all_traffic() const {
    double bytes = 0;
    for (const Use& use : task.uses) bytes += traffic_of(use);
    return bytes;
  }
  Tier tier_of(std::size_t use) const { return schedule.buffers[static_cast<std::size_t>(task.uses[use].buffer)].tier; }

  Pass operator()(const RunPass&) const { return {}; }
  Pass operator()(const Collective&) const { return {}; }
  Pass operator()(const Transfer&) const { return {}; }
  Pass operator()(const Orthogonalize&) const { return {}; }
  Pass operator()(const AccumulateFixed& op) const { return {{"accumulate", 20.0 * static_cast<double>(op.count)}}; }
  Pass operator()(const SumSquares&) const { return {{"sum_of_squares", static_cast<double>(task.uses.front().bytes)}}; }
  /// The step's values and tensors' sums are a few scalars.
  Pass operator()(const OptimizerStep& op) const {
    double bytes = 0;
    for (std::size_t use = 0; use < task.uses.size(); ++use)
      if (const auto kind = op.update.uses[use].operand.kind;
          kind != UpdateOperand::Kind::values && kind != UpdateOperand::Kind::sums && kind != UpdateOperand::Kind::lines)
        bytes += traffic_of(task.uses[use]);
    return {{"adamw", bytes}};
  }
  /// Two passes: squares are summed before signs have a scale.
  Pass operator()(const PackSigns&) const {
    const double again = static_cast<double>(task.uses[1].bytes) + static_cast<double>(task.uses[3].bytes);
    return {{"stream", all_traffic() + again}};
  }
  Pass operator()(const CopyRuns& op) const {
    double elements = 0;
    for (const CopyRuns::Run& run : op.runs) elements += static_cast<double>(run.elements);
    return {{"stream", 2 * elements * static_cast<double>(size_of(op.dtype))}};
  }
  Pass operator()(const Copy&) const {
    if ((tier_of(0) == Tier::device) != (tier_of(1) == Tier::device)) return {};
    return {{"stream", 2 * static_cast<double>(task.uses.front().bytes)}};
  }
  /// All others pass over what they touch once.
  template <class Other>
  Pass operator()(const Other&) const {
    return {{"stream", all_traffic()}};
  }
};

}  // namespace

std::optional<MemoryPass> memory_pass_of(const Task& task, const Schedule& schedule) {
  const auto on_disk = [&](const Use& use) { return schedule.buffers[static_cast<std::size_t>(use.buffer)].tier == Tier::nvme; };
  if (std::ranges::any_of(task.uses, on_disk)) return {};
  return std::visit(Visitor{task, schedule}, task.op);
}

}  // namespace tessera
