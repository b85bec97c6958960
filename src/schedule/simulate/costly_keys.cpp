#include "schedule/simulate/costly_keys.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "schedule/build/builder.hpp"
#include "schedule/build/micro_batches.hpp"
#include "schedule/build/request.hpp"
#include "schedule/plan/recompute_choice.hpp"

namespace tessera {
namespace {

constexpr double least_share = 0.02;         // of a step
constexpr std::size_t most_micro_sizes = 4;  // that are tried
const std::int64_t usual_bucket = ZeroKeys{}.reduce_bucket_size, usual_live = ZeroKeys{}.max_live_parameters;

/// A key with another value.
struct Candidate {
  std::string key, change;
  std::function<void(Deck&)> apply;
  bool other_recompute = false;  ///< what is made again is settled anew
  bool makes_room = false;       ///< where it needs more memory, activations may leave it
};

Candidate candidate(const std::string& key, const Change& change, bool other_recompute = false) {
  return {key, change.text, change.apply, other_recompute};
}

/// Other orders of a pipeline's micro-batches, and smaller ones, which leave stages less to wait for.
void add_pipeline(std::vector<Candidate>& found, const Deck& deck, const Placement& placement, const std::vector<std::int64_t>& micros) {
  if (placement.mesh.size(Axis::pp) == 1) return;
  using enum PipelineSchedule;
  for (const PipelineSchedule order : {one_forward_one_backward, zero_bubble, interleaved})
    if (order != deck.pipeline.schedule)
      found.push_back({fmt::format("pipeline.schedule = \"{}\"", word_of(deck.pipeline.schedule)),
                       fmt::format("pipeline.schedule={}", word_of(order)), [order](Deck& d) { d.pipeline.schedule = order; }});
  for (const std::int64_t micro : micros)
    if (micro < deck.batch.micro) found.push_back(candidate(fmt::format("batch.micro = {}", deck.batch.micro), micro_change(micro)));
}

/// What another stage, less offloading or less that is made again would take. `bounded`: auto is tried, by what the kernels' memory holds.
void add_layouts(std::vector<Candidate>& found, const Deck& deck, const Placement& placement, bool bounded) {
  const ZeroKeys& z = deck.zero;
  for (const std::int64_t stage : {3, 2, 1, 0})
    if (stage != z.stage && placement.ranks() > 1) found.push_back(candidate(fmt::format("zero.stage = {}", z.stage), stage_change(stage)));
  const auto less = [&](const char* key, OffloadDevice now, Change (*change)(OffloadDevice)) {
    for (const OffloadDevice to : {OffloadDevice::none, OffloadDevice::host})
      if (to < now) found.push_back(candidate(fmt::format("{} = \"{}\"", key, word_of(now)), change(to))), found.back().makes_room = true;
  };
  less("zero.offload_optimizer.device", z.offload_optimizer.device, offload_optimizer_change);
  less("zero.offload_param.device", z.offload_param.device, offload_param_change);
  less("activation.offload", deck.activation.offload, offload_activation_change);
  const Recompute now = deck.activation.recompute;
  for (const Recompute mode : {Recompute::none, Recompute::selective, Recompute::automatic})
    if (mode == Recompute::automatic ? bounded && now != Recompute::none && now != mode
                                     : now == Recompute::full || (now == Recompute::selective && mode == Recompute::none))
      found.push_back(candidate(fmt::format("activation.recompute = \"{}\"", word_of(now)), recompute_change(deck.activation, mode), true));
}

/// Collectives of 8 and 4 bits, and parameters that are gathered over nodes.
void add_wire(std::vector<Candidate>& found, const Deck& deck, const Placement& placement) {
  const ZeroKeys& z = deck.zero;
  if (z.quantized_weights)
    found.push_back({"zero.quantized_weights = true", "zero.quantized_weights=false", [](Deck& d) { d.zero.quantized_weights = false; }});
  if (z.quantized_gradients)
    found.push_back(
        {"zero.quantized_gradients = true", "zero.quantized_gradients=false", [](Deck& d) { d.zero.quantized_gradients = false; }});
  const std::int64_t of_node = placement.ranks_per_node;
  if (z.stage == 3 && z.hpz_partition_size == 1 && placement.ranks() > of_node && of_node > 1)
    found.push_back({"zero.hpz_partition_size = 1", fmt::format("zero.hpz_partition_size={}", of_node),
                     [of_node](Deck& d) { d.zero.hpz_partition_size = of_node; }});
}

Candidate elements(const char* key, std::int64_t value, std::int64_t better, const std::string& written, std::int64_t ZeroKeys::*field) {
  return {fmt::format("{} = {}", key, value), fmt::format("{}={}", key, written), [=](Deck& d) { d.zero.*field = better; }};
}

std::vector<Candidate> candidates(const Deck& deck, const Placement& placement, const MemoryLimits& limits) {
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
    found.push_back(elements("zero.reduce_bucket_size", z.reduce_bucket_size, usual_bucket, fmt::format("{}", usual_bucket),
                             &ZeroKeys::reduce_bucket_size));
  if (cut && (z.stage == 1 || z.stage == 2) && z.allgather_bucket_size < usual_bucket)
    found.push_back(elements("zero.allgather_bucket_size", z.allgather_bucket_size, usual_bucket, fmt::format("{}", usual_bucket),
                             &ZeroKeys::allgather_bucket_size));
  if (z.overlap_comm == OverlapComm::no)
    found.push_back({"zero.overlap_comm = false", "zero.overlap_comm=auto", [](Deck& d) { d.zero.overlap_comm = OverlapComm::automatic; }});
  const int ranks = batch_group(placement.mesh, 0).size;
  const std::int64_t steps = accumulation_steps(deck, ranks);
  std::vector<std::int64_t> sizes = micro_sizes(deck.batch, ranks);
  add_pipeline(found, deck, placement, sizes);
  if (steps > 1) {
    std::ranges::reverse(sizes);
    std::erase_if(sizes, [&](std::int64_t micro) { return micro <= deck.batch.micro; });
    const std::string gathers = z.stage == 3 ? fmt::format(", for which each unit is gathered {} times a step", 2 * steps) : "";
    for (std::size_t i = 0; i < std::min(sizes.size(), most_micro_sizes); ++i)
      found.push_back(candidate(fmt::format("batch.micro = {}{}", deck.batch.micro, gathers), micro_change(sizes[i]))),
          found.back().makes_room = true;
  }
  // Of each stage of a pipeline auto makes dozens of plans: too many for who did not ask for a search.
  add_layouts(found, deck, placement, placement.mesh.size(Axis::pp) == 1 && limits[static_cast<std::size_t>(kernel_memory(deck))]);
  add_wire(found, deck, placement);
  return found;
}

}  // namespace

namespace {

/// The step of a deck with changes; nothing where the rules or the memory do not allow it.
class ChangeTrials {
 public:
  ChangeTrials(const BuildRequest& request, const MachineProfile& machine, const Placement& placement, const LimitsOf& limits)
      : request_(request), machine_(machine), placement_(placement), limits_(limits) {}

