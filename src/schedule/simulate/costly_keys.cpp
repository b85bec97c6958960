#include "schedule/simulate/costly_keys.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "schedule/build/builder.hpp"
#include "schedule/build/micro_batches.hpp"
#include "schedule/build/request.hpp"

namespace tessera {
namespace {

constexpr double least_share = 0.02;                // of a step
constexpr std::int64_t usual_bucket = 500'000'000;  // the default of zero.reduce_bucket_size and allgather_bucket_size
constexpr std::int64_t usual_live = 1'000'000'000;  // of zero.max_live_parameters
constexpr std::size_t most_micro_sizes = 4;         // that are tried

/// A key with another value.
struct Candidate {
  std::string key, change;
  std::function<void(Deck&)> apply;
};

Candidate elements(const char* key, std::int64_t value, std::int64_t better, const std::string& written, std::int64_t ZeroKeys::*field) {
  return {fmt::format("{} = {}", key, value), fmt::format("{}={}", key, written), [=](Deck& d) { d.zero.*field = better; }};
}

std::vector<Candidate> candidates(const Deck& deck, const Placement& placement) {
  const ZeroKeys& z = deck.zero;
  std::vector<Candidate> found;
  std::int64_t largest = 0;
  for (const Unit& unit : layout_for(deck, placement.mesh, 0).units) largest = std::max(largest, unit.elements);
  if (z.stage == 3 && z.prefetch_bucket_size < largest)
    found.push_back(elements("zero.prefetch_bucket_size", z.prefetch_bucket_size, largest, "auto", &ZeroKeys::prefetch_bucket_size));
  if (const std::int64_t live = std::max(usual_live, 4 * largest); z.stage == 3 && z.max_live_parameters < live)
    found.push_back(
        elements("zero.max_live_parameters", z.max_live_parameters, live, fmt::format("{}", live), &ZeroKeys::max_live_parameters));
  const bool cut = deck.run.device != RunDevice::cuda;  // on GPUs buckets are as large as they can be
  if (cut && z.reduce_bucket_size < usual_bucket)
    found.push_back(elements("zero.reduce_bucket_size", z.reduce_bucket_size, usual_bucket, "500000000", &ZeroKeys::reduce_bucket_size));
  if (cut && (z.stage == 1 || z.stage == 2) && z.allgather_bucket_size < usual_bucket)
    found.push_back(
        elements("zero.allgather_bucket_size", z.allgather_bucket_size, usual_bucket, "500000000", &ZeroKeys::allgather_bucket_size));
  if (z.overlap_comm == OverlapComm::no)
    found.push_back({"zero.overlap_comm = false", "zero.overlap_comm=auto", [](Deck& d) { d.zero.overlap_comm = OverlapComm::automatic; }});
  const int ranks = batch_group(placement.mesh, 0).size;
  if (z.stage == 3 && accumulation_steps(deck, ranks) > 1) {
    std::vector<std::int64_t> sizes = micro_sizes(deck.batch, ranks);
    std::ranges::reverse(sizes);
    std::erase_if(sizes, [&](std::int64_t micro) { return micro <= deck.batch.micro; });
    for (std::size_t i = 0; i < std::min(sizes.size(), most_micro_sizes); ++i)
      found.push_back({fmt::format("batch.micro = {}, for which each unit is gathered {} times a step,", deck.batch.micro,
                                   2 * accumulation_steps(deck, ranks)),
                       fmt::format("batch.micro={}", sizes[i]), [micro = sizes[i]](Deck& d) { d.batch.micro = micro; }});
  }
  return found;
}

}  // namespace

std::vector<CostlyKey> costly_keys(const BuildRequest& request, const Prediction& now, const MachineProfile& machine,
                                   const Placement& placement, const LimitsOf& limits) {
  std::vector<CostlyKey> costly;
  const double waits = now.step.waited[static_cast<std::size_t>(WaitKind::communication)];
  if (placement.mesh.size(Axis::pp) > 1 || waits < least_share * now.step.seconds) return costly;
  for (const Candidate& candidate : candidates(request.deck, placement)) {
    Deck deck = request.deck;
    candidate.apply(deck);
    BuildRequest changed = request_for(deck, placement.mesh, 0, Purpose::training);
    changed.recompute = request.recompute;
    const Schedule schedule = build_schedule(changed);
    const MemoryPlan plan = place(schedule);
    if (!shortfalls(deck, plan.bytes, limits(deck)).empty()) continue;
    const CostlyKey key{candidate.key, candidate.change, predict(changed, schedule, plan, machine, placement).step.seconds};
    if (key.seconds > (1 - least_share) * now.step.seconds) continue;
    const auto same = std::ranges::find(costly, key.key, &CostlyKey::key);  // of several sizes the best
    if (same == costly.end())
      costly.push_back(key);
    else if (key.seconds < same->seconds)
      *same = key;
  }
  std::ranges::stable_sort(costly, {}, &CostlyKey::seconds);
  return costly;
}

std::string text_of(const CostlyKey& costly, const Prediction& now) {
  return fmt::format("{} costs {:.1f} % of a step ({}); {} saves it", costly.key, 100 * (1 - costly.seconds / now.step.seconds),
                     time_text(now.step.seconds), costly.change);
}

}  // namespace tessera
