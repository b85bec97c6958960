#include "schedule/plan/step_cost.hpp"

#include <fmt/format.h>

#include "schedule/plan/limits.hpp"
#include "schedule/plan/recompute_choice.hpp"

namespace tessera {
namespace {

std::int64_t total_bytes(const MemoryPlan& plan) { return memory_bytes(plan.bytes); }

}  // namespace

StepCost step_cost(const Schedule& schedule) {
  StepCost cost;
  for (const auto& phase : schedule.program(ProgramKind::train).phases)
    for (const Task& task : schedule.sections[static_cast<std::size_t>(phase.section)].tasks) {
      const auto repeat = static_cast<double>(phase.repeat);
      cost.tasks += phase.repeat;
      cost.flops += task.flops * repeat;
      cost.bytes_moved += task.bytes_moved * repeat;
      if (const auto* run = std::get_if<RunPass>(&task.op))
        cost.remade_flops += schedule.passes[static_cast<std::size_t>(run->pass)].remade_flops * repeat;
    }
  return cost;
}

RecomputeGain recompute_gain(const BuildRequest& request, const Schedule& schedule, const MemoryPlan& plan) {
  if (request.deck.activation.recompute == Recompute::none) return {};
  BuildRequest without = request;
  without.deck.activation = {.recompute = Recompute::none, .offload = request.deck.activation.offload}, without.recompute.clear();
  const StepCost cost = step_cost(schedule);
  return {.bytes_saved = total_bytes(place(build_schedule(without))) - total_bytes(plan),
          .flops_share = cost.remade_flops / (cost.flops - cost.remade_flops)};
}

std::string describe_recompute(const BuildRequest& request, const RecomputeGain& gain) {
  const ActivationKeys& a = request.deck.activation;
  if (a.recompute == Recompute::none) return "none: activations are kept for the backward pass";
  std::string what;
  if (a.recompute == Recompute::full)
    what = a.every == 1 ? ", a stored stream every layer" : fmt::format(", a stored stream every {} layers", a.every);
  if (const RecomputeChoice* chosen = request.choice()) what = " recomputes " + describe(*chosen, request.stage);
  return fmt::format("{}{}: {} a rank saved for {:.1f} % more FLOPs", word_of(a.recompute), what,
                     human_bytes(static_cast<double>(gain.bytes_saved)), 100 * gain.flops_share);
}

}  // namespace tessera
