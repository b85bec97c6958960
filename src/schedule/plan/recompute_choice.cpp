#include "schedule/plan/recompute_choice.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "model/record/leave_frozen.hpp"
#include "schedule/plan/memory_plan.hpp"

namespace tessera {
namespace {

using ChoicePlace = RecomputeChoices::Place;

/// Bytes of what kernels work on that are held while the loss is made, when all that is kept is there, without gathered units.
std::int64_t bytes_at_the_loss(const Schedule& schedule, MemoryKind kind) {
  const Lives lives = lives_of(schedule);
  std::int64_t moment = 0, most = 0;
  for (const Section& section : schedule.sections)
    for (const Task& task : section.tasks) {
      const auto* run = std::get_if<RunPass>(&task.op);
      if (run && run->kind == PassKind::backward && schedule.segment_of(schedule.passes[static_cast<std::size_t>(run->pass)]).joint) {
        TierBytes bytes{};
        for (std::size_t b = 0; b < lives.size(); ++b) {
          const Buffer& buffer = schedule.buffers[b];
          const auto then = [&](const Moments& life) { return life.first <= moment && moment <= life.last; };
          if (buffer.category != Category::gathered && (buffer.life == Life::run || std::ranges::any_of(lives[b], then)))
            bytes[static_cast<std::size_t>(buffer.tier)] += buffer.bytes;
        }
        most = std::max(most, bytes_of(bytes, kind));
      }
      ++moment;
    }
  return most;
}

/// Of each of a stage's `layers` layers the most bytes of what kernels work on in a call of its backward pass.
std::vector<std::int64_t> bytes_in_backward(const Schedule& schedule, MemoryKind kind, const Stage& stage, std::int64_t layers) {
  const Lives lives = lives_of(schedule);
  std::vector<std::int64_t> more(static_cast<std::size_t>(moments_of(schedule)) + 1);  // than at the moment before
  for (std::size_t b = 0; b < lives.size(); ++b) {
    const Buffer& buffer = schedule.buffers[b];
    TierBytes bytes{};
    bytes[static_cast<std::size_t>(buffer.tier)] = buffer.bytes;
    const std::int64_t counted = bytes_of(bytes, kind);
    if (buffer.life == Life::run) more.front() += counted;
    if (buffer.life == Life::run || counted == 0) continue;
    for (const Moments& life : lives[b])
      more[static_cast<std::size_t>(life.first)] += counted, more[static_cast<std::size_t>(life.last) + 1] -= counted;
  }
  std::vector<std::int64_t> most(static_cast<std::size_t>(layers));
  std::int64_t held = 0;
  std::size_t moment = 0;
  for (const Section& section : schedule.sections)
    for (const Task& task : section.tasks) {
      held += more[moment++];
      const auto* run = std::get_if<RunPass>(&task.op);
      if (!run || run->kind != PassKind::backward) continue;
      const Segment& segment = schedule.segment_of(schedule.passes[static_cast<std::size_t>(run->pass)]);
      const std::int64_t layer = segment.layer - stage.layers.front().begin;
      if (layer >= 0 && layer < layers) most[static_cast<std::size_t>(layer)] = std::max(most[static_cast<std::size_t>(layer)], held);
    }
  return most;
}

/// A place's plan by what it lacks: the largest shortfall of any kind of memory; 0 or less where it fits.
class Trials {
 public:
  Trials(const BuildRequest& request, const RecomputeChoices& choices, const MemoryLimits& limits)
      : request_(request), choices_(choices), limits_(limits) {
    make_again(all(0));
    // A stage of a pipeline keeps several micro-batches, and only the last one makes a loss.
    if (const auto& limit = limits[static_cast<std::size_t>(kind_)]; limit && request.stage.count == 1 && choices.bounded) {
      limit_ = limit->bytes;
      least_lacking_ = bytes_at_the_loss(build_schedule(request_), kind_) - *limit_;
    }
  }

