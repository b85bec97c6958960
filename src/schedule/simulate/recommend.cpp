#include "schedule/simulate/recommend.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "schedule/plan/recompute_choice.hpp"
#include "schedule/simulate/task_seconds.hpp"

namespace tessera {
namespace {

using Level = std::vector<Change>;  // of one axis

/// Micro-batches that are played of each point; steps of the answer are played as everywhere.
constexpr std::int64_t repetitions_of_a_point = 12;
/// Places in which "auto" is tried: it costs as much as ten points.
constexpr std::size_t most_autos = 3;
/// Lanes that have the same to do in all points of a group.
constexpr Lane same_in_a_group[] = {Lane::compute, Lane::reduce};
constexpr auto all_lanes = [] {
  std::array<Lane, lane_count> all{};
  for (std::size_t l = 0; l < all.size(); ++l) all[l] = lanes[l].lane;
  return all;
}();

/// Stage, and where optimizer and parameters lie.
std::vector<Level> layout_levels(const Deck& deck, const MachineProfile& machine) {
  // On the host there is a second memory only where the deck says what kernels have of it.
  const bool copies = machine.transfer.up > 0 && machine.host.adamw > 0;
  const bool host = copies && (deck.run.device == "cuda" || deck.memory.device > 0), disk = copies && machine.disk.read > 0;
  std::vector<std::string> devices{"none"};
  if (host) devices.emplace_back("host");
  if (disk) devices.emplace_back("nvme");
  const bool has_path = !deck.zero.offload_optimizer.nvme_path.empty() || !deck.zero.offload_param.nvme_path.empty();
  const Change path{"zero.offload_optimizer.nvme_path=/local", [](Deck& d) { d.zero.offload_optimizer.nvme_path = "/local"; }};
  std::vector<Level> levels;
  for (std::int64_t stage = 0; stage <= 3; ++stage)
    for (const std::string& optimizer : devices)
      for (const std::string& parameters : devices) {
        Level level{stage_change(stage), offload_optimizer_change(optimizer), offload_param_change(parameters)};
        if ((optimizer == "nvme" || parameters == "nvme") && !has_path) level.push_back(path);
        levels.push_back(std::move(level));
      }
  return levels;
}

std::vector<Level> recompute_levels_of(const Deck& deck) {
  const ActivationKeys& now = deck.activation;
  Level none{recompute_change(now, "none")};
  if (!now.keep.empty()) none.push_back({"activation.keep=[]", [](Deck& d) { d.activation.keep.clear(); }});
  std::vector<Level> levels{none, {recompute_change(now, "selective")}, {recompute_change(now, "full")}};
  if (now.recompute == "full" && now.every > 1) levels.push_back({recompute_change(now, "full", now.every)});
  return levels;
}

/// What is gathered ahead: as the deck says, nothing, or one layer; and what is kept between two uses: as the deck says, or nothing.
std::vector<Level> bucket_levels(const Deck& deck, std::int64_t layer) {
  const std::set<std::int64_t> ahead{deck.zero.prefetch_bucket_size, 0, layer}, kept{deck.zero.max_reuse_distance, 0};
  std::vector<Level> levels;
  for (const std::int64_t a : ahead)
    for (const std::int64_t k : kept) levels.push_back({prefetch_change(a), reuse_change(k)});
  const auto changes = [&](const Level& level) {
    Deck changed = deck;
    for (const Change& c : level) c.apply(changed);
    return (changed.zero.prefetch_bucket_size != deck.zero.prefetch_bucket_size) +
           (changed.zero.max_reuse_distance != deck.zero.max_reuse_distance);
  };
  std::ranges::stable_sort(levels, {}, changes);
  return levels;
}

std::int64_t elements_of_a_layer(const Deck& deck, int ranks) {
  const Layout layout = layout_for(deck, ranks);
  std::int64_t most = 0;
  for (const Unit& unit : layout.units)
    if (unit.name.starts_with("layers.")) most = std::max(most, unit.elements);
  return most;
}

/// A written deck is read again, so what the rules refuse is no choice.
bool is_allowed(const Deck& deck, int ranks) { return parse_deck_text(print_deck(deck), "the choice", {}, ranks).faults.empty(); }

/// Compute, and what it waits for.
struct Part {
  const char* name;
  double seconds;
};
std::array<Part, 5> parts_of(const Prediction& p) {
  const Exposed exposed = exposed_of(p.step);
  return {{{"compute", p.step.busy[static_cast<std::size_t>(Lane::compute)]},
           {"exposed communication", exposed.communication},
           {"exposed copies between tiers", exposed.transfer},
           {"exposed transfers of disks", exposed.disk},
           {"exposed work of the host's cores", exposed.host}}};
}

}  // namespace

std::vector<SearchPoint> search_space(const Deck& deck, const MachineProfile& machine, int ranks) {
  std::vector<SearchPoint> points;
  const std::int64_t layer = elements_of_a_layer(deck, ranks);
  const std::vector<Level> buckets = bucket_levels(deck, layer);
  std::size_t group = 0;
  for (const Level& layout : layout_levels(deck, machine))
    for (const Level& recompute : recompute_levels_of(deck))
      for (const std::int64_t micro : micro_sizes(deck.batch, ranks)) {
        SearchPoint core{.changes = {}, .deck = deck, .group = group++};
        const auto change = [](SearchPoint& point, const Level& level) {
          for (const Change& c : level) {
            const Deck then = point.deck;
            c.apply(point.deck);
            if (point.deck != then) point.changes.push_back(c);
          }
        };
        change(core, layout), change(core, recompute), change(core, {micro_change(micro)});
        if (!is_allowed(core.deck, ranks)) continue;
        if (core.deck.zero.stage < 3) {
          points.push_back(std::move(core));
          continue;
        }
        for (const Level& level : buckets) {
          points.push_back(core);
          change(points.back(), level);
        }
      }
  return points;
}

Recommender::Recommender(const Deck& deck, const MachineProfile& machine, const Placement& placement)
    : deck_(deck), machine_(machine), placement_(placement) {
  for (SearchPoint& at : search_space(deck, machine, placement.ranks())) {
    // Others of its group compute the same and keep the same through the run.
    if (!points_.empty() && points_.back().at.group == at.group) {
      points_.push_back({.at = std::move(at),
                         .group_seconds = points_.back().group_seconds,
                         .least_seconds = points_.back().least_seconds,
                         .kept = points_.back().kept});
      continue;
    }
    const Schedule schedule = build_schedule(request_of(at.deck));
    const double least = least_seconds(schedule, same_in_a_group);
    Point point{.at = std::move(at), .group_seconds = least, .least_seconds = least};
    for (const Buffer& buffer : schedule.buffers)
      if (buffer.life == Life::run) point.kept[static_cast<std::size_t>(buffer.tier)] += buffer.bytes;
    points_.push_back(std::move(point));
  }
  std::ranges::stable_sort(points_, {}, &Point::group_seconds);
}

BuildRequest Recommender::request_of(const Deck& deck) const { return request_for(deck, placement_.mesh, 0, Purpose::training); }

/// Of the lane with most to do. A little less, since a simulation adds in another order.
double Recommender::least_seconds(const Schedule& schedule, std::span<const Lane> of) const {
  const TaskSeconds seconds = task_seconds(schedule, machine_, placement_);
  std::array<double, lane_count> busy{};
  bool sampled = false;
  for (const Program::Phase& phase : schedule.train.phases) {
    const auto s = static_cast<std::size_t>(phase.section);
    sampled |= phase.repeat > repetitions_of_a_point;
    for (std::size_t t = 0; t < seconds[s].size(); ++t)
      busy[static_cast<std::size_t>(schedule.sections[s].tasks[t].lane)] += seconds[s][t] * static_cast<double>(phase.repeat);
  }
  double longest = 0, all = 0;
  for (const Lane lane : of) {
    // Where one repetition stands for many, only compute's own time is sure to count in full.
    const double part = busy[static_cast<std::size_t>(lane)] * (sampled && lane != Lane::compute ? 0.9 : 1);
    longest = std::max(longest, part), all += part;
  }
  return (placement_.lanes_side_by_side || sampled ? longest : all) * (1 - 1e-9);
}

/// Plans a point that may take so long, and predicts it where it fits.
void Recommender::evaluate(Point& point, const MemoryLimits* limits, double most_seconds) {
  const BuildRequest request = request_of(point.at.deck);
  const Schedule schedule = build_schedule(request);
  point.least_seconds = std::max(point.least_seconds, least_seconds(schedule, all_lanes));
  if (point.least_seconds > most_seconds) return;
  // Other limits of what is gathered ahead and kept may come to the same tasks. Those of fewer changes come first.
  if (!point.is_known && !known_.emplace(point.at.group, schedule.hash().hex()).second) point.is_another = true;
  point.is_known = true;
  if (point.is_another) return;
  const MemoryPlan plan = place(schedule);
  point.bytes = plan.bytes, ++planned_;
  if (!limits || !shortfalls(plan.bytes, *limits).empty()) return;
  point.prediction = predict(request, schedule, plan, machine_, placement_, false, repetitions_of_a_point);
  ++simulated_;
}

bool Recommender::fits(Point& point, const MemoryLimits& limits, double most_seconds) {
  if (point.is_another || !shortfalls(point.bytes ? *point.bytes : point.kept, limits).empty()) return false;
  if (!point.prediction) evaluate(point, &limits, most_seconds);
  return point.prediction && shortfalls(*point.bytes, limits).empty();
}

bool Recommender::before(const Point& a, const Point& b) {
  const auto key = [](const Point& p) { return std::pair(p.prediction->step.seconds, p.at.changes.size()); };
  return key(a) < key(b);
}

std::optional<Choice> Recommender::finished(const std::vector<Change>& changes, const Deck& deck, const MemoryLimits& limits) const {
  std::optional<Choice> choice = choice_as_is(deck, machine_, placement_, limits);
  if (choice) choice->changes = changes;
  return choice;
}

Recommendation Recommender::best(const MemoryLimits& limits) {
  planned_ = simulated_ = 0;
  std::vector<const Point*> found;  // fastest first
  const Point* second = nullptr;
  for (Point& point : points_) {
    const double most = second ? second->prediction->step.seconds : std::numeric_limits<double>::infinity();
    if (point.group_seconds > most) break;
    if (point.least_seconds > most || !fits(point, limits, most)) continue;
    const auto place_of = std::ranges::upper_bound(found, &point, [](const Point* a, const Point* b) { return before(*a, *b); });
    found.insert(place_of, &point);
    const auto other = std::ranges::find_if(found, [&](const Point* p) { return p->at.group != found.front()->at.group; });
    second = other == found.end() ? nullptr : *other;
  }
  Recommendation result{.first = {}, .runner_up = {}, .choices = static_cast<std::int64_t>(points_.size())};
  if (found.empty()) {
    add_least(result);
  } else {
    result.first = finished(found.front()->at.changes, found.front()->at.deck, limits);
    if (second) result.runner_up = finished(second->at.changes, second->at.deck, limits);
    try_autos(result, found, limits);
  }
  result.planned = planned_, result.simulated = simulated_;
  return result;
}

void Recommender::add_least(Recommendation& result) {
  const auto is_less = [&](const TierBytes& bytes) {
    return memory_bytes(result.least) == 0 || memory_bytes(bytes) < memory_bytes(result.least);
  };
  for (Point& point : points_) {
    if (point.is_another || !is_less(point.kept)) continue;
    if (!point.bytes) evaluate(point, nullptr, std::numeric_limits<double>::infinity());
    if (point.bytes && is_less(*point.bytes)) result.least = *point.bytes;
  }
}

void Recommender::try_autos(Recommendation& result, const std::vector<const Point*>& found, const MemoryLimits& limits) {
  const Change change = recompute_change(deck_.activation, "auto");
  std::size_t tried = 0;
  for (const Point* point : found) {
    if (tried == most_autos) break;
    Deck deck = point->at.deck;
    if (deck.activation.recompute == "none") continue;
    change.apply(deck);
    if (std::ranges::any_of(autos_, [&](const auto& known) { return known.second == deck; })) continue;
    std::vector<Change> changes = point->at.changes;
    std::erase_if(changes, [](const Change& c) { return c.text.starts_with("activation.recompute"); });
    if (deck_.activation.recompute != "auto") changes.push_back(change);
    autos_.emplace_back(std::move(changes), std::move(deck)), ++tried;
  }
  // Those of earlier calls are among them: with more memory than then they are no slower.
  for (const auto& [changes, deck] : autos_) {
    const std::optional<Choice> choice = finished(changes, deck, limits);
    if (!choice) continue;
    const auto is_faster = [&](const std::optional<Choice>& than) {
      return !than || choice->prediction.step.seconds < than->prediction.step.seconds;
    };
    if (is_faster(result.first)) {
      result.runner_up = std::exchange(result.first, choice);
    } else if (is_faster(result.runner_up)) {
      result.runner_up = choice;
    }
  }
}

std::optional<Choice> choice_as_is(const Deck& deck, const MachineProfile& machine, const Placement& placement,
                                   const MemoryLimits& limits) {
  BuildRequest request = request_for(deck, placement.mesh, 0, Purpose::training);
  settle_recompute(request, limits);
  const Schedule schedule = build_schedule(request);
  const MemoryPlan plan = place(schedule);
  if (!shortfalls(plan.bytes, limits).empty()) return std::nullopt;
  return Choice{.changes = {},
                .deck = deck,
                .bytes = plan.bytes,
                .prediction = predict(request, schedule, plan, machine, placement),
                .recompute = request.recompute};
}

std::string why_slower(const Prediction& first, const Prediction& second) {
  if (second.step.seconds <= first.step.seconds) return "as fast, with more changes of the deck";
  const auto a = parts_of(first), b = parts_of(second);
  std::size_t most = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (b[i].seconds - a[i].seconds > b[most].seconds - a[most].seconds) most = i;
  return fmt::format("{} more of {}", time_text(b[most].seconds - a[most].seconds), b[most].name);
}

}  // namespace tessera