  /// With a candidate alone, or with what else makes room for it, which then is a part of it.
  std::optional<double> seconds_with(const Deck& deck, Candidate& candidate) const {
    std::vector<std::vector<Change>> helps{{}};
    if (candidate.makes_room) helps.insert(helps.end(), {{offload}, {full}, {full, offload}});
    for (const std::vector<Change>& help : helps) {
      Deck with = deck;
      candidate.apply(with);
      const Deck alone = with;
      for (const Change& change : help) change.apply(with);
      if (!help.empty() && with == alone) continue;
      const bool other = candidate.other_recompute || with.activation.recompute != deck.activation.recompute;
      const std::optional<double> seconds = this->seconds(with, other);
      if (!seconds) continue;
      candidate.other_recompute = other;
      for (const Change& change : help)
        candidate.change += " " + change.text, candidate.apply = [first = candidate.apply, change](Deck& d) { first(d), change.apply(d); };
      return seconds;
    }
    return std::nullopt;
  }

  std::optional<double> seconds(const Deck& deck, bool other_recompute) const {
    if (!is_allowed(deck, placement_.ranks())) return std::nullopt;
    BuildRequest changed = request_for(deck, placement_.mesh, 0, Purpose::training);
    if (other_recompute)
      settle_recompute(changed, limits_(deck));
    else
      changed.recompute = request_.recompute;
    const std::optional<Choice> choice = choice_of(changed, machine_, placement_, limits_);
    return choice ? std::optional(choice->prediction.step.seconds) : std::nullopt;
  }

