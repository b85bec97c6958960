// What follows where the ranks of a job have ended, without any.
#include "supervise/job_end.hpp"

#include <gtest/gtest.h>

#include "supervise/record.hpp"

namespace tessera::job_end_test {

using Next = JobDecision::Next;

/// The lines of a record, without their times.
JobRecord record_of(std::initializer_list<std::string_view> lines) {
  std::string text;
  for (const std::string_view line : lines) text += "2026-01-31 12:00:00 " + std::string(line) + "\n";
  return read_record(text);
}

JobDecision after(std::initializer_list<std::string_view> lines, const JobRules& rules = {}) { return decide_job(rules, record_of(lines)); }

TEST(JobRecordTest, ReadsWhatIsWritten) {
  SupervisedStart start{.number = 4, .end = StartEnd{.status = 76, .saved = 40}};
  start.end->lost = LostPlace{.node = "n3", .rank = "2", .way = "Exited with exit code 6"};
  const JobRecord record = read_record(record_line(words_of_end(start)) + record_line(words_of_loss(start)) + record_line("left out n3") +
                                       record_line("without the program") + record_line("given up: status 79"));
  ASSERT_EQ(record.ends.size(), 1U);
  const StartEnd& end = record.ends[0];
  EXPECT_EQ(end.status, 76);
  EXPECT_EQ(end.saved, 40);
  ASSERT_TRUE(end.lost);
  EXPECT_EQ(name_of(*end.lost), "rank 2 on n3 (Exited with exit code 6)");
  EXPECT_TRUE(end.given_up);
  EXPECT_EQ(record.left_out, std::vector<std::string>{"n3"});
  EXPECT_FALSE(record_of({"start 1: status 75, saved nothing"}).ends[0].saved);
  EXPECT_TRUE(read_record("").ends.empty());
  EXPECT_TRUE(record_of({"left out", "start", "start 1: lost n3"}).ends.empty());
}

TEST(JobEnd, DoneStoppedLostAndFaults) {
  EXPECT_EQ(after({"start 1: status 0, saved 50"}).next, Next::done);
  EXPECT_EQ(after({"start 1: status 143, saved 50"}).next, Next::ended);
  const JobDecision stopped = after({"start 1: status 75, saved 40"});
  EXPECT_EQ(stopped.next, Next::again);
  EXPECT_EQ(stopped.pause_seconds, 0);
  EXPECT_EQ(stopped.words, "the run was asked to stop, and its state is saved");
  const JobDecision lost = after({"start 1: status 76, saved 40", "start 1: lost n3 2 Killed"});
  EXPECT_EQ(lost.next, Next::again);
  EXPECT_EQ(lost.pause_seconds, 120);
  EXPECT_EQ(lost.words, "the run lost rank 2 on n3 (Killed)");
  for (const int status : {1, 2, 3, 4, 5, 6, 7, 8, 78, 79, 126, 127, 139}) {
    const JobDecision fault = decide_job({}, {.ends = {StartEnd{.status = status, .saved = 40}}});
    EXPECT_EQ(fault.next, Next::give_up) << status;
    EXPECT_EQ(fault.status, status);
  }
}

TEST(JobEnd, StartsThatSaveNothingNewAreGivenUp) {
  const JobDecision d = after({"start 1: status 76, saved 40", "start 2: status 76, saved 40", "start 3: status 75, saved nothing",
                               "start 4: status 76, saved nothing"});
  EXPECT_EQ(d.next, Next::give_up);
  EXPECT_EQ(d.status, 79);
  EXPECT_NE(d.words.find("the last 3 starts saved no newer step"), std::string::npos) << d.words;
  EXPECT_EQ(after({"start 1: status 76, saved 40", "start 2: status 76, saved 40", "start 3: status 76, saved 60"}).next, Next::again);
  // Somebody has mended something since then.
  EXPECT_EQ(after({"start 1: status 76, saved nothing", "start 2: status 76, saved nothing", "start 3: status 76, saved nothing",
                   "given up: status 79", "start 1: status 76, saved nothing"})
                .next,
            Next::again);
}

TEST(JobEnd, PausesDoubleUpToAnHour) {
  const auto pause_after = [](int starts, int status) {
    JobRecord record;
    for (int i = 0; i < starts; ++i) record.ends.push_back({.status = status});
    return decide_job({.tries = 100, .pause_seconds = 120}, record).pause_seconds;
  };
  EXPECT_EQ(pause_after(1, 76), 120);
  EXPECT_EQ(pause_after(2, 76), 240);
  EXPECT_EQ(pause_after(3, 76), 480);
  EXPECT_EQ(pause_after(90, 76), 3600);
  EXPECT_EQ(pause_after(1, 75), 0);
  EXPECT_EQ(pause_after(2, 75), 120);
  EXPECT_EQ(pause_after(3, 75), 240);
}

TEST(JobEnd, RankThatIsLostOnTwoNodesIsNotTheirFault) {
  const JobDecision d = after(
      {"start 1: status 76, saved nothing", "start 1: lost n3 2 Killed", "start 2: status 76, saved nothing", "start 2: lost n1 2 Killed"});
  EXPECT_EQ(d.next, Next::give_up);
  EXPECT_EQ(d.status, 78);
}

TEST(JobEnd, NodeThatEndsTwoStartsIsSuspectedOnce) {
  const std::vector<std::string> n3{"n3"};
  EXPECT_TRUE(after({"start 1: status 76, saved 40", "start 1: lost n3 2 Killed"}).suspects.empty());
  EXPECT_EQ(after({"start 1: status 76, saved 40", "start 1: lost n3 2 Killed", "start 2: status 75, saved 50",
                   "start 3: status 76, saved 60", "start 3: lost n3.cluster 5 Killed"})
                .suspects,
            n3);
  EXPECT_TRUE(after({"start 1: status 76, saved 40", "start 1: lost n3 2 Killed", "start 2: status 76, saved 50",
                     "start 2: lost n3 2 Killed", "left out n3", "start 3: status 76, saved 60", "start 3: lost n1 2 Killed"})
                  .suspects.empty());
  EXPECT_TRUE(after({"start 1: status 76, saved 40", "start 1: lost n3 2 Killed", "start 2: status 76, saved 50",
                     "start 2: lost n3 2 Killed", "left out n3", "start 3: status 75, saved 60"})
                  .suspects.empty());
}

}  // namespace tessera::job_end_test