  std::int64_t lacking(const ChoicePlace& asked) {
    const ChoicePlace at = asked.n == choices_.layers ? all(asked.early) : asked;
    const auto [it, is_new] = lacking_.try_emplace(std::tuple(at.early, at.late, at.n), 0);
    if (!is_new) return it->second;
    make_again(at);
    const Schedule schedule = build_schedule(request_);
    const TierBytes bytes = place(schedule).bytes;
    if (limit_ && at.early == at.late) backward_[at.early] = bytes_in_backward(schedule, kind_, choices_.stage, choices_.layers);
    std::int64_t most = std::numeric_limits<std::int64_t>::min();
    for (const MemoryKind kind : all_memory_kinds)
      if (const auto& limit = limits_[static_cast<std::size_t>(kind)]) most = std::max(most, bytes_of(bytes, kind) - limit->bytes);
    return it->second = most;
  }
  bool fits(const ChoicePlace& at) { return cannot_fit(at) ? false : lacking(at) <= 0; }
  ChoicePlace all(int level) const { return {level, level, choices_.layers}; }

 private:
  void make_again(const ChoicePlace& at) { request_.recompute.assign(static_cast<std::size_t>(request_.stage.count), choices_.at(at)); }
  /// Known without a plan of its own: by what is kept until the loss, and by what all layers need at either level. When a late layer goes
  /// backward the early ones have kept what they do; when an early one does, the late ones hold nothing any more.
  bool cannot_fit(const ChoicePlace& at) {
    if (!limit_) return false;
    const auto kept = [&](int level) { return choices_.levels[static_cast<std::size_t>(level)].bytes; };
    const auto saved = [&](int level) { return kept(0) - kept(level); };
    if (least_lacking_ > at.n * saved(at.early) + (choices_.layers - at.n) * saved(at.late)) return true;
    if (at.early == at.late || at.n == choices_.layers) return false;
    // What is kept over a span of layers is a mean: a layer's room is left for that. The layers beside the border are not asked,
    // for whom units of the other level are gathered.
    const auto spans = [&](int level) { return choices_.levels[static_cast<std::size_t>(level)].level.every > 1; };
    const std::int64_t room = *limit_ + (spans(at.early) || spans(at.late) ? kept(0) : 0);
    const std::vector<std::int64_t>&early = in_backward(at.early), &late = in_backward(at.late);
    for (std::int64_t i = 0; i + 2 < at.n; ++i)
      if (early[static_cast<std::size_t>(i)] > room) return true;
    for (std::int64_t i = at.n + 2; i < choices_.layers; ++i)
      if (late[static_cast<std::size_t>(i)] - at.n * (kept(at.late) - kept(at.early)) > room) return true;
    return false;
  }
  const std::vector<std::int64_t>& in_backward(int level) {
    lacking(all(level));
    return backward_.at(level);
  }

