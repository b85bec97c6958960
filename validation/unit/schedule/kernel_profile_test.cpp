// Kernels beside their floors, of a schedule made by hand.
#include "schedule/trace/kernel_profile.hpp"

#include <gtest/gtest.h>

namespace tessera::kernel_profile_test {
namespace {

/// A pass of three calls: a product, one over memory, and one that makes nothing; and a task that is a kernel by itself.
struct Step {
  Schedule schedule;
  Task pass{.name = "forward layers.11.mlp", .op = RunPass{.pass = 0}, .lane = Lane::compute, .uses = {}};
  Task zero{.name = "zero gradients", .op = Zero{}, .lane = Lane::compute, .uses = {}};
  Task on_host{.name = "zero master", .op = Zero{}, .lane = Lane::cpu_optimizer, .uses = {}};
  Timeline timeline{.lanes = {}, .seconds = 10};

  Step() {
    schedule.towers.resize(1);
    schedule.towers[0].segments.resize(1);
    const auto nothing = [](const At&) {};
    schedule.towers[0].segments[0].forward = {
        {.name = "linear layers.11.mlp.w_down", .touches = {}, .flops = 300, .work = ProductWork{}, .run = nothing},
        {.name = "swiglu", .touches = {}, .work = MemoryWork{40}, .run = nothing},
        {.name = "made by another", .touches = {}, .run = {}}};
    schedule.passes.resize(1);
    schedule.passes[0].calls = {{false, 0}, {false, 1}, {false, 2}};
    schedule.buffers = {{.name = "gradients", .bytes = 60}};
    zero.uses = on_host.uses = {{.buffer = 0, .bytes = 60, .access = Access::write}};
    put(pass, 0, 2), put(pass, 2, 5), put(zero, 5, 6), put(on_host, 0, 9);
  }
  void put(const Task& task, double begin, double end) {
    timeline.lanes[static_cast<std::size_t>(task.lane)].push_back({.task = &task, .begin = begin, .end = end});
  }
};

constexpr FloorRates rates{.flops = 200, .bytes = 60};

const KernelRow& row_of(const std::vector<KernelRow>& rows, const std::string& name) {
  const auto found = std::ranges::find(rows, name, &KernelRow::name);
  TESSERA_REQUIRE(found != rows.end(), "no row {}", name);
  return *found;
}

TEST(KernelProfile, ARowHasTheCallsOfAllLayersAndTasksOfComputeHaveTheirs) {
  const Step step;
  KernelProfile profile;
  for (int i = 0; i < 2; ++i) profile.add(step.schedule, {{3.5, 1, 0}}, step.timeline, 10);
  const std::vector<KernelRow> rows = profile.rows(rates);
  ASSERT_EQ(rows.size(), 3u) << "what runs on the host's lane beside compute, and what makes nothing, are none";
  const KernelRow &product = row_of(rows, "linear mlp.w_down"), &pass = row_of(rows, "swiglu"), &zero = row_of(rows, "zero");
  EXPECT_EQ(product.calls, 4);
  EXPECT_DOUBLE_EQ(product.seconds, 7);
  EXPECT_DOUBLE_EQ(product.flops, 1200);
  EXPECT_DOUBLE_EQ(product.floor(rates), 6);
  EXPECT_DOUBLE_EQ(pass.bytes, 160);
  EXPECT_DOUBLE_EQ(pass.seconds, 2);
  EXPECT_EQ(zero.calls, 2);
  EXPECT_DOUBLE_EQ(zero.bytes, 120);
  EXPECT_DOUBLE_EQ(zero.floor(rates), 2);
  EXPECT_EQ(rows.front().name, "linear mlp.w_down") << "most to gain: 1 s of 7, where swiglu is faster than memory";
  EXPECT_EQ(rows.back().name, "swiglu");
}

TEST(KernelProfile, TablesAndJsonAreOfTheMeanStep) {
  const Step step;
  KernelProfile profile;
  for (int i = 0; i < 2; ++i) profile.add(step.schedule, {{3.5, 1, 0}}, step.timeline, 10);
  const std::string text = profile.print(rates);
  for (const char* part : {"linear mlp.w_down                       2  3500.000 ms   35.0 %  3000.000 ms   85.7 %", "zero",
                           "the rest                                   4500.000 ms   45.0 %",
                           "step                                      10000.000 ms  100.0 %  5333.333 ms   53.3 %"})
    EXPECT_NE(text.find(part), std::string::npos) << part << text;
  const Json json = profile.json(rates);
  EXPECT_EQ(json["steps"].get<int>(), 2);
  EXPECT_DOUBLE_EQ(json["seconds"].get<double>(), 10);
  double seconds = 0;
  for (const Json& kernel : json["kernels"]) seconds += kernel["seconds"].get<double>();
  EXPECT_DOUBLE_EQ(seconds, 3.5 + 1 + 1);
}

TEST(KernelProfile, WhatTakesLittleStandsTogether) {
  const Step step;
  KernelProfile profile;
  profile.add(step.schedule, {{3.5, 0.04, 0}}, step.timeline, 10);
  const std::string text = profile.print(rates);
  EXPECT_EQ(text.find("swiglu"), std::string::npos) << text;
  EXPECT_NE(text.find("others                                  2    40.000 ms"), std::string::npos) << text;
}

}  // namespace
}  // namespace tessera::kernel_profile_test
