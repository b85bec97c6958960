#include "commands/plan_phases.hpp"

#include "base/log.hpp"
#include "deck/ramp.hpp"
#include "schedule/build/micro_batches.hpp"
#include "schedule/simulate/prediction.hpp"

namespace tessera {

std::vector<PhasePlan> plan_phases(const Deck& deck, const BuildRequest& last, const MemoryLimits& limits,
                                   const std::function<void(BuildRequest&)>& settle) {
  std::vector<PhasePlan> phases;
  const std::vector<std::int64_t> ends = ends_of_phases(deck);
  for (std::size_t k = 0; k < ends.size(); ++k) {
    BuildRequest request = request_for(deck_in_phase(deck, k), last.mesh, last.rank, Purpose::training);
    settle(request);
    PhasePlan phase{.until_step = ends[k], .plan = plan_run(request)};
    if (request.stage.count > 1) phase.stages = plan_stages(request);
    phase.lacking = shortfalls(request.deck, phase.plan.memory.bytes, limits);
    phases.push_back(std::move(phase));
  }
  return phases;
}

TierBytes room_of(const std::vector<PhasePlan>& phases, const TierBytes& last) {
  TierBytes room = last;
  for (const PhasePlan& phase : phases) raise(room, phase.plan.memory.bytes);
  return room;
}

Json phases_json(const std::vector<PhasePlan>& phases) {
  Json rows = Json::array();
  for (const PhasePlan& phase : phases) {
    const BuildRequest& request = phase.plan.request;
    const BatchKeys& batch = request.deck.batch;
    rows.push_back({{"until_step", phase.until_step},
                    {"global", batch.global},
                    {"sequence_length", batch.sequence_length},
                    {"tokens_per_step", batch.global * batch.sequence_length},
                    {"samples_per_step", samples_of_step(batch)},
                    {"micro_batches_per_rank", accumulation_steps(request.deck, request.data.size)},
                    {"bytes_per_rank", memory_bytes(phase.plan.memory.bytes)},
                    {"schedule_hash", phase.plan.schedule.hash().hex()}});
    if (phase.seconds) rows.back()["step_seconds"] = *phase.seconds;
  }
  return rows;
}

void print_phases(const std::vector<PhasePlan>& phases, const TierBytes& last) {
  if (phases.empty()) return;
  const auto human = [](const TierBytes& bytes) { return human_bytes(static_cast<double>(memory_bytes(bytes))); };
  std::int64_t begin = 1;
  for (const PhasePlan& phase : phases) {
    const BuildRequest& request = phase.plan.request;
    put("phases    steps {} to {}: {}{}; {} on each rank{}\n", begin, phase.until_step, describe_batch(request.deck, request.data.size),
        describe_warmup(request.deck), human(phase.plan.memory.bytes),
        phase.seconds ? fmt::format("; a step takes {}, predicted", time_text(*phase.seconds)) : "");
    begin = phase.until_step + 1;
  }
  put("phases    from step {} on as below; the run allocates the memory of the largest phase of each tier, {} on each rank\n", begin,
      human(room_of(phases, last)));
}

bool phases_fit(const std::vector<PhasePlan>& phases, const MemoryLimits& limits) {
  return std::ranges::all_of(phases, [&](const PhasePlan& phase) { return phase.lacking.empty() && stages_fit(phase.stages, limits); });
}

void require_phases_fit(const std::vector<PhasePlan>& phases, const MemoryLimits& limits) {
  for (std::size_t k = 0; k < phases.size(); ++k) {
    if (!phases[k].lacking.empty())
      fail(ExitCode::memory,
           "{}This is phase {}, until step {}: give it a smaller global or sequence_length in batch.ramp, or set fewer batch.micro.",
           print_shortfalls(phases[k].lacking), k + 1, phases[k].until_step);
    require_stages_fit(phases[k].stages, limits);
  }
}

}  // namespace tessera
