// What a timeline comes to, on intervals made by hand; and its text in the Chrome trace event format.
#include <gtest/gtest.h>

#include "base/json.hpp"

#include "schedule/trace/chrome_trace.hpp"

namespace tessera::timeline_test {
namespace {

using Spans = std::vector<std::pair<double, double>>;

const Task compute{.name = "forward layers.0.mlp", .op = RunPass{.pass = 1}, .lane = Lane::compute, .uses = {}, .flops = 100};
const Task gather{.name = "gather layers.0",
                  .op = Collective{.kind = CollectiveKind::all_gather},
                  .lane = Lane::gather,
                  .uses = {},
                  .flops = 0,
                  .bytes_moved = 30};
const Task reduce{.name = "reduce \"layers.0\"",
                  .op = Collective{.kind = CollectiveKind::reduce_scatter},
                  .lane = Lane::reduce,
                  .uses = {},
                  .flops = 0,
                  .bytes_moved = 7};

Timeline timeline_of(double seconds, const Spans& computing, const Spans& gathering = {}, const Spans& reducing = {}) {
  Timeline timeline{.lanes = {}, .seconds = seconds};
  const std::pair<const Task*, const Spans*> lanes[] = {{&compute, &computing}, {&gather, &gathering}, {&reduce, &reducing}};
  for (std::size_t lane = 0; lane < std::size(lanes); ++lane)
    for (auto [begin, end] : *lanes[lane].second) timeline.lanes[lane].push_back({.task = lanes[lane].first, .begin = begin, .end = end});
  return timeline;
}

double busy(const TimelineSummary& s, Lane lane) { return s.lanes[static_cast<std::size_t>(lane)].busy; }

TEST(Summary, OfNothing) {
  const TimelineSummary s = summarise(timeline_of(0, {}));
  EXPECT_EQ(s.seconds, 0);
  EXPECT_EQ(s.busy, 0);
  EXPECT_EQ(s.exposed, 0);
  EXPECT_EQ(s.idle, 0);
  EXPECT_EQ(s.share(1), 0) << "no share of nothing";
  EXPECT_EQ(summarise(timeline_of(5, {})).idle, 5);
}

TEST(Summary, ComputeAlone) {
  const TimelineSummary s = summarise(timeline_of(10, {{1, 3}, {3, 4}, {6, 9}}));
  EXPECT_DOUBLE_EQ(busy(s, Lane::compute), 6);
  EXPECT_DOUBLE_EQ(s.busy, 6);
  EXPECT_DOUBLE_EQ(s.idle, 4);
  EXPECT_DOUBLE_EQ(s.exposed, 0);
  EXPECT_DOUBLE_EQ(s.share(s.idle), 0.4);
}

TEST(Summary, CommunicationBehindComputeIsNotExposed) {
  const TimelineSummary s = summarise(timeline_of(10, {{0, 4}, {4, 10}}, {{1, 5}}, {{4.5, 9}}));
  EXPECT_DOUBLE_EQ(s.exposed, 0);
  EXPECT_DOUBLE_EQ(s.idle, 0);
  EXPECT_DOUBLE_EQ(busy(s, Lane::gather), 4);
  EXPECT_DOUBLE_EQ(busy(s, Lane::reduce), 4.5);
}

TEST(Summary, WhatStandsAloneIsExposedOnce) {
  // Alone: gather in [0, 2], gather and reduce together in [5, 7], of which one second is both; nothing in [9, 12].
  const TimelineSummary s = summarise(timeline_of(12, {{2, 5}, {7, 9}}, {{0, 2.5}, {4, 6}}, {{5, 7.5}}));
  EXPECT_DOUBLE_EQ(busy(s, Lane::compute), 5);
  EXPECT_DOUBLE_EQ(busy(s, Lane::gather), 4.5);
  EXPECT_DOUBLE_EQ(busy(s, Lane::reduce), 2.5);
  EXPECT_DOUBLE_EQ(s.exposed, 4);
  EXPECT_DOUBLE_EQ(s.busy, 9);
  EXPECT_DOUBLE_EQ(s.idle, 3);
}

TEST(Summary, SecondsInWhichSomeLanesStoodAlone) {
  const Timeline timeline = timeline_of(20, {{0, 4}, {9, 10}}, {{3, 7}, {6, 8}}, {{7.5, 9.5}, {12, 13}});
  EXPECT_DOUBLE_EQ(seconds_alone(timeline, {Lane::gather}), 3.5);
  EXPECT_DOUBLE_EQ(seconds_alone(timeline, {Lane::gather, Lane::reduce}), 6);
  EXPECT_DOUBLE_EQ(seconds_alone(timeline, {Lane::snapshot}), 0);
  EXPECT_DOUBLE_EQ(seconds_alone(timeline, {Lane::compute}), 3.5);
}

TEST(Summary, CommunicationAloneIsAllExposed) {
  const TimelineSummary s = summarise(timeline_of(4, {}, {}, {{1, 3}}));
  EXPECT_DOUBLE_EQ(s.exposed, 2);
  EXPECT_DOUBLE_EQ(s.idle, 2);
  EXPECT_EQ(s.lanes[0].tasks, 0);
}

TEST(Summary, CountsTasksFlopsAndBytes) {
  const TimelineSummary s = summarise(timeline_of(4, {{0, 1}, {1, 2}, {2, 3}}, {{0, 1}, {2, 3}}, {{3, 4}}));
  EXPECT_EQ(s.lanes[0].tasks, 3);
  EXPECT_EQ(s.lanes[0].flops, 300);
  EXPECT_EQ(s.lanes[1].tasks, 2);
  EXPECT_EQ(s.lanes[1].bytes_moved, 60);
  EXPECT_EQ(s.lanes[2].bytes_moved, 7);
}

TEST(Summary, LaunchGapsAreWhatUntracedRunsHaveBesideTasks) {
  const TimelineSummary s = summarise(timeline_of(10, {{0, 4}}, {{3, 5}}));  // 5 s of tasks
  EXPECT_EQ(launch_gap_share(s, {}), std::nullopt);
  EXPECT_DOUBLE_EQ(*launch_gap_share(s, {.count = 3, .median_seconds = 8}), 0.375);
  EXPECT_DOUBLE_EQ(*launch_gap_share(s, {.count = 3, .median_seconds = 4}), -0.25);
}

TEST(Summary, IsPrintedInMilliseconds) {
  Timeline timeline = timeline_of(0.010, {{0, 0.006}}, {{0.005, 0.0075}});
  EXPECT_EQ(print_summary(summarise(timeline), {}), R"(
  step                        10.000 ms  100.0 %  2 tasks
  lane compute                 6.000 ms   60.0 %  1 tasks
  lane gather                  2.500 ms   25.0 %  1 tasks
  lane reduce                  0.000 ms    0.0 %  0 tasks
  exposed                      1.500 ms   15.0 %  another lane is busy, compute is not
  idle                         2.500 ms   25.0 %  no task is running; gaps inside a task count as busy
  no earlier step to compare with: a later run.trace shows launch gaps too)");
  timeline.graph = true;
  const std::string text = print_summary(summarise(timeline), {.count = 4, .median_seconds = 0.008});
  EXPECT_NE(text.find("other steps are one CUDA graph"), std::string::npos) << text;
  EXPECT_NE(text.find("took 8.000 ms (median of 4)"), std::string::npos) << text;
  EXPECT_NE(text.find("1 - 7.500 ms / that = 6.2 % or more"), std::string::npos) << text;
  const std::string slower = print_summary(summarise(timeline), {.count = 4, .median_seconds = 0.005});
  EXPECT_NE(slower.find("= -50.0 %\n"), std::string::npos) << slower;
  EXPECT_NE(slower.find("this number means nothing"), std::string::npos) << slower;
}

TEST(ChromeTrace, HoldsEveryTaskAndTheSummary) {
  Timeline timeline = timeline_of(12, {{2, 5}, {7, 9}}, {{0, 2.5}}, {{5, 7.5}});
  timeline.lanes[0][1].micro_batch = 3;
  const auto json =
      Json::parse(chrome_trace(timeline, {.count = 5, .median_seconds = 10}, {.step = 17, .rank = 2, .ranks = 4, .device = "host"}));
  std::vector<Json> tasks;
  std::map<int, std::string> rows;
  for (const auto& event : json["traceEvents"]) {
    EXPECT_EQ(event["pid"], 2);
    if (event["ph"] == "X") tasks.push_back(event);
    if (event["name"] == "thread_name") rows[event["tid"]] = event["args"]["name"];
  }
  EXPECT_EQ(rows, (std::map<int, std::string>{{0, "compute"}, {1, "gather"}, {2, "reduce"}}));
  ASSERT_EQ(tasks.size(), 4u);
  EXPECT_EQ(tasks[1], Json::parse(R"({"name": "forward layers.0.mlp", "cat": "forward", "ph": "X", "pid": 2, "tid": 0, "ts": 7e6,
      "dur": 2e6, "args": {"flops": 100.0, "bytes_moved": 0.0, "micro_batch": 3}})"));
  EXPECT_EQ(tasks[2], Json::parse(R"({"name": "gather layers.0", "cat": "gather", "ph": "X", "pid": 2, "tid": 1, "ts": 0.0,
      "dur": 2.5e6, "args": {"flops": 0.0, "bytes_moved": 30.0}})"));
  EXPECT_EQ(tasks[3]["name"], "reduce \"layers.0\"");
  const auto& other = json["otherData"];
  EXPECT_EQ(other["step"], 17);
  EXPECT_EQ(other["seconds"], 12);
  EXPECT_EQ(other["lanes"]["compute"]["busy_seconds"], 5);
  EXPECT_EQ(other["lanes"]["gather"]["tasks"], 1);
  EXPECT_EQ(other["busy_seconds"], 9);
  EXPECT_EQ(other["exposed_communication_seconds"], 4);
  EXPECT_EQ(other["idle_share"], 0.25);
  EXPECT_EQ(other["steps_before"], Json::parse(R"({"count": 5, "median_seconds": 10.0})"));
  EXPECT_NEAR(other["launch_gap_share"].get<double>(), 0.1, 1e-15);
}

TEST(ChromeTrace, OfNothingIsStillJson) {
  const auto json = Json::parse(chrome_trace({}, {}, {.step = 1, .device = "host"}));
  EXPECT_EQ(json["otherData"]["lanes"]["reduce"]["tasks"], 0);
  EXPECT_FALSE(json["otherData"].contains("launch_gap_share"));
}

TEST(ChromeTrace, KindsOfTasks) {
  EXPECT_STREQ(kind_of({.name = "", .op = RunPass{.kind = PassKind::backward}, .uses = {}}), "backward");
  EXPECT_STREQ(kind_of({.name = "", .op = RunPass{.kind = PassKind::again}, .uses = {}}), "recompute");
  EXPECT_STREQ(kind_of({.name = "", .op = RunPass{.kind = PassKind::weights}, .uses = {}}), "weight gradients");
  EXPECT_STREQ(kind_of(compute), "forward");
  EXPECT_STREQ(kind_of(gather), "gather");
  EXPECT_STREQ(kind_of({.name = "", .op = Collective{.kind = CollectiveKind::all_reduce}, .lane = Lane::reduce, .uses = {}}), "reduce");
  EXPECT_STREQ(kind_of({.name = "", .op = OptimizerStep{}, .uses = {}}), "optimizer");
  EXPECT_STREQ(kind_of({.name = "", .op = CountFlags{}, .uses = {}}), "step");
}

}  // namespace
}  // namespace tessera::timeline_test
