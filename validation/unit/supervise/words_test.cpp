// Words of launchers and ranks.
#include "supervise/words.hpp"

#include <gtest/gtest.h>

namespace tessera::words_test {

/// "NODE RANK WAY" of what is heard; "" where no node is named.
std::string heard(std::initializer_list<std::string_view> lines) {
  RankWords words;
  for (const std::string_view line : lines) words.hear(line);
  const auto lost = words.lost();
  return lost ? lost->node + " " + lost->rank + " " + lost->way : "";
}

TEST(RankWordsTest, Srun) {
  EXPECT_EQ(heard({"srun: error: n3: task 2: Killed"}), "n3 2 Killed");
  EXPECT_EQ(heard({"2026-11-26T12:00:00.000 srun: error: n3: tasks 4-7: Exited with exit code 6"}), "n3 4-7 Exited with exit code 6");
  EXPECT_EQ(heard({"srun: error: n1: task 0: Exited with exit code 76", "srun: error: n3: task 2: Killed"}), "n3 2 Killed");
  EXPECT_EQ(heard({"srun: error: Node failure on n3"}), "n3 - node failure");
  EXPECT_EQ(heard({"srun: error: n[1-3]: tasks 0-2: Killed"}), "") << "several nodes: none of them alone";
  EXPECT_EQ(
      heard({"srun: error: n[1-3]: tasks 0-2: Killed", "tessera: rank 0 on n1: error: the process of rank 2 on n3 has ended during x."}),
      "n3 2 ended");
  EXPECT_EQ(heard({"srun: error: Unable to create step", "srun: Job step created"}), "");
  RankWords words;
  words.hear("srun: error: Node failure on n3");
  EXPECT_TRUE(words.lost()->whole_node);
}

TEST(RankWordsTest, Mpiexec) {
  EXPECT_EQ(heard({"=   PID 7 RUNNING AT n3", "=   EXIT CODE: 9"}), "n3 - ended with 9");
  EXPECT_EQ(heard({"=   PID 7 RUNNING AT n3", "=   EXIT CODE: 76"}), "");
  EXPECT_EQ(heard({"tessera: rank 0 on n1: error: the process of rank 2 on n3 has ended.", "=   PID 7 RUNNING AT n3", "=   EXIT CODE: 9"}),
            "n3 2 ended with 9");
}

TEST(RankWordsTest, Ranks) {
  EXPECT_EQ(heard({"tessera: rank 0 on n1: error: the process of rank 2 on n3 has ended during x."}), "n3 2 ended");
  EXPECT_EQ(
      heard({"tessera: rank 0 on n1: warning: rank 2 on n3 was lost 0.4 s after its last report: runs compute: `x` for 0 s (step 9)"}),
      "n3 2 ended");
  EXPECT_EQ(heard({"tessera: rank 0: error: the process of rank 1 has ended during x."}), " 1 ended");
  EXPECT_EQ(heard({"  rank 5 on n4 does not answer; heard 12 s ago"}), "n4 5 no answer");
  EXPECT_EQ(heard({"tessera: error: of 4 ranks 2 has not come; ranks 0-1 on n1 are here; nobody has come from n3"}), "n3 - did not come");
  EXPECT_EQ(heard({"nobody has come from n3, n4"}), "");
  EXPECT_EQ(heard({"step 12/50  loss 3.4", "saved runs/a/checkpoints/step-00000012"}), "");
}

TEST(RankWordsTest, FirstStep) {
  RankWords words;
  words.hear("mesh        pp 1 x dp 2");
  EXPECT_FALSE(words.stepped());
  words.hear("2026-11-26 12:00:00 n1: first step done 0.54 s after launch");
  EXPECT_TRUE(words.stepped());
}

TEST(EndReport, IsRead) {
  EXPECT_EQ(read_end("status 76\nsaved 40\n").status, 76);
  EXPECT_EQ(read_end("status 76\nsaved 40\n").saved, 40);
  EXPECT_FALSE(read_end("status 75\nsaved nothing\n").saved);
  EXPECT_FALSE(read_end("saved 40\n").status);
  EXPECT_FALSE(read_end("").status);
}

TEST(CauseOfEnd, IsWhatTheFirstRankReported) {
  EXPECT_EQ(cause_of_end({.status = 3}, 137, true, false), 3);
  EXPECT_EQ(cause_of_end({.status = 0}, 143, false, true), 0);
}

TEST(CauseOfEnd, WhereNoRankCouldSpeak) {
  for (const int status : {9, 137, 139, 143, 255, 1}) EXPECT_EQ(cause_of_end({}, status, true, false), 76) << status;
  EXPECT_EQ(cause_of_end({}, 137, true, true), 75) << "it was asked to stop while it started";
  EXPECT_EQ(cause_of_end({}, 6, true, false), 6);
  EXPECT_EQ(cause_of_end({}, 6, false, false), 76) << "SIGABRT, from MPICH's mpiexec";
  EXPECT_EQ(cause_of_end({}, 127, false, false), 127);
}

TEST(RankWordsTest, NobodyIsSaidToBeSilentBesideWhoIsNamed) {
  EXPECT_EQ(words_of_no_report({}, 9), "no rank reported how it ended, and the launcher ended with 9");
  RankWords words;
  words.hear("tessera: rank 0 on n1: warning: rank 1 on n3 was lost 0.4 s after its last report");
  ASSERT_TRUE(words.lost());
  EXPECT_EQ(words_of_no_report(words.lost(), 9), "the run lost rank 1 on n3 (ended), and the launcher ended with 9");
}

}  // namespace tessera::words_test
