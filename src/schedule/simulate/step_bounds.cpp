#include "schedule/simulate/step_bounds.hpp"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "schedule/build/micro_batches.hpp"
#include "schedule/build/room.hpp"
#include "schedule/plan/limits.hpp"

namespace tessera {
namespace {

using LaneSeconds = std::array<double, lane_count>;

/// A simulation adds in another order.
constexpr double rounding = 1 - 1e-9;
/// Of a step of which one repetition stands for many.
constexpr double sampling = 0.9;

constexpr std::size_t index(Lane lane) { return static_cast<std::size_t>(lane); }
constexpr std::size_t index(Tier tier) { return static_cast<std::size_t>(tier); }
constexpr std::size_t compute = index(Lane::compute);

/// Lanes whose work follows from the layout alone, and those on which kept streams leave and return.
constexpr Lane of_layout[] = {Lane::reduce, Lane::download, Lane::cpu_optimizer, Lane::disk_write};
constexpr Lane of_streams[] = {Lane::upload, Lane::download, Lane::cpu_optimizer, Lane::disk_read, Lane::disk_write};

LaneSeconds lanes_in(const Section& section, const std::vector<double>& seconds) {
  LaneSeconds busy{};
  for (std::size_t t = 0; t < section.tasks.size(); ++t) busy[index(section.tasks[t].lane)] += seconds[t];
  return busy;
}

void add(LaneSeconds& sum, const LaneSeconds& more, double times = 1) {
  for (std::size_t l = 0; l < sum.size(); ++l) sum[l] += times * more[l];
}

/// Ranges of buffers that tasks wrote which wait for the norm.
class Written {
 public:
  bool touched_by(const Task& task) const {
    return std::ranges::any_of(task.uses, [&](const Use& use) {
      const auto known = ranges_.find(use.buffer);
      return use.bytes > 0 && !use.in_slot && known != ranges_.end() &&
             std::ranges::any_of(known->second, [&](const Range& r) { return r.begin < use.offset + use.bytes && use.offset < r.end; });
    });
  }
  void add(const Task& task) {
    for (const Use& use : task.uses) {
      if (use.access == Access::read || use.in_slot || use.bytes == 0) continue;
      std::vector<Range>& known = ranges_[use.buffer];
      const Range range{use.offset, use.offset + use.bytes};
      if (std::ranges::none_of(known, [&](const Range& r) { return r.begin <= range.begin && range.end <= r.end; })) known.push_back(range);
    }
  }

