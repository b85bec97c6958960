#include "commands/run_outlook.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/check.hpp"
#include "commands/plan_options.hpp"
#include "commands/plan_stages.hpp"
#include "kernels/parallel.hpp"
#include "memory/tier.hpp"
#include "report/page/html.hpp"
#include "schedule/plan/recompute_choice.hpp"
#include "schedule/plan/run_plan.hpp"
#include "schedule/run/make_executor.hpp"
#include "schedule/simulate/recommend.hpp"
#include "schedule/trace/chrome_trace.hpp"

namespace tessera {
namespace {

/// A run's deck on a machine.
struct Outlook {
  PlanOptions options;
  std::optional<MachineProfile> machine;
  Deck deck;
  Placement placement;

  LimitsOf limits() const {
    return [ranks = options.ranks](const Deck& of) { return limits_with(of, ranks); };
  }
};

/// The deck as the run resolved it, with changes. Where its kernels worked is left to the profile, if there is one.
Outlook outlook_of(const std::string& deck, int ranks, const OutlookOptions& o, const std::vector<std::string>& changes) {
  Outlook out{.options = {}, .machine = {}, .deck = {}, .placement = {}};
  out.options.path = "deck.toml", out.options.text = deck;
  out.options.machine = o.machine, out.options.ranks = ranks, out.options.ranks_per_node = o.ranks_per_node;
  out.options.overrides = changes;
  out.machine = machine_of(out.options);
  out.deck = require_deck(parse_for(out.options, out.machine));
  const int per_node = ranks_per_node(out.options, out.machine), threads = threads_of(out.options, out.deck, out.machine, per_node);
  kernels::plan_for_threads(threads);
  const bool side_by_side = out.deck.run.device == RunDevice::cuda || lane_mode(out.deck, ranks, threads) == LaneMode::threads;
  out.placement = {.mesh = make_mesh(out.deck, ranks), .ranks_per_node = per_node, .lanes_side_by_side = side_by_side};
  return out;
}

BuildRequest request_of(const Outlook& o, int rank) {
  BuildRequest request = request_for(o.deck, o.placement.mesh, rank, Purpose::training);
  settle_recompute(request, o.limits()(o.deck));
  return request;
}

std::vector<TierUse> tiers_of(const RunPlan& plan, const Outlook& o) {
  std::vector<TierUse> tiers;
  const MemoryLimits limits = o.limits()(o.deck);
  for (std::size_t t = 0; t < tier_count; ++t) {
    if (plan.memory.bytes[t] == 0) continue;
    TierUse tier{.tier = std::string(name_of(static_cast<Tier>(t))), .bytes = plan.memory.bytes[t]};
    for (std::size_t c = 0; c < category_count; ++c)
      if (plan.memory.by_category[t][c] > 0) tier.categories.emplace_back(name_of(static_cast<Category>(c)), plan.memory.by_category[t][c]);
    for (const MemoryKind kind : all_memory_kinds)
      if (const auto& limit = limits[static_cast<std::size_t>(kind)]; limit && tier.tier == name_of(kind))
        tier.limit = limit->bytes, tier.source = limit->source;
    tiers.push_back(std::move(tier));
  }
  return tiers;
}

bool has_stages(const Outlook& o) { return o.placement.mesh.size(Axis::pp) > 1; }

/// Of the rank whose plan this is; of a pipeline without waits for other stages in its bars.
Forecast forecast_of(const Outlook& o, const RunPlan& plan) {
  std::vector<RunPlan> stages;  // whose tasks the timeline names
  if (has_stages(o))
    for (const StagePlan& stage : plan_stages(plan.request)) stages.push_back(stage.plan);
  const Prediction p = stages.empty()
                           ? predict(plan.request, plan.schedule, plan.memory, *o.machine, o.placement, true)
                           : predict_stage(static_cast<std::size_t>(plan.request.stage.number), stages, *o.machine, o.placement, true);
  const TraceOrigin origin{.step = 1, .rank = plan.request.rank, .ranks = p.ranks, .device = o.machine->name, .predicted = true};
  return {.machine = o.machine->name,
          .seconds = p.step.seconds,
          .tokens_per_second = p.tokens_per_second,
          .mfu_full = p.mfu_full,
          .mfu_causal = p.mfu_causal,
          .bars = bars_of_trace(chrome_trace(p.step.timeline, {}, origin))};
}

/// What the simulator says of a change against the deck as it is.
std::string simulated(const std::string& deck, int ranks, const OutlookOptions& o, double now, const std::string& change) {
  try {
    const Outlook changed = outlook_of(deck, ranks, o, {change});
    const std::optional<Choice> choice = choice_as_is(changed.deck, *changed.machine, changed.placement, changed.limits());
    if (!choice) return "The simulator: it does not fit into memory.";
    const double after = choice->prediction.step.seconds;
    if (std::abs(after / now - 1) < 0.005) return fmt::format("The simulator: a step of {} as now, no shorter.", span_text(after));
    return fmt::format("The simulator: a step of {} for {}, {} {}.", span_text(after), span_text(now), percent(std::abs(after / now - 1)),
                       after < now ? "shorter" : "longer");
  } catch (const Error& error) {
    if (error.code != ExitCode::usage) throw;
    return "With the other keys of this deck it is refused.";
  }
}

/// What the last start planned counts: this process may have other threads, by which workspace goes.
void take_planned(std::vector<TierUse>& memory, const std::vector<io::Event>& events) {
  for (auto at = events.rbegin(); at != events.rend(); ++at) {
    if (at->event != "start") continue;
    const Json* plan = at->fields.find("plan");
    if (!plan || !plan->is_object()) return;
    for (const auto& [tier, bytes] : plan->items()) {
      if (!bytes.is_number_integer() || bytes.get<std::int64_t>() <= 0) continue;
      auto use = std::ranges::find(memory, tier, &TierUse::tier);
      if (use == memory.end()) use = memory.insert(use, {.tier = tier});
      use->bytes = bytes.get<std::int64_t>();
    }
    return;
  }
}

/// What follows from deck.toml.
void add_plan_and_forecast(PageInput& in, const OutlookOptions& options) {
  const int ranks = std::max(1, static_cast<int>(in.run.ranks()));
  const int rank = in.traced && in.traced->shown < ranks ? in.traced->shown : 0;
  in.no_memory = "Not known: deck.toml is missing.";
  in.no_forecast =
      "Nothing is predicted: `tessera runs report RUN --machine PROFILE` does it (inputs/machines, or `tessera report --measure`).";
  if (in.run.deck.empty()) {
    if (!options.machine.empty()) in.no_forecast = "Nothing is predicted: deck.toml is missing.";
    return;
  }
  const ParsedDeck stored = parse_stored_deck(in.run.deck, "deck.toml");
  if (!stored.faults.empty()) {
    in.no_memory = fmt::format("Not known: this program cannot read deck.toml ({}).", stored.faults.front().str());
    if (!options.machine.empty()) in.no_forecast = in.no_memory;
    return;
  }
  in.deck = stored.deck;
  if (options.machine.empty()) {
    try {
      const Outlook outlook = outlook_of(in.run.deck, ranks, options, {});
      in.memory = tiers_of(plan_run(request_of(outlook, rank)), outlook);
    } catch (const Error& error) {
      if (error.code != ExitCode::usage) throw;
      in.no_memory = fmt::format("Not known: {}", error.what());
    }
    return;
  }
  const Outlook outlook = outlook_of(in.run.deck, ranks, options, {});
  const RunPlan plan = plan_run(request_of(outlook, rank));
  in.memory = tiers_of(plan, outlook);
  in.forecast = forecast_of(outlook, plan);
  in.ranks_per_node = outlook.placement.ranks_per_node;
  in.ask = [deck = in.run.deck, ranks, options, now = in.forecast->seconds](const std::string& change) {
    return simulated(deck, ranks, options, now, change);
  };
}

}  // namespace

void add_outlook(PageInput& in, const OutlookOptions& options) {
  OutlookOptions with = options;
  if (with.machine.empty() && !in.run.deck.empty())
    if (const ParsedDeck stored = parse_stored_deck(in.run.deck, "deck.toml"); stored.faults.empty())
      with.machine = stored.deck.run.machine;
  try {
    add_plan_and_forecast(in, with);
  } catch (const Error& error) {
    if (!options.machine.empty()) throw;
    // The run's own profile may lie elsewhere by now.
    add_plan_and_forecast(in, options);
    in.no_forecast = fmt::format("Nothing is predicted: {}", error.what());
  }
  take_planned(in.memory, in.run.events);
}

}  // namespace tessera
