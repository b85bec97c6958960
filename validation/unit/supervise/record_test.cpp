// What is told of starts, and what is read of a run's files.
#include "supervise/record.hpp"

#include <gtest/gtest.h>

#include <fstream>

#include "../scratch.hpp"
#include "supervise/run_tail.hpp"

namespace tessera::record_test {

std::vector<SupervisedStart> two_starts() {
  const RankPlaces places{.ranks = 2, .per_node = 1, .nodes = {"n1", "n2"}};
  return {{.number = 1,
           .places = places,
           .end = StartEnd{.status = 76, .saved = 40, .stepped = true, .lost = LostPlace{.node = "n2", .rank = "1", .way = "Killed"}},
           .since_step = 0.5,
           .to_start = 0.25,
           .to_step = 2.0,
           .steps_again = 3},
          {.number = 2, .places = places, .end = StartEnd{.status = 0, .stepped = true}}};
}

TEST(StartsRecordTest, LinesAreThoseOfTheJobScripts) {
  const auto starts = two_starts();
  EXPECT_EQ(words_of_end(starts[0]), "start 1: status 76, saved 40");
  EXPECT_EQ(words_of_loss(starts[0]), "start 1: lost n2 1 Killed");
  EXPECT_EQ(words_of_end(starts[1]), "start 2: status 0, saved nothing");
  EXPECT_EQ(words_of_loss(starts[1]), "");
  const std::string line = record_line("given up: status 79");
  EXPECT_EQ(line.substr(19), " given up: status 79\n");
  EXPECT_EQ(line.substr(10, 1), " ");
}

TEST(StartsRecordTest, TableAndJsonHaveTheSame) {
  const std::string table = print_starts(two_starts());
  EXPECT_NE(table.find("lost rank 1 on n2 (Killed)"), std::string::npos);
  EXPECT_NE(table.find("2 starts, 2.75 s lost"), std::string::npos);
  const Json json = starts_json(two_starts(), 0);
  EXPECT_EQ(json["status"], 0);
  EXPECT_EQ(json["seconds_lost"], 2.75);
  EXPECT_EQ(json["starts"][0]["steps_again"], 3);
  EXPECT_EQ(json["starts"][0]["lost"]["node"], "n2");
  EXPECT_TRUE(json["starts"][1]["seconds_to_start"].is_null());
}

TEST(RunTail, LastWholeRowsCount) {
  const test::Scratch scratch;
  const std::string& folder = scratch.path();
  EXPECT_FALSE(last_step(folder));
  EXPECT_FALSE(steps_again(folder, 0));
  std::ofstream(folder + "/metrics.jsonl") << R"({"step": 4, "time": 10.5, "loss": 1.0})"
                                           << "\n"
                                           << R"({"step": 4, "time": 11.0, "event": "save"})"
                                           << "\n"
                                           << R"({"step": 5, "ti)";
  std::ofstream(folder + "/events.jsonl") << R"({"time": 12.0, "event": "start", "lost_steps": 7})"
                                          << "\n"
                                          << R"({"time": 13.0, "event": "save"})"
                                          << "\n";
  ASSERT_TRUE(last_step(folder));
  EXPECT_EQ(last_step(folder)->step, 4);
  EXPECT_EQ(last_step(folder)->time, 10.5);
  EXPECT_EQ(steps_again(folder, 11), 7);
  EXPECT_FALSE(steps_again(folder, 12.5)) << "another start's";
}

}  // namespace tessera::record_test
