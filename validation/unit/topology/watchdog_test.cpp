// What is said of a run that stands still, and of slow ranks.
#include "topology/failure/watchdog.hpp"

#include <gtest/gtest.h>

#include "../scratch.hpp"
#include "topology/failure/stragglers.hpp"

namespace tessera::watchdog_test {
namespace {

const std::vector<std::string> hosts{"n1", "n1", "n2", "n2", "n2"};

RankNote note_of(int rank, const std::string& wait, const std::string& task) {
  RankNote note;
  note.rank = rank, note.answered = true;
  if (!wait.empty()) note.note.waits[wait] = 12;
  note.note.work.step = 3, note.note.work.program = "train", note.note.work.still = 12;
  if (!task.empty()) note.note.work.tasks.push_back({"compute", task, 12});
  return note;
}

TEST(Watchdog, ALimitFollowsFromTheStepsBefore) {
  const WatchdogOptions automatic{.on = true, .most_seconds = 150};
  EXPECT_EQ(watchdog_limit(automatic, 0, true), 60) << "no steps yet";
  EXPECT_EQ(watchdog_limit(automatic, 0.05, true), 10);
  EXPECT_EQ(watchdog_limit(automatic, 4, true), 20);
  EXPECT_EQ(watchdog_limit(automatic, 4, false), 150) << "a save";
  EXPECT_EQ(watchdog_limit(automatic, 100, true), 150);
  EXPECT_EQ(watchdog_limit({.on = true, .limit_seconds = 7}, 100, false), 7);
}

TEST(Watchdog, RanksAtTheSameAreARowAndTheSilentOneIsAwaited) {
  std::vector<RankNote> notes{note_of(0, "all_reduce (call 3)", ""), note_of(1, "all_reduce (call 3)", ""),
                              note_of(2, "", "forward layers.1"), note_of(3, "", "forward layers.1"),
                              note_of(4, "all_reduce (call 3)", "")};
  notes[2].answered = false, notes[2].age = 13;
  notes[3].answered = false, notes[3].behind = 2;
  StillRun still = describe_still(notes, hosts);
  EXPECT_EQ(still.awaited, std::vector{2});
  EXPECT_EQ(still.cause, "the others wait for rank 2 on n2, which no longer answers: it is stopped, or its node hangs");
  EXPECT_TRUE(test::has(still.table, "3  train       12 s  ranks 0-1 on n1, 4 on n2: waits in all_reduce (call 3)")) << still.table;
  EXPECT_TRUE(test::has(still.table, "25 s  rank 2 on n2: no answer; last: compute: `forward layers.1`")) << still.table;
  EXPECT_TRUE(test::has(still.table, "rank 3 on n2: reports through rank 2; last: ")) << still.table;
  // All answer: who waits for nobody is awaited, then who waits elsewhere than most.
  notes[2] = note_of(2, "", "forward layers.1"), notes[3] = note_of(3, "all_reduce (call 3)", "");
  EXPECT_EQ(describe_still(notes, hosts).awaited, std::vector{2});
  notes[2] = note_of(2, "a barrier", "");
  EXPECT_EQ(describe_still(notes, hosts).awaited, std::vector{2});
  notes[2] = note_of(2, "all_reduce (call 3)", "");
  still = describe_still(notes, hosts);
  EXPECT_TRUE(still.awaited.empty() && test::has(still.cause, "MPI or the network")) << still.cause;
}

/// Notes of ranks that have made so many steps, each of so many seconds of `forward`.
std::vector<Straggler> judge(Stragglers& stragglers, std::vector<Spent>& ranks, const std::vector<double>& seconds, double now) {
  std::vector<const Spent*> known;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const auto steps = static_cast<std::int64_t>(10 + r);  // notes are of other steps on each
    ranks[r].steps += steps;
    ranks[r].seconds["data"] += 0.001 * static_cast<double>(steps);
    ranks[r].seconds["forward"] += seconds[r] * static_cast<double>(steps);
    known.push_back(&ranks[r]);
  }
  return stragglers.judge(known, now);
}

TEST(Stragglers, ASlowRankIsNamedOnceAndAMomentIsNot) {
  Stragglers stragglers;
  std::vector<Spent> ranks(4);
  ranks[3].role = 1;  // of a stage that does more: nobody does the same
  double now = 0;
  const auto window = [&](double slow) { return judge(stragglers, ranks, {0.1, 0.1, slow, 0.5}, now += 3); };
  EXPECT_TRUE(window(0.3).empty()) << "the first note begins";
  EXPECT_TRUE(window(0.3).empty());
  EXPECT_TRUE(window(0.3).empty());
  EXPECT_TRUE(window(0.12).empty()) << "it was a moment";
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(window(0.3).empty());
  const std::vector<Straggler> found = window(0.3);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].rank, 2);
  EXPECT_EQ(found[0].kind, "forward");
  EXPECT_NEAR(found[0].seconds, 0.301, 1e-6);
  EXPECT_NEAR(found[0].median, 0.101, 1e-6);
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(window(0.3).empty()) << "it is said once";
}

TEST(Stragglers, OfTwoTheSlowOneIsNamedUnlessItIsAMatterOfMicroseconds) {
  for (const double unit : {0.1, 1e-4}) {
    Stragglers stragglers;
    std::vector<Spent> ranks(2);
    std::size_t named = 0;
    for (int i = 0; i < 6; ++i) named += judge(stragglers, ranks, {unit, 3 * unit}, 3.0 * i).size();
    EXPECT_EQ(named, unit > 1e-3 ? 1u : 0u);
  }
}

}  // namespace
}  // namespace tessera::watchdog_test
