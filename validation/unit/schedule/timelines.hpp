// What must hold of the timeline of any run, whatever executor took it.
#pragma once
#include <gtest/gtest.h>

#include "instances.hpp"
#include "schedule/run/timeline.hpp"

namespace tessera::test {

/// Every task of the program is there once for each repetition, in the order of its lane; a lane does one thing at a time; and a task
/// begins when those have ended that it waits for.
inline void expect_true_to(const Timeline& timeline, const Schedule& schedule, const MemoryPlan& plan, ProgramKind kind) {
  const std::vector<Instance> all = unroll(schedule, plan, order(schedule, plan, schedule.program(kind)));
  std::array<std::size_t, lane_count> count{};
  for (const Instance& instance : all) {
    const auto& lane = timeline.lanes[instance.lane];
    const std::size_t number = count[instance.lane]++;
    ASSERT_LT(number, lane.size()) << instance.task->name << " is missing";
    const TaskTime& time = lane[number];
    ASSERT_EQ(time.task, instance.task) << time.task->name << " stands in the place of " << instance.task->name;
    ASSERT_GE(time.begin, number == 0 ? 0 : lane[number - 1].end) << time.task->name << " begins before the one before it has ended";
    ASSERT_GE(time.end, time.begin) << time.task->name;
    ASSERT_LE(time.end, timeline.seconds) << time.task->name;
    for (std::size_t other = 0; other < lane_count; ++other)
      if (other != instance.lane && instance.target[other] > 0) {
        const TaskTime& awaited = timeline.lanes[other].at(static_cast<std::size_t>(instance.target[other] - 1));
        ASSERT_GE(time.begin, awaited.end) << time.task->name << " begins before " << awaited.task->name << " has ended";
      }
  }
  for (std::size_t lane = 0; lane < lane_count; ++lane) ASSERT_EQ(timeline.lanes[lane].size(), count[lane]) << "lane " << lane;
}

}  // namespace tessera::test
