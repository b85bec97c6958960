#include "schedule/plan/order.hpp"

#include <algorithm>
#include <map>

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
struct Touch {
  std::int64_t end = 0;
  int write_lane = 0;
  std::int64_t write = never;
  Positions read = nowhere;
};

/// Non-overlapping runs of bytes by their begin.
class TouchMap {
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
        it = runs_.emplace(at, Touch{.end = stop}).first;
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
    Touch right = it->second;
    it->second.end = at;
    runs_.emplace(at, right);
  }
  std::map<std::int64_t, Touch> runs_;
};

class Orderer {
 public:
  Orderer(const Schedule& schedule, const MemoryPlan& plan) : schedule_(schedule), plan_(plan) { known_.fill(nowhere); }

  std::vector<Waits> run_section(const Section& section) {
    const auto start = count_;
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
      visit(use, [&](Touch& t) {
        if (t.write != never) wants(static_cast<std::size_t>(t.write_lane), t.write);
        if (use.access != Access::read)
          for (std::size_t l = 0; l < lane_count; ++l) wants(l, t.read[l]);
      });
    }
    for (const Use& use : task.uses) {
      if (use.bytes == 0) continue;
      visit(use, [&](Touch& t) {
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
    const Buffer& buffer = schedule_.buffers[static_cast<std::size_t>(use.buffer)];
    const std::int64_t base = plan_.offset[static_cast<std::size_t>(use.buffer)];
    // A use that moves with the micro-batch is taken as the whole buffer.
    const std::int64_t begin = use.micro_stride ? base : base + use.offset,
                       end = use.micro_stride ? base + buffer.bytes : begin + use.bytes;
    maps_[static_cast<std::size_t>(buffer.tier)].visit(begin, end, f);
  }

  const Schedule& schedule_;
  const MemoryPlan& plan_;
  std::array<TouchMap, tier_count> maps_;
  Positions count_{};
  std::array<Positions, lane_count> known_;  ///< what a lane has already waited for
};

bool moves_with_micro_batch(const Section& section) {
  return std::any_of(section.tasks.begin(), section.tasks.end(), [](const Task& t) {
    return std::any_of(t.uses.begin(), t.uses.end(), [](const Use& u) { return u.micro_stride != 0; });
  });
}

}  // namespace

OrderedProgram order(const Schedule& schedule, const MemoryPlan& plan, const Program& program) {
  OrderedProgram result;
  Orderer orderer(schedule, plan);
  std::int64_t micro = 0;
  for (const auto& phase : program.phases) {
    const Section& section = schedule.sections[static_cast<std::size_t>(phase.section)];
    OrderedPhase ordered{.section = phase.section,
                         .repeat = phase.repeat,
                         .micro_begin = micro,
                         .micro_batches = moves_with_micro_batch(section),
                         .first = orderer.run_section(section),
                         .steady = {}};
    // The second repetition sees the first as its past; every later one sees the same past.
    if (phase.repeat > 1) ordered.steady = orderer.run_section(section);
    for (const Task& task : section.tasks) ++ordered.tasks[static_cast<std::size_t>(task.lane)];
    if (ordered.micro_batches) micro += phase.repeat;
    result.push_back(std::move(ordered));
  }
  return result;
}

}  // namespace tessera
