#include "schedule/build/pipeline_order.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "base/check.hpp"

namespace tessera {
namespace {

constexpr std::int64_t nothing = -1;

/// A pass of a micro-batch through a chunk.
struct StagePlace {
  int chunk = 0;
  std::int64_t micro = nothing;
  bool there() const { return micro != nothing; }
};
/// What a stage does between two looks at its neighbours.
struct Turn {
  StagePlace forward = {}, backward = {}, weights = {};
};

/// Where warm-up and cool-down are as in 1F1B: `ahead` forward passes more than backward ones, `behind` gradients of weights fewer.
std::vector<Turn> turns_of_micro_batches(std::int64_t A, std::int64_t ahead, bool parts, std::int64_t behind) {
  std::vector<Turn> turns;
  for (std::int64_t m = 0; m < ahead; ++m) turns.push_back({.forward = {0, m}});
  for (std::int64_t m = 0; m < A; ++m) {
    Turn& turn = turns.emplace_back(Turn{.backward = {0, m}});
    if (m + ahead < A) turn.forward = {0, m + ahead};
    if (parts && m >= behind) turn.weights = {0, m - behind};
  }
  if (parts)
    for (std::int64_t m = A - behind; m < A; ++m) turns.push_back({.weights = {0, m}});
  return turns;
}

/// All passes in one direction: of a group of micro-batches through one chunk, then through the next one.
std::vector<StagePlace> through_chunks(std::int64_t A, const Stage& stage, bool backward) {
  const int chunks = stage.chunks();
  const std::int64_t groups = std::max<std::int64_t>(1, A / stage.count);
  std::vector<StagePlace> places;
  for (std::int64_t g = 0, first = 0; g < groups; ++g) {
    const std::int64_t end = first + A / groups + (g < A % groups ? 1 : 0);
    for (int c = 0; c < chunks; ++c)
      for (std::int64_t m = first; m < end; ++m) places.push_back({backward ? chunks - 1 - c : c, m});
    first = end;
  }
  return places;
}

std::vector<Turn> interleaved_turns(std::int64_t A, const Stage& stage) {
  const std::vector<StagePlace> forward = through_chunks(A, stage, false), backward = through_chunks(A, stage, true);
  const auto ahead = static_cast<std::size_t>(std::min<std::int64_t>(
      std::ssize(forward), 2 * (stage.count - 1 - stage.number) + (stage.chunks() - 1) * group_size(A, stage.count)));
  std::vector<Turn> turns;
  for (std::size_t i = 0; i < ahead; ++i) turns.push_back({.forward = forward[i]});
  for (std::size_t i = 0; i < backward.size(); ++i) {
    Turn& turn = turns.emplace_back(Turn{.backward = backward[i]});
    if (i + ahead < forward.size()) turn.forward = forward[i + ahead];
  }
  return turns;
}

PipelinePhase phase_of(const Turn& turn, std::int64_t A) {
  const StagePlace &f = turn.forward, &b = turn.backward, &w = turn.weights;
  PipelinePhase phase{.name = {}, .forward = f.there(), .backward = b.there(), .weights = w.there()};
  phase.first = b.micro == 0, phase.last = b.micro == A - 1;
  phase.first_weights = w.micro == 0, phase.last_weights = w.micro == A - 1;
  phase.micro = b.there() ? b.micro : f.there() ? f.micro : w.micro;
  if (f.there()) phase.ahead = f.micro - phase.micro, phase.forward_chunk = f.chunk;
  if (w.there()) phase.behind = phase.micro - w.micro;
  phase.backward_chunk = b.there() ? b.chunk : w.chunk;
  return phase;
}

auto kind_of(const PipelinePhase& p) {
  return std::tuple(p.forward, p.backward, p.weights, p.first, p.last, p.first_weights, p.last_weights, p.ahead, p.behind, p.forward_chunk,
                    p.backward_chunk);
}

std::string name_of(const PipelinePhase& p, const Stage& stage, std::int64_t A, bool parts) {
  std::string name;
  if (stage.chunks() > 1) {
    if (p.forward) name += fmt::format("forward {}", p.forward_chunk);
    if (p.forward && p.backward) name += fmt::format(" of {} ahead, ", p.ahead);
    if (p.backward) name += fmt::format("backward {}", p.backward_chunk);
  } else {
    name = !p.forward && !p.backward ? "weights" : !p.backward ? "warm-up" : p.forward ? "micro-batch" : "cool-down";
    if (parts && p.backward && !p.weights) name += " without weights";
  }
  if (p.first && A > 1) name = "first " + name;
  if (p.last && A > 1) name = "last " + name;
  if (p.first_weights && A > 1) name += ", first weights";
  if (p.last_weights && A > 1) name += ", last weights";
  return name;
}

std::vector<PipelinePhase> phases_of(const std::vector<Turn>& turns, const Stage& stage, std::int64_t A, bool parts, bool first_apart) {
  std::vector<PipelinePhase> phases;
  for (const Turn& turn : turns) {
    PipelinePhase next = phase_of(turn, A);
    if (!phases.empty() && !(first_apart && phases.size() == 1 && phases.front().repeat == 1)) {
      PipelinePhase& before = phases.back();
      if (kind_of(before) == kind_of(next) && before.micro + before.repeat == next.micro) {
        ++before.repeat;
        continue;
      }
    }
    next.name = name_of(next, stage, A, parts);
    phases.push_back(std::move(next));
  }
  if (first_apart && phases.size() > 1 && kind_of(phases[0]) == kind_of(phases[1])) phases.front().name = "first " + phases.front().name;
  return phases;
}

}  // namespace

std::vector<PipelinePhase> pipeline_order(const PipelineKeys& keys, const Stage& stage, std::int64_t micro_batches, bool first_apart) {
  const std::int64_t A = micro_batches;
  if (stage.chunks() > 1) return phases_of(interleaved_turns(A, stage), stage, A, false, first_apart);
  const bool parts = keys.schedule == PipelineSchedule::zero_bubble && stage.number > 0;
  const auto ahead = std::min<std::int64_t>(A, stage.count - 1 - stage.number), behind = std::min<std::int64_t>(A, stage.number);
  return phases_of(turns_of_micro_batches(A, ahead, parts, behind), stage, A, parts, first_apart);
}

std::int64_t group_size(std::int64_t micro_batches, int stages) {
  return ceil_div(micro_batches, std::max<std::int64_t>(1, micro_batches / stages));
}

std::vector<PipelinePhase> forward_order(const Stage& stage, std::int64_t micro_batches) {
  std::vector<Turn> turns;
  for (const StagePlace& place : through_chunks(micro_batches, stage, false)) turns.push_back({.forward = place});
  return phases_of(turns, stage, micro_batches, false, false);
}

std::vector<InFlight> in_flight(const std::vector<PipelinePhase>& phases, int chunks) {
  struct Begun {
    std::int64_t forward = 0, backward = 0, weights = 0;
  };
  const bool parts = std::ranges::any_of(phases, &PipelinePhase::weights);
  std::vector<InFlight> most(static_cast<std::size_t>(chunks));
  std::vector<Begun> begun(most.size());
  for (const PipelinePhase& p : phases)
    for (std::int64_t r = 0; r < p.repeat; ++r) {
      const auto f = static_cast<std::size_t>(p.forward_chunk), b = static_cast<std::size_t>(p.backward_chunk);
      if (p.forward) {
        ++begun[f].forward;
        most[f].to_backward = std::max(most[f].to_backward, begun[f].forward - begun[f].backward);
        if (parts) most[f].to_weights = std::max(most[f].to_weights, begun[f].forward - begun[f].weights);
        most[f].crosses |= !p.backward || p.ahead != 0 || f != b;
      }
      if (p.backward) {
        ++begun[b].backward;
        if (parts) most[b].backward_to_weights = std::max(most[b].backward_to_weights, begun[b].backward - begun[b].weights);
      }
      if (p.weights) ++begun[b].weights;
    }
  return most;
}

std::int64_t most_in_flight(const std::vector<PipelinePhase>& phases) {
  const bool parts = std::ranges::any_of(phases, &PipelinePhase::weights);
  std::int64_t now = 0, most = 0;
  for (const PipelinePhase& p : phases)
    for (std::int64_t r = 0; r < p.repeat; ++r) {
      most = std::max(most, now += p.forward);
      now -= parts ? p.weights : p.backward;
    }
  return most;
}

double even_bubble(const PipelineKeys& keys, int stages, std::int64_t micro_batches) {
  const double others = stages - 1, work = static_cast<double>(micro_batches);
  double times = 1;  // as many parts of a micro-batch's time are between two turns
  switch (keys.schedule) {
    case PipelineSchedule::one_forward_one_backward:
      break;
    case PipelineSchedule::interleaved:
      times = static_cast<double>(keys.virtual_stages);
      break;
    case PipelineSchedule::zero_bubble:
      times = 3;
      break;
  }
  return others / (work * times + others);
}

}  // namespace tessera
