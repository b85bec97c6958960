#include "schedule/plan/order.hpp"

#include <algorithm>
#include <numeric>
#include <set>
#include <span>
#include <utility>

namespace tessera {
namespace {

constexpr std::int64_t never = -1;

/// A position in each lane.
using Positions = std::array<std::int64_t, lane_count>;
constexpr Positions nowhere = [] {
  Positions positions{};
  positions.fill(never);
  return positions;
}();

/// Which tasks touched a run of bytes last: positions are numbers of a task within its lane, counted through the whole program.
struct Run {
  int write_lane = 0;
  std::int64_t write = never;
  Positions read = nowhere;
};

/// Runs of a tier's bytes that every use touches whole or not at all.
struct RunRange {
  std::size_t begin = 0, end = 0;
};

/// A use as runs: of each slot that it may touch, in turn.
struct RunsOfUse {
  std::size_t tier = 0, spans = 0;  ///< `spans`: where the first slot's lies
  std::int64_t slots = 1, shift = 0;
  bool reads = true;
};

template <class F>
void for_each_use(const Section& section, F f) {
  for (const Task& task : section.tasks)
    for (const Use& use : task.uses) f(use);
}

class Orderer {
 public:
  Orderer(const Schedule& schedule, const MemoryPlan& plan, const Program& program)
      : schedule_(schedule), plan_(plan), written_slots_(schedule.buffers.size()), touches_(schedule.sections.size()) {
    known_.fill(nowhere);
    for (const Section& section : schedule.sections)
      for_each_use(section, [&](const Use& use) {
        if (use.in_slot && use.access != Access::read) written_slots_[static_cast<std::size_t>(use.buffer)] = true;
      });
    std::set<int> sections;
    for (const auto& phase : program.phases) sections.insert(phase.section);
    for (const int s : sections)
      for_each_use(schedule.sections[static_cast<std::size_t>(s)], [&](const Use& use) {
        for_each_slot(use, [&](std::size_t tier, std::int64_t begin, std::int64_t end) {
          borders_[tier].push_back(begin);
          borders_[tier].push_back(end);
        });
      });
    for (std::size_t tier = 0; tier < tier_count; ++tier) {
      std::ranges::sort(borders_[tier]);
      const auto rest = std::ranges::unique(borders_[tier]);
      borders_[tier].erase(rest.begin(), rest.end());
      runs_[tier].resize(borders_[tier].size());
    }
    for (const int s : sections)
      for (const Task& task : schedule.sections[static_cast<std::size_t>(s)].tasks) {
        std::vector<RunsOfUse>& touches = touches_[static_cast<std::size_t>(s)].emplace_back();
        for (const Use& use : task.uses)
          if (use.bytes != 0) touches.push_back(touch_of(use));
      }
  }

  /// Repetitions after which a section's slots have all come round, and the number of repetitions after which the same ones come again.
  struct Round {
    std::int64_t slots = 1, period = 1;
  };
  Round round_of(const Section& section) const {
    Round round;
    for_each_use(section, [&](const Use& use) {
      const auto b = static_cast<std::size_t>(use.buffer);
      if (!use.in_slot || !written_slots_[b]) return;
      round.slots = std::max(round.slots, schedule_.buffers[b].slots);
      round.period = std::lcm(round.period, schedule_.buffers[b].slots);
    });
    return round;
  }

  /// Of one repetition, which works on micro-batch `micro`.
  std::vector<Waits> run_section(int section, std::int64_t micro) {
    const auto start = count_;
    micro_ = micro;
    const std::vector<Task>& tasks = schedule_.sections[static_cast<std::size_t>(section)].tasks;
    const std::vector<std::vector<RunsOfUse>>& touches = touches_[static_cast<std::size_t>(section)];
    std::vector<Waits> waits;
    waits.reserve(tasks.size());
    for (std::size_t t = 0; t < tasks.size(); ++t) waits.push_back(run_task(static_cast<std::size_t>(tasks[t].lane), touches[t], start));
    return waits;
  }

 private:
  Waits run_task(std::size_t lane, const std::vector<RunsOfUse>& touches, const Positions& start) {
    Positions need = nowhere;
    for (const RunsOfUse& touch : touches)
      for (const Run& run : runs_of(touch)) {
        if (auto& of_writer = need[static_cast<std::size_t>(run.write_lane)]; run.write > of_writer) of_writer = run.write;
        if (!touch.reads)
          for (std::size_t l = 0; l < lane_count; ++l) need[l] = std::max(need[l], run.read[l]);
      }
    for (const RunsOfUse& touch : touches)
      for (Run& run : runs_of(touch)) {
        if (touch.reads)
          run.read[lane] = count_[lane];
        else
          run = {.write_lane = static_cast<int>(lane), .write = count_[lane]};
      }
    Waits waits;
    for (std::size_t other = 0; other < lane_count; ++other) {
      if (other == lane || need[other] <= known_[lane][other]) continue;
      waits[other] = need[other] + 1 - start[other];
      known_[lane][other] = need[other];
    }
    ++count_[lane];
    return waits;
  }

