#include "schedule/simulate/prediction.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "base/mfu.hpp"
#include "model/record/flops.hpp"
#include "schedule/plan/cross_check.hpp"
#include "schedule/simulate/task_seconds.hpp"

namespace tessera {

std::string time_text(double seconds) {
  if (seconds >= 1) return fmt::format("{:.3f} s", seconds);
  return seconds >= 1e-3 ? fmt::format("{:.3f} ms", 1e3 * seconds) : fmt::format("{:.1f} us", 1e6 * seconds);
}

namespace {

/// "communication 1.2 ms, disk 30 ms": what stood in compute's way, of which there is any.
std::string waits_text(const Simulation& s) {
  std::vector<std::string> parts;
  for (std::size_t k = 0; k < wait_kind_count; ++k)
    if (s.waited[k] > 0) parts.push_back(fmt::format("{} {}", wait_kinds[k], time_text(s.waited[k])));
  return fmt::format("{}", fmt::join(parts, ", "));
}

/// Of a step whose products are of codes the peak of those: MFU of another yardstick could exceed 1.
double peak_of(const Deck& deck, const MachineProfile& machine) {
  const bool codes = deck.precision.fp8 != Fp8Recipe::none && machine.device == "cuda" && machine.fp8.given();
  return codes ? machine.fp8.peak : machine.rates(deck.precision.compute).peak;
}

void set_rates(Prediction& p, const Deck& deck, const MachineProfile& machine) {
  const FlopsPerToken flops = flops_per_token(deck);
  const auto length = static_cast<double>(deck.batch.sequence_length);
  const double peak = peak_of(deck, machine) * p.ranks;
  p.tokens_per_second = static_cast<double>(p.tokens) / p.step.seconds;
  p.mfu_causal = p.tokens_per_second * flops.causal(length) / peak;
  p.mfu_full = p.tokens_per_second * flops.full(length) / peak;
  p.most_tokens_per_second = peak / flops.causal(length);
}

}  // namespace

Prediction predict(const BuildRequest& request, const Schedule& schedule, const MemoryPlan& memory, const MachineProfile& machine,
                   const Placement& placement, bool timeline) {
  return predict(request, schedule, memory, task_seconds(schedule, machine, placement), machine, placement, timeline);
}

Prediction predict(const BuildRequest& request, const Schedule& schedule, const MemoryPlan& memory, const TaskSeconds& seconds,
                   const MachineProfile& machine, const Placement& placement, bool timeline) {
  const Contention contention = contention_of(schedule, machine, placement);
  Prediction p{.step = simulate(schedule, order(schedule, memory, schedule.program(ProgramKind::train)), seconds,
                                {.lanes_side_by_side = placement.lanes_side_by_side,
                                 .timeline = timeline,
                                 .contention = machine.contention,
                                 .parts = &contention}),
               .tokens = request.deck.batch.global * request.deck.batch.sequence_length,
               .ranks = placement.ranks(),
               .nodes = static_cast<int>(ceil_div(placement.ranks(), placement.ranks_per_node)),
               .collective_blocks = schedule.collective_blocks};
  for (const Program::Phase& phase : schedule.program(ProgramKind::train).phases)
    p.room_seconds += static_cast<double>(phase.repeat) * contention.room[static_cast<std::size_t>(phase.section)];
  set_rates(p, request.deck, machine);
  // Of one stage alone there is no such bound: it has a part of the model's FLOPs.
  TESSERA_REQUIRE(request.stage.count > 1 || p.mfu_causal <= 1, "a step of {} s would take {} of the machine's peak", p.step.seconds,
                  p.mfu_causal);
  return p;
}

Prediction predict_stage(std::size_t shown, std::span<const RunPlan> stages, const MachineProfile& machine, const Placement& placement,
                         bool timeline, const std::function<void(double)>& progress) {
  const RunPlan& mine = stages[shown];
  std::vector<TaskSeconds> seconds;
  for (const RunPlan& stage : stages) seconds.push_back(task_seconds(stage.schedule, machine, placement));
  Prediction p = predict(mine.request, mine.schedule, mine.memory, seconds[shown], machine, placement, timeline);
  const PlayedTogether together = play_together(stages, ProgramKind::train, seconds, progress);
  TESSERA_REQUIRE(together.fault.empty(), "{}", together.fault);
  // The stages are played together without contention.
  p.bubble_seconds = std::max(0.0, together.seconds - (p.step.seconds - p.step.contended));
  p.step.seconds += p.bubble_seconds;
  p.step.exposed[static_cast<std::size_t>(Lane::streams)] += p.bubble_seconds;
  p.step.waited[static_cast<std::size_t>(WaitKind::communication)] += p.bubble_seconds;
  p.step.critical.push_back({.name = "waits for other stages", .lane = Lane::streams, .count = 1, .seconds = p.bubble_seconds});
  std::ranges::stable_sort(p.step.critical, [](const CriticalTasks& a, const CriticalTasks& b) { return a.seconds > b.seconds; });
  set_rates(p, mine.request.deck, machine);
  TESSERA_REQUIRE(p.mfu_causal <= 1, "a step of {} s would take {} of the machine's peak", p.step.seconds, p.mfu_causal);
  return p;
}

std::string print_prediction(const Prediction& p, std::size_t most_critical) {
  const Simulation& s = p.step;
  std::string text;
  auto row = [&](const std::string& what, double seconds, const std::string& more) {
    text += fmt::format("\n  {:22} {:>12} {:6.1f} %{}", what, time_text(seconds), 100 * s.share(seconds), more.empty() ? "" : "  " + more);
  };
  row("step", s.seconds,
      fmt::format("{:.0f} tokens/s, {:.0f} a rank; {}", p.tokens_per_second, p.tokens_per_second / p.ranks,
                  mfu_text({.full = p.mfu_full, .causal = p.mfu_causal})));
  for (const LaneInfo& info : lanes) {
    const auto l = static_cast<std::size_t>(info.lane);
    if (!is_shown(info.lane, static_cast<std::size_t>(s.tasks[l]))) continue;
    row(fmt::format("lane {}", info.name), s.busy[l],
        info.lane == Lane::compute ? fmt::format("{} tasks", s.tasks[l])
                                   : fmt::format("{} tasks; compute waits {} for them ({:.1f} %)", s.tasks[l], time_text(s.exposed[l]),
                                                 100 * s.share(s.exposed[l])));
  }
  if (p.bubble_seconds > 0) row("bubble", p.bubble_seconds, "waits for other stages of the pipeline");
  if (s.contended + p.room_seconds > 0)
    row("contention", s.contended + p.room_seconds,
        fmt::format("of compute: {} lost to collectives beside it{}", time_text(s.contended),
                    p.room_seconds > 0 ? fmt::format(", {} because products beside them leave {} multiprocessors",
                                                     time_text(p.room_seconds), p.collective_blocks)
                                       : ""));
  const double waited = std::accumulate(s.waited.begin(), s.waited.end(), 0.0);
  if (waited > 0) row("exposed", waited, "compute waits for: " + waits_text(s));
  text += "\n  the tasks that set its length";
  for (std::size_t i = 0; i < std::min(most_critical, s.critical.size()); ++i) {
    const CriticalTasks& c = s.critical[i];
    text += fmt::format("\n    {:>12} {:6.1f} %  {} ({}, {} times)", time_text(c.seconds), 100 * s.share(c.seconds), c.name,
                        name_of(c.lane), c.count);
  }
  return text;
}

Json prediction_json(const Prediction& p, std::size_t most_critical) {
  const Simulation& s = p.step;
  Json lane_rows, waited, critical = Json::array();
  for (std::size_t k = 0; k < wait_kind_count; ++k) waited[wait_kinds[k]] = s.waited[k];
  for (const LaneInfo& info : lanes) {
    const auto l = static_cast<std::size_t>(info.lane);
    if (is_shown(info.lane, static_cast<std::size_t>(s.tasks[l])))
      lane_rows[info.name] = {{"tasks", s.tasks[l]}, {"busy_seconds", s.busy[l]}, {"exposed_seconds", s.exposed[l]}};
  }
  for (std::size_t i = 0; i < std::min(most_critical, s.critical.size()); ++i) {
    const CriticalTasks& c = s.critical[i];
    critical.push_back(
        {{"tasks", c.name}, {"lane", name_of(c.lane)}, {"count", c.count}, {"seconds", c.seconds}, {"share", s.share(c.seconds)}});
  }
  Json row = {{"step_seconds", s.seconds},
              {"tokens_per_step", p.tokens},
              {"tokens_per_second", p.tokens_per_second},
              {"tokens_per_second_per_rank", p.tokens_per_second / p.ranks},
              {"mfu", {{"causal", p.mfu_causal}, {"full", p.mfu_full}}},
              {"most_tokens_per_second", p.most_tokens_per_second},
              {"nodes", p.nodes},
              {"lanes", std::move(lane_rows)},
              {"exposed_seconds", std::move(waited)},
              {"critical", std::move(critical)}};
  if (s.contended + p.room_seconds > 0)
    row["contention"] = {{"lost_seconds", s.contended}, {"room_seconds", p.room_seconds}, {"collective_blocks", p.collective_blocks}};
  if (p.bubble_seconds > 0) row["bubble_seconds"] = p.bubble_seconds;
  return row;
}

}  // namespace tessera