 private:
  std::unordered_map<int, std::vector<Range>> ranges_;
};

/// Of the last section: what compute does until the norm is known, and what each lane can only do then.
struct AroundNorm {
  double compute_before = 0;
  LaneSeconds after{};
};
AroundNorm around_norm(const Section& section, const std::vector<double>& seconds) {
  AroundNorm found;
  Written written;
  bool known = false;
  for (std::size_t t = 0; t < section.tasks.size(); ++t) {
    const Task& task = section.tasks[t];
    const bool is_norm = std::holds_alternative<FinishStep>(task.op);
    if (!known && task.lane == Lane::compute) found.compute_before += seconds[t];
    if (known && written.touched_by(task)) {
      found.after[index(task.lane)] += seconds[t];
      written.add(task);
    }
    if (is_norm) known = true, written.add(task);
  }
  return found;
}

/// Of the memory that kernels use.
Tier kernel_tier(const Deck& deck) { return kernel_memory(deck) == MemoryKind::device ? Tier::device : Tier::host; }

/// Activations that live at each moment, by tier.
std::array<std::vector<std::int64_t>, tier_count> live_activations(const Schedule& schedule) {
  const Lives lives = lives_of(schedule);
  std::array<std::vector<std::int64_t>, tier_count> live;
  for (auto& of_tier : live) of_tier.assign(static_cast<std::size_t>(moments_of(schedule)) + 1, 0);
  for (std::size_t b = 0; b < lives.size(); ++b) {
    const Buffer& buffer = schedule.buffers[b];
    if (buffer.category != Category::activations || buffer.life == Life::run) continue;
    for (const Moments& life : lives[b]) {
      live[index(buffer.tier)][static_cast<std::size_t>(life.first)] += placed_bytes(buffer);
      live[index(buffer.tier)][static_cast<std::size_t>(life.last) + 1] -= placed_bytes(buffer);
    }
  }
  for (auto& of_tier : live)
    for (std::size_t m = 1; m < of_tier.size(); ++m) of_tier[m] += of_tier[m - 1];
  return live;
}

/// Bytes that a pass itself uses beside activations and what lives through the run.
std::int64_t used_beside(const Schedule& schedule, const Task& task, bool workspace_alone) {
  std::vector<int> buffers;
  for (const Use& use : task.uses)
    if (use.bytes > 0) buffers.push_back(use.buffer);
  std::ranges::sort(buffers);
  buffers.erase(std::unique(buffers.begin(), buffers.end()), buffers.end());
  std::int64_t bytes = 0;
  for (const int b : buffers) {
    const Buffer& buffer = schedule.buffers[static_cast<std::size_t>(b)];
    if (buffer.life == Life::run || buffer.category == Category::activations) continue;
    if (!workspace_alone || buffer.category == Category::workspace) bytes += placed_bytes(buffer);
  }
  return bytes;
}

}  // namespace

double least_seconds(const Schedule& schedule, const TaskSeconds& seconds, bool lanes_side_by_side) {
  LaneSeconds busy{};
  double before = 0, all = 0;
  bool sampled = false;
  for (const Program::Phase& phase : schedule.program(ProgramKind::train).phases) {
    const auto s = static_cast<std::size_t>(phase.section);
    const LaneSeconds once = lanes_in(schedule.sections[s], seconds[s]);
    add(busy, once, static_cast<double>(phase.repeat));
    before += once[compute] * static_cast<double>(phase.repeat);
    sampled |= phase.repeat > SimulationOptions{}.most_repetitions;
  }
  const auto end = static_cast<std::size_t>(schedule.program(ProgramKind::train).phases.back().section);
  const AroundNorm norm = around_norm(schedule.sections[end], seconds[end]);
  before += norm.compute_before - lanes_in(schedule.sections[end], seconds[end])[compute];
  for (const double lane : busy) all += lane;
  const double longest = std::max(std::ranges::max(busy), before + std::ranges::max(norm.after));
  return (lanes_side_by_side ? longest : all) * (sampled ? sampling : 1) * rounding;
}

TierBytes least_bytes(const Schedule& schedule) {
  const Lives lives = lives_of(schedule);
  TierBytes most{};
  std::array<std::vector<std::int64_t>, tier_count> change;
  for (auto& of_tier : change) of_tier.assign(static_cast<std::size_t>(moments_of(schedule)) + 1, 0);
  for (std::size_t b = 0; b < lives.size(); ++b) {
    const Buffer& buffer = schedule.buffers[b];
    if (buffer.life == Life::run) continue;
    for (const Moments& life : lives[b]) {
      change[index(buffer.tier)][static_cast<std::size_t>(life.first)] += placed_bytes(buffer);
      change[index(buffer.tier)][static_cast<std::size_t>(life.last) + 1] -= placed_bytes(buffer);
    }
  }
  for (std::size_t t = 0; t < tier_count; ++t) {
    std::int64_t live = 0;
    for (const std::int64_t by : change[t]) most[t] = std::max(most[t], live += by);
  }
  const TierBytes kept = kept_bytes(schedule);
  for (std::size_t t = 0; t < tier_count; ++t) most[t] += kept[t];
  return most;
}

SearchBounds::SearchBounds(const std::vector<SearchPoint>& points, const MachineProfile& machine, const Placement& placement)
    : machine_(machine), placement_(placement) {
  // A layout is looked at with the smallest micro-batches and the first of the ways with activations, which keeps all of them in place.
  for (const SearchPoint& point : points) {
    activations_.try_emplace({point.activation, point.deck.batch.micro});
    layouts_.resize(std::max(layouts_.size(), point.layout + 1));
  }
  std::vector<const SearchPoint*> smallest(layouts_.size());
  for (const SearchPoint& point : points) {
    const SearchPoint*& known = smallest[point.layout];
    if (point.activation == 0 && (!known || point.deck.batch.micro < known->deck.batch.micro)) known = &point;
  }
  for (std::size_t l = 0; l < layouts_.size(); ++l) layouts_[l] = look_at_layout(smallest[l]->deck);
  for (auto& [key, known] : activations_) {
    const auto point =
        std::ranges::find_if(points, [&](const SearchPoint& p) { return std::pair(p.activation, p.deck.batch.micro) == key; });
    known = look_at_activation(point->deck);
  }
}

SearchBounds::OfLayout SearchBounds::look_at_layout(const Deck& deck) const {
  BuildRequest request = request_for(deck, placement_.mesh, 0, Purpose::training);
  request.evaluation_micro_batches = 0;
  Schedule schedule = build_schedule(request);
  leave_no_room(schedule);  // other points may have faster collectives, and other products beside them
  const TaskSeconds seconds = task_seconds(schedule, machine_, placement_);
  OfLayout found{.steps = accumulation_steps(deck, batch_ranks(placement_.mesh)), .kernels = kernel_tier(deck)};
  for (const Buffer& buffer : schedule.buffers)
    if (buffer.life == Life::run && buffer.category != Category::inputs) found.kept[index(buffer.tier)] += placed_bytes(buffer);
  const std::vector<Program::Phase>& phases = schedule.program(ProgramKind::train).phases;
  const auto lanes_of_phase = [&](std::size_t p) {
    const auto s = static_cast<std::size_t>(phases[p].section);
    return lanes_in(schedule.sections[s], seconds[s]);
  };
  found.once = lanes_of_phase(0);
  add(found.once, lanes_of_phase(phases.size() - 1));
  // Between them stand the first micro-batch, those that are alike, and the last one, as many as there are.
  found.first = lanes_of_phase(1), found.last = lanes_of_phase(phases.size() - 2);
  if (phases.size() == 5) found.middle = lanes_of_phase(2);
  const auto end = static_cast<std::size_t>(phases.back().section);
  found.after_norm = around_norm(schedule.sections[end], seconds[end]).after;
  return found;
}

SearchBounds::OfActivation SearchBounds::look_at_activation(Deck deck) const {
  // One micro-batch, where all that passes use beside activations comes and goes: gathered units and gradients.
  deck.batch.global = deck.batch.micro, deck.zero.stage = 3, deck.kernels.pack_weights = false;
  deck.zero.offload_optimizer.device = deck.zero.offload_param.device = OffloadDevice::none;
  deck.zero.prefetch_bucket_size = deck.zero.max_reuse_distance = 0;
  BuildRequest request = request_for(deck, placement_.mesh, 0, Purpose::training);
  request.evaluation_micro_batches = 0;
  Schedule schedule = build_schedule(request);
  leave_no_room(schedule);  // other points may have faster collectives, and other products beside them
  const TaskSeconds seconds = task_seconds(schedule, machine_, placement_);
  const auto live = live_activations(schedule);
  const std::size_t here = index(kernel_tier(deck));
  OfActivation found;
  std::size_t moment = 0;
  for (std::size_t s = 0; s < schedule.sections.size(); ++s)
    for (std::size_t t = 0; t < schedule.sections[s].tasks.size(); ++t, ++moment) {
      const Task& task = schedule.sections[s].tasks[t];
      for (std::size_t tier = 0; tier < tier_count; ++tier)
        if (tier != here) found.below[tier] = std::max(found.below[tier], live[tier][moment]);
      if (std::ranges::find(of_streams, task.lane) != std::end(of_streams)) found.streams[index(task.lane)] += seconds[s][t];
      const auto* run = std::get_if<RunPass>(&task.op);
      if (!run) continue;
      found.bytes = std::max(found.bytes, live[here][moment] + used_beside(schedule, task, true));
      found.bytes_at_stage_3 = std::max(found.bytes_at_stage_3, live[here][moment] + used_beside(schedule, task, false));
      // The first segment's backward pass clears its table of gradients at some stages and not at others.
      if (run->kind != PassKind::backward || schedule.passes[static_cast<std::size_t>(run->pass)].segment.segment > 0)
        found.passes += seconds[s][t];
    }
  return found;
}

/// Of a step with so many micro-batches a rank, on lanes that follow from the layout.
SearchBounds::LaneSeconds SearchBounds::lanes_of(const OfLayout& layout, std::int64_t steps) const {
  LaneSeconds all = layout.once;
  if (steps > 1 || layout.steps == 1) add(all, layout.first);
  if (steps > 1) add(all, layout.last);
  if (steps > 2) add(all, layout.middle, static_cast<double>(steps - 2));
  LaneSeconds known{};
  for (const Lane lane : of_layout) known[index(lane)] = all[index(lane)];
  return known;
}

double SearchBounds::seconds_of(const SearchPoint& point) const {
  const OfLayout& layout = layouts_[point.layout];
  const OfActivation& of = activations_.at({point.activation, point.deck.batch.micro});
  const std::int64_t steps = accumulation_steps(point.deck, batch_ranks(placement_.mesh));
  LaneSeconds lanes = lanes_of(layout, steps);
  add(lanes, of.streams, static_cast<double>(steps));
  const double passes = of.passes * static_cast<double>(steps);
  const bool sampled = steps > SimulationOptions{}.most_repetitions;
  double all = passes + layout.after_norm[compute];
  for (const double lane : lanes) all += lane;
  const double longest = std::max(std::ranges::max(lanes), passes + std::ranges::max(layout.after_norm));
  return (placement_.lanes_side_by_side ? longest : all) * (sampled ? sampling : 1) * rounding;
}

Least SearchBounds::of(const SearchPoint& point) const {
  const OfActivation& activation = activations_.at({point.activation, point.deck.batch.micro});
  const OfLayout& layout = layouts_[point.layout];
  Least least{.seconds = seconds_of(point), .bytes = layout.kept};
  // Host ranks whose activations alone leave kernels' memory have all the rest there.
  if (layout.kernels != kernel_tier(point.deck))
    for (const Tier tier : {Tier::host, Tier::shared}) least.bytes[index(Tier::device)] += std::exchange(least.bytes[index(tier)], 0);
  for (std::size_t t = 0; t < tier_count; ++t) least.bytes[t] += activation.below[t];
  least.bytes[index(kernel_tier(point.deck))] += point.deck.zero.stage == 3 ? activation.bytes_at_stage_3 : activation.bytes;
  return least;
}

}  // namespace tessera