  /// Calls f(tier, begin, end) with the bytes of each slot that a use may touch.
  template <class F>
  void for_each_slot(const Use& use, F f) const {
    if (use.bytes == 0) return;
    const auto b = static_cast<std::size_t>(use.buffer);
    const Buffer& buffer = schedule_.buffers[b];
    const auto tier = static_cast<std::size_t>(buffer.tier);
    const std::int64_t at = plan_.offset[b];
    // A slot that is only read is taken as the whole buffer: nothing is lost, and repetitions are alike.
    if (use.in_slot && !written_slots_[b]) return f(tier, at, at + buffer.bytes);
    for (std::int64_t slot = 0; slot < (use.in_slot ? buffer.slots : 1); ++slot) {
      const std::int64_t begin = at + use.offset + (use.in_slot ? slot * buffer.slot_bytes() : 0);
      f(tier, begin, begin + use.bytes);
    }
  }
  RunsOfUse touch_of(const Use& use) {
    RunsOfUse touch{.spans = spans_.size(), .slots = 0, .shift = use.shift, .reads = use.access == Access::read};
    for_each_slot(use, [&](std::size_t tier, std::int64_t begin, std::int64_t end) {
      const auto run_at = [&](std::int64_t border) {
        return static_cast<std::size_t>(std::ranges::lower_bound(borders_[tier], border) - borders_[tier].begin());
      };
      touch.tier = tier, ++touch.slots;
      spans_.push_back({run_at(begin), run_at(end)});
    });
    return touch;
  }
  /// In the slot whose turn it is.
  std::span<Run> runs_of(const RunsOfUse& touch) {
    const std::int64_t slot = touch.slots == 1 ? 0 : slot_in(touch.slots, micro_ + touch.shift);
    const RunRange& span = spans_[touch.spans + static_cast<std::size_t>(slot)];
    return std::span(runs_[touch.tier]).subspan(span.begin, span.end - span.begin);
  }

  const Schedule& schedule_;
  const MemoryPlan& plan_;
  std::array<std::vector<std::int64_t>, tier_count> borders_;  ///< of runs, ascending
  std::array<std::vector<Run>, tier_count> runs_;              ///< from each border to the next one
  std::vector<RunRange> spans_;
  Positions count_{};
  std::array<Positions, lane_count> known_;                   ///< what a lane has already waited for
  std::vector<bool> written_slots_;                           ///< by buffer: tasks write its slots
  std::vector<std::vector<std::vector<RunsOfUse>>> touches_;  ///< by section, task and use
  std::int64_t micro_ = 0;
};

}  // namespace

OrderedProgram order(const Schedule& schedule, const MemoryPlan& plan, const Program& program) {
  OrderedProgram result;
  std::vector<std::optional<SectionWaits>> last(schedule.sections.size());
  Orderer orderer(schedule, plan, program);
  for (const auto& phase : program.phases) {
    const Section& section = schedule.sections[static_cast<std::size_t>(phase.section)];
    OrderedPhase ordered{.section = phase.section, .repeat = phase.repeat, .micro = phase.micro, .waits = {}};
    // A repetition sees those before it as its past. Once all slots have come round, every later one sees the same. Then as many follow as
    // bring the slots to where the real number of repetitions leaves them.
    const auto [slots, period] = orderer.round_of(section);
    std::int64_t walked = std::min(phase.repeat, slots + 1);
    while ((phase.repeat - walked) % period != 0) ++walked;
    for (std::int64_t r = 0; r < walked; ++r) {
      std::vector<Waits> waits = orderer.run_section(phase.section, phase.micro ? *phase.micro + r : 0);
      if (r > slots) continue;
      std::optional<SectionWaits>& before = last[static_cast<std::size_t>(phase.section)];
      if (!before || before->tasks() != waits) before.emplace(std::move(waits));
      ordered.waits.push_back(*before);
    }
    for (const Task& task : section.tasks) ++ordered.tasks[static_cast<std::size_t>(task.lane)];
    result.push_back(std::move(ordered));
  }
  return result;
}

}  // namespace tessera
