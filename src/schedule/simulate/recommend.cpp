#include "schedule/simulate/recommend.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "schedule/plan/recompute_choice.hpp"
#include "schedule/plan/run_plan.hpp"

namespace tessera {
namespace {

/// Where tasks share a disk's time, one more of them may bring others into a better order.
constexpr double order_of_disks = 0.98;
constexpr double any_time = std::numeric_limits<double>::infinity();

/// What lies outside kernels' memory wants room there, and is worth it from such a gain on.
constexpr double worth_offloading = 1.01;

int offloads(const Deck& deck) {
  const auto one = [](OffloadDevice device) { return static_cast<int>(device); };
  return one(deck.zero.offload_optimizer.device) + one(deck.zero.offload_param.device) + one(deck.activation.offload);
}

/// Compute, and what it waits for.
struct StepPart {
  const char* name;
  double seconds;
};
std::array<StepPart, 5> parts_of(const Prediction& p) {
  const auto waited = [&](WaitKind kind) { return p.step.waited[static_cast<std::size_t>(kind)]; };
  return {{{"compute", p.step.busy[static_cast<std::size_t>(Lane::compute)]},
           {"exposed communication", waited(WaitKind::communication)},
           {"exposed copies between tiers", waited(WaitKind::transfer)},
           {"exposed transfers of disks", waited(WaitKind::disk)},
           {"exposed work of the host's cores", waited(WaitKind::host)}}};
}

/// The same for schedules of the same tasks on the same bytes.
std::string digest_of_tasks(const Schedule& schedule) {
  std::vector<std::int64_t> numbers;
  for (const Buffer& b : schedule.buffers)
    numbers.insert(numbers.end(), {static_cast<std::int64_t>(b.tier), b.bytes, static_cast<std::int64_t>(b.life), b.slots});
  for (const Section& section : schedule.sections)
    for (const Task& task : section.tasks) {
      numbers.insert(numbers.end(), {static_cast<std::int64_t>(task.lane), static_cast<std::int64_t>(task.op.index())});
      for (const Use& use : task.uses)
        numbers.insert(numbers.end(), {use.buffer, use.offset, use.bytes, static_cast<std::int64_t>(use.access), use.shift});
    }
  return hash_bytes(numbers.data(), numbers.size() * sizeof(numbers[0])).hex();
}

}  // namespace

Recommender::Recommender(const Deck& deck, const MachineProfile& machine, const Placement& placement)
    : deck_(deck), machine_(machine), placement_(placement) {
  std::vector<SearchPoint> space = search_space(deck, machine, placement.ranks());
  bounds_.emplace(space, machine, placement);
  add_points(std::move(space));
}

/// Other limits of what is gathered ahead and kept may come to the same tasks: of such points one is enough, that of the fewest changes.
void Recommender::add_points(std::vector<SearchPoint> space) {
  std::set<std::pair<std::size_t, std::string>> known;
  std::vector<std::string> gathers;
  for (SearchPoint& at : space) {
    const std::string digest = at.deck.zero.stage == 3 ? digest_of_gathers(at.deck) : "";
    if (!known.emplace(at.group, digest).second) continue;
    const Least least = bounds_->of(at);
    points_.push_back({.at = std::move(at), .least = least});
  }
  std::ranges::stable_sort(points_, {}, [](const Point& p) { return p.least.seconds; });
  std::map<std::string, const Point*> by_keys;
  const auto keys_of = [&](const Deck& deck) {
    const ZeroKeys& z = deck.zero;
    return fmt::format("{} {} {} {} {} {} {} {}", z.stage, word_of(z.offload_optimizer.device), word_of(z.offload_param.device),
                       word_of(deck.activation.offload), word_of(deck.activation.recompute), deck.activation.every, deck.batch.micro,
                       z.stage == 3 ? digest_of_gathers(deck) : "");
  };
  for (const Point& point : points_) by_keys.emplace(keys_of(point.at.deck), &point);
  for (Point& point : points_) {
    const auto compare = [&](OffloadDevice device, const Change& to_host) {
      if (device != OffloadDevice::nvme) return;
      Deck deck = point.at.deck;
      to_host.apply(deck);
      if (const auto other = by_keys.find(keys_of(deck)); other != by_keys.end()) point.no_slower.push_back(other->second);
    };
    const ZeroKeys& zero = point.at.deck.zero;
    compare(zero.offload_optimizer.device, offload_optimizer_change(OffloadDevice::host));
    compare(zero.offload_param.device, offload_param_change(OffloadDevice::host));
    compare(point.at.deck.activation.offload, offload_activation_change(OffloadDevice::host));
  }
}

/// Of a step that gathers as the deck says: what decides it is known without micro-batches, and without where other things lie.
std::string Recommender::digest_of_gathers(const Deck& deck) {
  const ZeroKeys& z = deck.zero;
  const bool offloaded = z.offload_param.device != OffloadDevice::none;
  std::string& digest = gathers_[fmt::format("{} {} {} {} {}", word_of(deck.activation.recompute), deck.activation.every,
                                             z.prefetch_bucket_size, z.max_reuse_distance, offloaded)];
  if (!digest.empty()) return digest;
  Deck plain = deck;
  plain.batch.global = plain.batch.micro, plain.activation.offload = OffloadDevice::none;
  plain.zero.offload_optimizer.device = plain.zero.offload_param.device = offloaded ? OffloadDevice::host : OffloadDevice::none;
  return digest = digest_of_tasks(build_schedule(request_of(plain)));
}

BuildRequest Recommender::request_of(const Deck& deck) const { return request_for(deck, placement_.mesh, 0, Purpose::training); }

bool Recommender::has_room(const Deck& deck, TierBytes bytes, const LimitsOf& limits) const {
  return shortfalls(deck, bytes, limits(deck)).empty();
}

void Recommender::evaluate(Point& point, const std::function<bool(const TierBytes&)>& is_wanted, double most_seconds, bool with_time) {
  const BuildRequest request = request_of(point.at.deck);
  const Schedule schedule = build_schedule(request);
  const TaskSeconds seconds = task_seconds(schedule, machine_, placement_);
  point.least = {.seconds = std::max(point.least.seconds, least_seconds(schedule, seconds, placement_.lanes_side_by_side)),
                 .bytes = least_bytes(schedule)};
  if (point.least.seconds > most_seconds || !is_wanted(point.least.bytes)) return;
  const MemoryPlan plan = place(schedule);
  point.bytes = plan.bytes, ++planned_;
  if (!with_time || !is_wanted(plan.bytes)) return;
  point.prediction = predict(request, schedule, plan, seconds, machine_, placement_);
  ++simulated_;
}

/// Then its prediction is known.
bool Recommender::fits(Point& point, const LimitsOf& limits, double most_seconds) {
  const auto has_room_for = [&](const TierBytes& bytes) { return has_room(point.at.deck, bytes, limits); };
  for (const Point* other : point.no_slower)
    point.least.seconds =
        std::max(point.least.seconds, order_of_disks * (other->prediction ? other->prediction->step.seconds : other->least.seconds));
  if (point.least.seconds > most_seconds || !has_room_for(point.bytes ? *point.bytes : point.least.bytes)) return false;
  if (!point.prediction) evaluate(point, has_room_for, most_seconds, true);
  return point.prediction && has_room_for(*point.bytes);
}

bool Recommender::before(const Point* a, const Point* b) {
  const auto key = [](const Point& p) { return std::pair(p.prediction->step.seconds, p.at.changes.size()); };
  return key(*a) < key(*b);
}

Recommendation Recommender::best(const LimitsOf& limits) {
  planned_ = simulated_ = 0;
  std::vector<const Point*> found;  // fastest first
  const Point* second = nullptr;
  for (Point& point : points_) {
    double most = second ? second->prediction->step.seconds : any_time;
    if (second && offloads(point.at.deck) < offloads(found.front()->at.deck))
      most = std::max(most, worth_offloading * found.front()->prediction->step.seconds);
    if (!fits(point, limits, most)) continue;
    found.insert(std::ranges::upper_bound(found, &point, before), &point);
    const auto other = std::ranges::find_if(found, [&](const Point* p) { return p->at.group != found.front()->at.group; });
    second = other == found.end() ? nullptr : *other;
  }
  Recommendation result{.first = {}, .runner_up = {}, .choices = static_cast<std::int64_t>(points_.size())};
  const auto choice = [](const Point& p) {
    return Choice{.changes = p.at.changes, .deck = p.at.deck, .bytes = *p.bytes, .prediction = *p.prediction, .recompute = {}};
  };
  if (found.empty()) {
    add_least(result);
  } else {
    const Point* first = worth_its_offloads(found);
    result.first = choice(*first);
    const auto next = std::ranges::find_if(found, [&](const Point* p) { return p->at.group != first->at.group && before(first, p); });
    if (next != found.end()) result.runner_up = choice(**next);
    try_autos(result, found, limits);
  }
  result.planned = planned_, result.simulated = simulated_;
  return result;
}

/// The fastest, or one about as fast that leaves more where kernels work.
const Recommender::Point* Recommender::worth_its_offloads(const std::vector<const Point*>& found) {
  const Point* best = found.front();
  for (const Point* point : found) {
    if (point->prediction->step.seconds > worth_offloading * found.front()->prediction->step.seconds) break;
    if (offloads(point->at.deck) < offloads(best->at.deck)) best = point;
  }
  return best;
}

void Recommender::add_least(Recommendation& result) {
  const auto is_less = [&](const TierBytes& bytes) {
    return memory_bytes(result.least) == 0 || memory_bytes(bytes) < memory_bytes(result.least);
  };
  std::vector<Point*> by_bytes;
  for (Point& point : points_) by_bytes.push_back(&point);
  std::ranges::stable_sort(by_bytes, {}, [](const Point* p) { return memory_bytes(p->least.bytes); });
  for (Point* point : by_bytes) {
    if (!is_less(point->least.bytes)) continue;
    if (!point->bytes) evaluate(*point, is_less, any_time, false);
    if (point->bytes && is_less(*point->bytes)) result.least = *point->bytes;
  }
}

/// The fastest that makes activations again, and of those about as fast that make as much again the one that leaves most room to make less.
std::vector<const Recommender::Point*> Recommender::places_of_auto(const std::vector<const Point*>& found) {
  constexpr double share = 1.01;
  std::set<std::size_t> groups;
  std::vector<const Point*> places;
  const auto bytes = [](const Point& p) { return bytes_of(*p.bytes, kernel_memory(p.at.deck)); };
  const Point* roomy = nullptr;
  for (const Point* point : found) {
    const ActivationKeys& keys = point->at.deck.activation;
    if (keys.recompute == Recompute::none || !groups.insert(point->at.group).second) continue;
    if (places.empty()) places.push_back(roomy = point);
    const ActivationKeys& fastest = places.front()->at.deck.activation;
    if (point->prediction->step.seconds > share * places.front()->prediction->step.seconds) break;
    if (keys.recompute == fastest.recompute && keys.every == fastest.every && bytes(*point) < bytes(*roomy)) roomy = point;
  }
  if (!places.empty() && roomy != places.front()) places.push_back(roomy);
  return places;
}

void Recommender::try_autos(Recommendation& result, const std::vector<const Point*>& found, const LimitsOf& limits) {
  const Change change = recompute_change(deck_.activation, Recompute::automatic);
  const auto is_faster = [](double seconds, const std::optional<Choice>& than) { return !than || seconds < than->prediction.step.seconds; };
  for (const Point* place : places_of_auto(found)) {
    const SearchPoint& at = place->at;
    Auto made{.changes = at.changes, .deck = at.deck};
    change.apply(made.deck);
    std::erase_if(made.changes, [](const Change& c) { return c.text.starts_with("activation.recompute"); });
    if (deck_.activation.recompute != Recompute::automatic) made.changes.push_back(change);
    // It makes again no less than nothing.
    for (const Point& p : points_)
      if (p.at.layout == at.layout && p.at.deck.activation.offload == at.deck.activation.offload &&
          p.at.deck.activation.recompute == Recompute::none && p.at.deck.batch.micro == at.deck.batch.micro)
        made.least_seconds = bounds_->of(p.at).seconds;
    if (std::ranges::none_of(autos_, [&](const Auto& known) { return known.deck == made.deck; })) autos_.push_back(std::move(made));
  }
  // One that has won before is no slower where there is more memory; one that has lost is not asked again.
  std::vector<Auto> won;
  for (Auto& tried : autos_) {
    std::optional<Choice> choice;
    if (is_faster(tried.least_seconds, result.first)) choice = choice_as_is(tried.deck, machine_, placement_, limits);
    if (!choice) continue;
    const bool more = result.first && offloads(choice->deck) > offloads(result.first->deck);
    if (!is_faster(choice->prediction.step.seconds * (more ? worth_offloading : 1), result.first)) continue;
    choice->changes = tried.changes;
    result.runner_up = std::exchange(result.first, choice);
    won = {std::move(tried)};
  }
  autos_ = std::move(won);
}

std::optional<Choice> choice_as_is(const Deck& deck, const MachineProfile& machine, const Placement& placement, const LimitsOf& limits) {
  BuildRequest request = request_for(deck, placement.mesh, 0, Purpose::training);
  settle_recompute(request, limits(deck));
  return choice_of(request, machine, placement, limits);
}

std::optional<Choice> choice_of(const BuildRequest& request, const MachineProfile& machine, const Placement& placement,
                                const LimitsOf& limits) {
  std::vector<RunPlan> stages;
  TierBytes most{};
  for (int rank = 0; rank < placement.ranks(); rank += placement.ranks() / placement.mesh.size(Axis::pp)) {
    stages.push_back(plan_run(request_like(request, rank)));
    const TierBytes& bytes = stages.back().memory.bytes;
    if (!shortfalls(request.deck, bytes, limits(request.deck)).empty()) return std::nullopt;
    if (memory_bytes(bytes) > memory_bytes(most)) most = bytes;
  }
  const RunPlan& first = stages.front();
  return Choice{.changes = {},
                .deck = request.deck,
                .bytes = most,
                .prediction = stages.size() == 1 ? predict(first.request, first.schedule, first.memory, machine, placement)
                                                 : predict_stage(0, stages, machine, placement),
                .recompute = request.choice() ? std::optional(*request.choice()) : std::nullopt};
}

double slowdown(const Choice& choice, const MachineProfile& machine, const Placement& placement, const LimitsOf& limits) {
  BuildRequest chosen = request_for(choice.deck, placement.mesh, 0, Purpose::training);
  settle_recompute(chosen, limits(choice.deck));
  Deck whole = choice.deck;
  for (const Change& change : {stage_change(0), offload_optimizer_change(OffloadDevice::none), offload_param_change(OffloadDevice::none),
                               offload_activation_change(OffloadDevice::none)})
    change.apply(whole);
  BuildRequest request = request_for(whole, placement.mesh, 0, Purpose::training);
  request.recompute = chosen.recompute;
  const Schedule schedule = build_schedule(request);
  return choice.prediction.step.seconds / predict(request, schedule, place(schedule), machine, placement).step.seconds;
}

std::string why_slower(const Prediction& first, const Prediction& second) {
  if (second.step.seconds <= first.step.seconds) return "as fast, with more changes of the deck";
  const auto a = parts_of(first), b = parts_of(second);
  std::size_t most = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (b[i].seconds - a[i].seconds > b[most].seconds - a[most].seconds) most = i;
  return fmt::format("{} more of {}", time_text(b[most].seconds - a[most].seconds), b[most].name);
}

Figures figures_of_choice(const Choice& choice, const MachineProfile& machine, const Placement& placement) {
  BuildRequest request = request_for(choice.deck, placement.mesh, 0, Purpose::training);
  if (choice.recompute) request.recompute = {*choice.recompute};
  return figures_of(build_schedule(request), machine, placement);
}

}  // namespace tessera
