// Where the seconds of a step go, on intervals made by hand.
#include "schedule/trace/breakdown.hpp"

#include <gtest/gtest.h>

#include <numeric>

namespace tessera::breakdown_test {
namespace {

const Task gather{.name = "gather",
                  .op = Collective{.kind = CollectiveKind::all_gather, .axes = axes({Axis::dp})},
                  .lane = Lane::gather,
                  .uses = {},
                  .bytes_moved = 30},
    reduce{.name = "reduce",
           .op = Collective{.kind = CollectiveKind::reduce_scatter, .axes = axes({Axis::dp})},
           .lane = Lane::reduce,
           .uses = {},
           .bytes_moved = 7},
    update{.name = "update", .op = OptimizerStep{}, .lane = Lane::compute, .uses = {}},
    on_host{.name = "update", .op = OptimizerStep{}, .lane = Lane::cpu_optimizer, .uses = {}},
    upload{.name = "upload", .op = Copy{}, .lane = Lane::upload, .uses = {}, .bytes_moved = 5};

Mesh mesh_of_four() {
  Mesh mesh;
  mesh.extents[static_cast<std::size_t>(Axis::dp)] = 4;
  return mesh;
}
const Mesh of_four = mesh_of_four();

/// A schedule of two segments, of which the second is the head, and a task for each of three passes.
struct Passes {
  Schedule schedule;
  Task forward{.name = "forward", .op = RunPass{.pass = 0}, .uses = {}},
      backward{.name = "backward", .op = RunPass{.pass = 1, .kind = PassKind::backward}, .uses = {}},
      head{.name = "head", .op = RunPass{.pass = 2, .kind = PassKind::backward}, .uses = {}};

  Passes() {
    schedule.towers.resize(1);
    schedule.towers[0].segments.resize(2);
    schedule.towers[0].segments[1].joint = true;
    schedule.passes.resize(3);
    schedule.passes[2].segment = {.tower = 0, .segment = 1};
  }
};

void put(Timeline& timeline, const Task& task, double begin, double end) {
  timeline.lanes[static_cast<std::size_t>(task.lane)].push_back({.task = &task, .begin = begin, .end = end});
}

void expect_sums(const Breakdown& b) {
  double sum = b.idle;
  for (const PartSeconds& part : b.parts) sum += part.exposed;
  EXPECT_NEAR(sum, b.seconds, 1e-12 * b.seconds);
}

TEST(Breakdown, EverySecondIsOnePartsOrNobodys) {
  const Passes p;
  Timeline t{.lanes = {}, .seconds = 20};
  put(t, gather, 0, 3), put(t, p.forward, 1, 4), put(t, p.head, 4, 6), put(t, p.backward, 6, 9), put(t, reduce, 8, 12);
  put(t, upload, 11, 13), put(t, update, 15, 16), put(t, on_host, 15, 18), put(t, gather, 17, 20);
  const Breakdown b = break_down(t, p.schedule, of_four);
  EXPECT_DOUBLE_EQ(b.of(TimePart::forward).exposed, 3);
  EXPECT_DOUBLE_EQ(b.of(TimePart::head).exposed, 2);
  EXPECT_DOUBLE_EQ(b.of(TimePart::backward).exposed, 3);
  EXPECT_DOUBLE_EQ(b.of(TimePart::all_gather).exposed, 1 + 2) << "before compute begins, and after the host's update";
  EXPECT_DOUBLE_EQ(b.of(TimePart::all_gather).hidden, 2 + 1);
  EXPECT_DOUBLE_EQ(b.of(TimePart::all_gather).bytes_moved, 60);
  EXPECT_DOUBLE_EQ(b.of(TimePart::all_gather).bytes_whole, 80) << "of which three quarters go over this rank's link";
  EXPECT_EQ(b.of(TimePart::all_gather).tasks, 2);
  EXPECT_DOUBLE_EQ(b.of(TimePart::upload).bytes_whole, 5);
  EXPECT_DOUBLE_EQ(b.of(TimePart::reduce_scatter).exposed, 3);
  EXPECT_DOUBLE_EQ(b.of(TimePart::reduce_scatter).hidden, 1);
  EXPECT_DOUBLE_EQ(b.of(TimePart::upload).exposed, 1) << "beside a collective it is the collective's second";
  EXPECT_DOUBLE_EQ(b.of(TimePart::optimizer).exposed, 3) << "on both lanes";
  EXPECT_DOUBLE_EQ(b.of(TimePart::optimizer).hidden, 1);
  EXPECT_DOUBLE_EQ(b.idle, 2);
  expect_sums(b);
}

TEST(Breakdown, OfNothingAndOfSums) {
  const Passes p;
  const Breakdown none = break_down({.lanes = {}, .seconds = 4}, p.schedule, of_four);
  EXPECT_EQ(none.idle, 4);
  expect_sums(none);
  Timeline t{.lanes = {}, .seconds = 2};
  put(t, gather, 0, 1);
  Breakdown sum = break_down(t, p.schedule, of_four);
  sum.add(none);
  EXPECT_EQ(sum.seconds, 6);
  EXPECT_EQ(sum.of(TimePart::all_gather).exposed, 1);
  expect_sums(sum);
  const std::string text = print_breakdown(sum, 2, 5, 0.5);
  for (const char* line :
       {"all_gather         500.000 ms   10.0 %", "0         15 B         30 B/s         40 B/s", "data               500.000 ms   10.0 %",
        "host              1500.000 ms   30.0 %", "step              5000.000 ms  100.0 %"})
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
  EXPECT_EQ(text.find("forward"), text.npos) << "what took no time has no line";
}

}  // namespace
}  // namespace tessera::breakdown_test
