// A program unrolled: every task as often as it runs, with the bytes that it touches and the waits that order() gave it.
#pragma once
#include <array>
#include <vector>

#include "schedule/plan/order.hpp"

namespace tessera::test {

struct Touched {
  std::size_t tier = 0;
  std::int64_t begin = 0, end = 0;
  bool writes = false;
};

struct Instance {
  const Task* task = nullptr;
  std::size_t lane = 0;
  std::int64_t number = 0;                        ///< in its lane, from 0
  std::array<std::int64_t, lane_count> target{};  ///< tasks that the other lanes must have finished
  std::vector<Touched> touched;
};

/// In the order of the list.
inline std::vector<Instance> unroll(const Schedule& schedule, const MemoryPlan& plan, const OrderedProgram& program) {
  std::vector<Instance> all;
  std::array<std::int64_t, lane_count> count{};
  for (const OrderedPhase& phase : program)
    for (std::int64_t repetition = 0; repetition < phase.repeat; ++repetition) {
      const auto start = count;
      const auto& tasks = schedule.sections[static_cast<std::size_t>(phase.section)].tasks;
      for (std::size_t t = 0; t < tasks.size(); ++t) {
        Instance instance{.task = &tasks[t], .lane = static_cast<std::size_t>(tasks[t].lane), .number = 0, .target = {}, .touched = {}};
        instance.number = count[instance.lane]++;
        const Waits& waits = phase.waits_of(repetition)[t];
        for (std::size_t lane = 0; lane < lane_count; ++lane)
          if (waits[lane]) instance.target[lane] = start[lane] + *waits[lane];
        for (const Use& use : tasks[t].uses) {
          const auto b = static_cast<std::size_t>(use.buffer);
          const Buffer& buffer = schedule.buffers[b];
          const std::int64_t micro = phase.micro_of(repetition).value_or(0);
          const std::int64_t begin =
              plan.offset[b] + use.offset + (use.in_slot ? slot_in(buffer.slots, micro + use.shift) * buffer.slot_bytes() : 0);
          instance.touched.push_back(
              {static_cast<std::size_t>(schedule.buffers[b].tier), begin, begin + use.bytes, use.access != Access::read});
        }
        all.push_back(std::move(instance));
      }
    }
  return all;
}

inline bool conflict(const Instance& a, const Instance& b) {
  for (const Touched& x : a.touched)
    for (const Touched& y : b.touched)
      if (x.tier == y.tier && (x.writes || y.writes) && x.begin < y.end && y.begin < x.end) return true;
  return false;
}

}  // namespace tessera::test
