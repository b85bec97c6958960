#include "schedule/plan/order.hpp"

#include <algorithm>
#include <map>
#include <numeric>

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
  std::int64_t end = 0;
  int write_lane = 0;
  std::int64_t write = never;
  Positions read = nowhere;
};

/// Non-overlapping runs of bytes by their begin.
class RunMap {
 public:
  /// Calls f on every run of [begin, end), having cut runs at both borders and filled holes.
  template <class F>
  void visit(std::int64_t begin, std::int64_t end, F f) {
    cut(begin);
    cut(end);
    std::int64_t at = begin;
    while (at < end) {
      auto it = runs_.lower_bound(at);
      if (it == runs_.end() || it->first > at) {
        const std::int64_t stop = it == runs_.end() ? end : std::min(end, it->first);
        it = runs_.emplace(at, Run{.end = stop}).first;
      }
      f(it->second);
      at = it->second.end;
    }
  }

 private:
  void cut(std::int64_t at) {
    auto it = runs_.upper_bound(at);
    if (it == runs_.begin()) return;
    --it;
    if (it->first == at || it->second.end <= at) return;
    Run right = it->second;
    it->second.end = at;
    runs_.emplace(at, right);
  }
  std::map<std::int64_t, Run> runs_;
};

template <class F>
void for_each_use(const Section& section, F f) {
  for (const Task& task : section.tasks)
    for (const Use& use : task.uses) f(use);
}

class Orderer {
 public:
  Orderer(const Schedule& schedule, const MemoryPlan& plan) : schedule_(schedule), plan_(plan), written_slots_(schedule.buffers.size()) {
    known_.fill(nowhere);
    for (const Section& section : schedule.sections)
      for_each_use(section, [&](const Use& use) {
        if (use.in_slot && use.access != Access::read) written_slots_[static_cast<std::size_t>(use.buffer)] = true;
      });
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
  std::vector<Waits> run_section(const Section& section, std::int64_t micro) {
    const auto start = count_;
    micro_ = micro;
    std::vector<Waits> waits;
    for (const Task& task : section.tasks) waits.push_back(run_task(task, start));
    return waits;
  }

 private:
  Waits run_task(const Task& task, const Positions& start) {
    const auto lane = static_cast<std::size_t>(task.lane);
    Positions need = nowhere;
    auto wants = [&](std::size_t other, std::int64_t position) { need[other] = std::max(need[other], position); };
    for (const Use& use : task.uses) {
      if (use.bytes == 0) continue;
      visit(use, [&](Run& t) {
        if (t.write != never) wants(static_cast<std::size_t>(t.write_lane), t.write);
        if (use.access != Access::read)
          for (std::size_t l = 0; l < lane_count; ++l) wants(l, t.read[l]);
      });
    }
    for (const Use& use : task.uses) {
      if (use.bytes == 0) continue;
      visit(use, [&](Run& t) {
        if (use.access == Access::read) {
          t.read[lane] = count_[lane];
        } else {
          t.read = nowhere;
          t.write = count_[lane], t.write_lane = static_cast<int>(lane);
        }
      });
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

  template <class F>
  void visit(const Use& use, F f) {
    const auto b = static_cast<std::size_t>(use.buffer);
    const Buffer& buffer = schedule_.buffers[b];
    // A slot that is only read is taken as the whole buffer: nothing is lost, and repetitions are alike.
    const bool whole = use.in_slot && !written_slots_[b];
    std::int64_t begin = plan_.offset[b];
    if (!whole) begin += use.offset + (use.in_slot ? slot_in(buffer.slots, micro_ + use.shift) * buffer.slot_bytes() : 0);
    maps_[static_cast<std::size_t>(buffer.tier)].visit(begin, begin + (whole ? buffer.bytes : use.bytes), f);
  }

  const Schedule& schedule_;
  const MemoryPlan& plan_;
  std::array<RunMap, tier_count> maps_;
  Positions count_{};
  std::array<Positions, lane_count> known_;  ///< what a lane has already waited for
  std::vector<bool> written_slots_;          ///< by buffer: tasks write its slots
  std::int64_t micro_ = 0;
};

}  // namespace

OrderedProgram order(const Schedule& schedule, const MemoryPlan& plan, const Program& program) {
  OrderedProgram result;
  Orderer orderer(schedule, plan);
  for (const auto& phase : program.phases) {
    const Section& section = schedule.sections[static_cast<std::size_t>(phase.section)];
    OrderedPhase ordered{.section = phase.section, .repeat = phase.repeat, .micro = phase.micro, .waits = {}};
    // A repetition sees those before it as its past. Once all slots have come round, every later one sees the same. Then as many follow as
    // bring the slots to where the real number of repetitions leaves them.
    const auto [slots, period] = orderer.round_of(section);
    std::int64_t walked = std::min(phase.repeat, slots + 1);
    while ((phase.repeat - walked) % period != 0) ++walked;
    for (std::int64_t r = 0; r < walked; ++r) {
      std::vector<Waits> waits = orderer.run_section(section, phase.micro ? *phase.micro + r : 0);
      if (r <= slots) ordered.waits.push_back(std::move(waits));
    }
    for (const Task& task : section.tasks) ++ordered.tasks[static_cast<std::size_t>(task.lane)];
    result.push_back(std::move(ordered));
  }
  return result;
}

}  // namespace tessera