  BuildRequest request_;
  const RecomputeChoices& choices_;
  const MemoryLimits& limits_;
  MemoryKind kind_ = kernel_memory(request_.deck);
  std::optional<std::int64_t> limit_;                  ///< of that kind, where bounds are known without a plan
  std::map<int, std::vector<std::int64_t>> backward_;  ///< by level
  std::int64_t least_lacking_ = 0;                     ///< of a plan that drops nothing
  std::map<std::tuple<int, int, std::int64_t>, std::int64_t> lacking_;
};

/// Fewest early layers, up to `most`, with which a mixture fits; 0: none does. More of them keep less, but a level that makes much again at
/// once needs room for it when the last of them go backward: so places up to `most` are asked first, and then the gap before the one that
/// fits. All places where there are few.
std::int64_t fewest_layers(Trials& trials, int early, int late, std::int64_t most) {
  constexpr std::int64_t asked = 16;
  const std::int64_t step = trials.fits({early, late, most}) ? most : std::max<std::int64_t>(1, ceil_div(most, asked));
  for (std::int64_t n = step; n <= most; n += step) {
    if (!trials.fits({early, late, n})) continue;
    for (std::int64_t too_few = n - step; n - too_few > 1;) {
      const std::int64_t middle = too_few + (n - too_few) / 2;
      (trials.fits({early, late, middle}) ? n : too_few) = middle;
    }
    return n;
  }
  return 0;
}

/// Two levels of which neither is the answer alone, with what they cost about: plans grow by about the same bytes a layer.
struct Pair {
  int early, late;
  std::pair<double, double> estimate;
};

std::vector<Pair> pairs_of(Trials& trials, const RecomputeChoices& choices) {
  std::vector<Pair> pairs;
  const int count = static_cast<int>(choices.levels.size());
  for (int early = 1; early < count; ++early)
    for (int late = 0; late < early; ++late) {
      const std::int64_t with = trials.lacking(trials.all(early)), without = trials.lacking(trials.all(late));
      if (without <= 0) continue;
      const double share = with > 0 ? 1 : static_cast<double>(without) / static_cast<double>(without - with);
      const auto n = static_cast<std::int64_t>(share * static_cast<double>(choices.layers));
      pairs.push_back({early, late, choices.cost({early, late, n})});
    }
  std::ranges::stable_sort(pairs, {}, &Pair::estimate);
  return pairs;
}

/// The number of the model's layers up to which the first `n` of a stage reach.
std::int64_t end_of_first(const Stage& stage, std::int64_t n) {
  for (const Range& run : stage.layers) {
    if (n <= run.size()) return n > 0 ? run.begin + n : 0;
    n -= run.size();
  }
  return stage.layers.back().end;
}

/// Of the embedding, the stage's layers and the head, those that may have no backward pass where tensors above them alone are trained.
std::size_t segments_at_the_bottom(const std::vector<Segment>& segments, const Stage& stage) {
  if (!stage.first()) return 0;
  if (stage.count == 1) return segments.size();
  return 1 + static_cast<std::size_t>(
                 std::ranges::count_if(segments, [&](const Segment& s) { return s.layer >= 0 && stage.chunk_of(s.layer) == 0; }));
}

}  // namespace

RecomputeChoices::RecomputeChoices(const BuildRequest& request) : stage(request.stage) {
  std::vector<Segment> segments = model_segments(model_shape(request.deck));
  keep = kept_values(segments, request.deck.activation.keep);
  if (const Layout all = make_layout(parameter_table(request.deck.model), 1, 0); std::ranges::any_of(all.units, &Unit::frozen)) {
    std::erase_if(segments, [&](const Segment& segment) { return segment.layer >= 0 && stage.chunk_of(segment.layer) < 0; });
    leave_frozen(segments, all, segments_at_the_bottom(segments, stage));
    bounded = representatives_have_all_calls(segments);
    // Layers without a backward pass keep nothing.
    const auto lowest = std::ranges::find_if(segments, [](const Segment& segment) { return !segment.backward.empty(); });
    Range& bottom = stage.layers.front();
    if (lowest->layer >= 0) bottom.begin = std::max<std::int64_t>(bottom.begin, lowest->layer);
    if (lowest->joint) bottom.begin = bottom.end;
  }
  for (const Range& run : stage.layers) layers += run.size();
  levels = recompute_levels(segments, keep);
}

RecomputeChoice RecomputeChoices::at(const Place& place) const {
  const auto level = [&](int i) { return levels[static_cast<std::size_t>(i)].level; };
  return {.early = level(place.early), .late = level(place.late), .layers = end_of_first(stage, place.n), .keep = keep};
}

std::pair<double, double> RecomputeChoices::cost(const Place& place) const {
  const LevelCost &early = levels[static_cast<std::size_t>(place.early)], &late = levels[static_cast<std::size_t>(place.late)];
  const auto sum = [&](double a, double b) { return static_cast<double>(place.n) * a + static_cast<double>(layers - place.n) * b; };
  return {sum(early.flops, late.flops), sum(early.calls, late.calls)};
}

RecomputeChoices::Place choose_recompute(const BuildRequest& request, const RecomputeChoices& choices, const MemoryLimits& limits) {
  Trials trials(request, choices, limits);
  std::optional<ChoicePlace> best;
  const auto offer = [&](const ChoicePlace& place) {
    if (!best || choices.cost(place) < choices.cost(*best)) best = place;
  };
  // Levels that keep less may still need more while they make things again, so each is asked.
  for (int level = 0; level < static_cast<int>(choices.levels.size()) && !best; ++level)
    if (trials.fits(trials.all(level))) offer(trials.all(level));
  // Of a pipeline there are as many searches as stages, and one that finds nothing takes the longest: no mixture alone is looked for.
  if (!best && request.stage.count > 1) return trials.all(static_cast<int>(choices.levels.size()) - 1);
  for (const Pair& pair : pairs_of(trials, choices)) {
    // The most early layers that would still be an improvement.
    std::int64_t most = choices.layers;
    while (best && most > 0 && choices.cost({pair.early, pair.late, most}) >= choices.cost(*best)) --most;
    if (const std::int64_t n = most > 0 ? fewest_layers(trials, pair.early, pair.late, most) : 0; n > 0) offer({pair.early, pair.late, n});
  }
  return best ? *best : trials.all(static_cast<int>(choices.levels.size()) - 1);
}

std::vector<ChoicePlace> choose_for_stages(const BuildRequest& request, const MemoryLimits& limits) {
  std::vector<ChoicePlace> places;
  const int each = request.mesh.ranks() / request.stage.count;
  for (int stage = 0; stage < request.stage.count; ++stage) {
    const BuildRequest of_stage = request_like(request, stage * each);
    places.push_back(choose_recompute(of_stage, RecomputeChoices(of_stage), limits));
  }
  return places;
}

void take_places(BuildRequest& request, const std::vector<ChoicePlace>& places) {
  std::vector<RecomputeChoice> chosen;
  const int each = request.mesh.ranks() / request.stage.count;
  for (std::size_t stage = 0; stage < places.size(); ++stage)
    chosen.push_back(RecomputeChoices(request_like(request, static_cast<int>(stage) * each)).at(places[stage]));
  request.recompute = std::move(chosen);
}

void settle_recompute(BuildRequest& request, const MemoryLimits& limits) {
  if (!request.training() || request.deck.activation.recompute != Recompute::automatic) return;
  take_places(request, choose_for_stages(request, limits));
}

void settle_own_recompute(BuildRequest& request, const MemoryLimits& limits) {
  if (!request.training() || request.deck.activation.recompute != Recompute::automatic) return;
  const RecomputeChoices choices(request);
  request.recompute.assign(static_cast<std::size_t>(request.stage.count), choices.at(choose_recompute(request, choices, limits)));
}

void drop_most(BuildRequest& request) {
  if (!request.training() || request.deck.activation.recompute != Recompute::automatic) return;
  const RecomputeChoices choices(request);
  const int last = static_cast<int>(choices.levels.size()) - 1;
  request.recompute.assign(static_cast<std::size_t>(request.stage.count), choices.at({last, last, choices.layers}));
}

std::string describe(const RecomputeChoice& choice, const Stage& stage) {
  std::int64_t layers = 0, early = 0;
  for (const Range& run : stage.layers) {
    layers += run.size();
    early += std::clamp<std::int64_t>(choice.layers - run.begin, 0, run.size());
  }
  if (early == layers || choice.early == choice.late) return describe(early > 0 ? choice.early : choice.late);
  if (early == 0) return describe(choice.late);
  return fmt::format("{} in the first {} of {} layers, {} in the others", describe(choice.early), early, layers, describe(choice.late));
}

}  // namespace tessera