 private:
  const BuildRequest& request_;
  const MachineProfile& machine_;
  const Placement& placement_;
  const LimitsOf& limits_;
  const Change offload = offload_activation_change(OffloadDevice::host), full = recompute_change(request_.deck.activation, Recompute::full);
};

/// Tasks that a simulation plays, about as many of each stage of a pipeline.
std::int64_t played_tasks(const Prediction& now, const Placement& placement) {
  return placement.mesh.size(Axis::pp) * std::accumulate(now.step.tasks.begin(), now.step.tasks.end(), std::int64_t{0});
}

}  // namespace

StepAdvice advise(const BuildRequest& request, const Prediction& now, const MachineProfile& machine, const Placement& placement,
                  const LimitsOf& limits) {
  StepAdvice advice;
  advice.left_out = played_tasks(now, placement) > most_played_tasks;
  if (advice.left_out) return advice;
  const ChangeTrials trials(request, machine, placement, limits);
  std::vector<std::pair<CostlyKey, Candidate>> good;
  for (Candidate& c : candidates(request.deck, placement, limits(request.deck))) {
    c.makes_room &= machine.host.adamw > 0 && machine.transfer.up > 0 && request.deck.run.device == RunDevice::cuda;
    const std::optional<double> seconds = trials.seconds_with(request.deck, c);
    if (!seconds || *seconds > (1 - least_share) * now.step.seconds) continue;
    const CostlyKey key{c.key, c.change, *seconds};
    const auto same = std::ranges::find(good, key.key, [](const auto& g) { return g.first.key; });  // of several values the best
    if (same == good.end())
      good.emplace_back(key, c);
    else if (key.seconds < same->first.seconds)
      *same = {key, c};
  }
  std::ranges::stable_sort(good, {}, [](const auto& g) { return g.first.seconds; });
  // Each that makes a step shorter still beside those before it.
  Deck deck = request.deck;
  CostlyKey all{"", "", now.step.seconds};
  bool other_recompute = false;
  for (const auto& [key, c] : good) {
    advice.keys.push_back(key);
    Deck with = deck;
    c.apply(with);
    const std::optional<double> seconds = trials.seconds(with, other_recompute || c.other_recompute);
    if (!seconds || *seconds > (1 - least_share) * all.seconds) continue;
    deck = with, other_recompute |= c.other_recompute;
    all.seconds = *seconds, all.change += (all.change.empty() ? "" : " ") + c.change;
  }
  if (good.size() > 1 && all.change != good.front().first.change) advice.together = all;
  return advice;
}

std::string idle_limit(const BuildRequest& request) {
  const ZeroKeys& z = request.deck.zero;
  if (z.stage != 3 || z.max_live_parameters == usual_live) return "";
  BuildRequest usual = request;
  usual.deck.zero.max_live_parameters = usual_live;
  if (build_schedule(request).hash() != build_schedule(usual).hash()) return "";
  return fmt::format("zero.max_live_parameters = {} has no effect: the step is that of the default, {}", z.max_live_parameters, usual_live);
}

std::string text_of(const CostlyKey& costly, const Prediction& now) {
  const double saved = now.step.seconds - costly.seconds;
  return fmt::format("{} saves {} of a step of {} ({:.1f} %){}", costly.change, time_text(saved), time_text(now.step.seconds),
                     100 * saved / now.step.seconds, costly.key.empty() ? "" : "; now " + costly.key);
}

}  // namespace tessera
