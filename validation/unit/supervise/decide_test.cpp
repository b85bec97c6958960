// What follows an end of the ranks, without any.
#include "supervise/decide.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace tessera::decide_test {

using Names = std::vector<std::string>;

StartEnd lost_at(const std::string& node, const std::string& rank = "2", const std::string& way = "Killed") {
  return {.status = 76, .stepped = true, .lost = LostPlace{.node = node, .rank = rank, .way = way}};
}
StartEnd saved(StartEnd end, std::int64_t step) {
  end.saved = step;
  return end;
}

class Decisions : public testing::Test {
 protected:
  SuperviseRules rules;
  RankPlaces now{.ranks = 4, .per_node = 1, .nodes = {"n1", "n2", "n3", "n4"}, .spares = {"n5", "n6"}};
  std::vector<StartEnd> ends;
  Names dead, asked;
  std::function<bool(int)> fits = [](int) { return true; };

  Decision decide_after(const StartEnd& end) {
    ends.push_back(end);
    asked.clear();
    return decide(rules, now, ends,
                  {.silent =
                       [this](const Names& nodes) {
                         Names silent;
                         for (const std::string& node : nodes) {
                           asked.push_back(node);
                           if (std::count(dead.begin(), dead.end(), node) > 0) silent.push_back(node);
                         }
                         return silent;
                       },
                   .fits = fits});
  }
};

TEST_F(Decisions, RunThatIsDoneEnds) {
  const Decision d = decide_after(saved({.status = 0}, 50));
  EXPECT_EQ(d.status, 0);
  EXPECT_FALSE(d.given_up);
}

TEST_F(Decisions, RunThatWasAskedToStopEnds) {
  EXPECT_EQ(decide_after(saved({.status = 75}, 50)).status, 75);
  EXPECT_NE(decide_after({.status = 75}).words.find("nothing to save"), std::string::npos);
  EXPECT_TRUE(asked.empty());
}

TEST_F(Decisions, FaultThatRepeatsIsGivenUpWithItsStatus) {
  for (const int status : {1, 2, 3, 4, 5, 6, 7, 8, 78, 126, 127}) {
    const Decision d = decide_after({.status = status});
    EXPECT_EQ(d.status, status);
    EXPECT_TRUE(d.given_up);
  }
}

TEST_F(Decisions, LostProcessStartsAgainOnTheSameNodesAtOnce) {
  const Decision d = decide_after(saved(lost_at("n3"), 40));
  EXPECT_FALSE(d.status);
  EXPECT_EQ(d.places, now);
  EXPECT_EQ(d.pause_seconds, 0);
  EXPECT_EQ(asked, Names{"n3"});
  EXPECT_EQ(d.words, "the run lost rank 2 on n3 (Killed); the node answers");
}

TEST_F(Decisions, OneMachineIsNotAsked) {
  now = {.ranks = 2, .per_node = 2};
  const Decision d = decide_after(saved(lost_at("vm"), 40));
  EXPECT_FALSE(d.status);
  EXPECT_EQ(d.places, now);
  EXPECT_TRUE(asked.empty());
}

TEST_F(Decisions, SpareTakesThePlaceOfALostNode) {
  dead = {"n2"};
  const Decision d = decide_after(saved(lost_at("n2.cluster", "1", "ended"), 40));
  EXPECT_FALSE(d.status);
  EXPECT_EQ(d.places.nodes, (Names{"n1", "n5", "n3", "n4"}));
  EXPECT_EQ(d.places.spares, Names{"n6"});
  EXPECT_EQ(d.places.ranks, 4);
  EXPECT_EQ(d.left_out, Names{"n2"});
  EXPECT_NE(d.words.find("n2 does not answer; n5 replaces n2"), std::string::npos);
  EXPECT_EQ(asked, (Names{"n2", "n1", "n3", "n4", "n5"}))
      << "whether others went with it is asked as well, and the spare before it is used";
}

TEST_F(Decisions, NodeThatTheLauncherCallsLostIsNotAsked) {
  StartEnd end = saved(lost_at("n4", "-", "node failure"), 40);
  end.lost->whole_node = true;
  const Decision d = decide_after(end);
  EXPECT_EQ(d.places.nodes, (Names{"n1", "n2", "n3", "n5"}));
  EXPECT_EQ(std::count(asked.begin(), asked.end(), "n4"), 0);
}

TEST_F(Decisions, WhereNobodyNamesANodeAllAreAsked) {
  dead = {"n1"};
  const Decision d = decide_after({.status = 76, .saved = 40, .stepped = true});
  EXPECT_EQ(d.places.nodes, (Names{"n5", "n2", "n3", "n4"}));
  dead = {};
  EXPECT_EQ(decide_after({.status = 76, .saved = 41, .stepped = true}).words,
            "the run lost a rank or a node, or waited too long; all nodes answer");
}

TEST_F(Decisions, SpareThatDoesNotAnswerIsNamedAndNotUsed) {
  dead = {"n2", "n5"};
  const Decision d = decide_after(saved(lost_at("n2"), 40));
  EXPECT_EQ(d.places.nodes, (Names{"n1", "n6", "n3", "n4"}));
  EXPECT_TRUE(d.places.spares.empty());
  EXPECT_EQ(d.left_out, (Names{"n5", "n2"}));
  EXPECT_NE(d.words.find("the spare node n5 does not answer and is not used"), std::string::npos);
}

TEST_F(Decisions, WithoutASpareTheRunGoesOnWithAsManyRanksAsFit) {
  now = {.ranks = 8, .per_node = 2, .nodes = {"n1", "n2", "n3", "n4"}};
  dead = {"n2"};
  Decision d = decide_after(saved(lost_at("n2"), 40));
  EXPECT_FALSE(d.status);
  EXPECT_EQ(d.places.ranks, 6);
  EXPECT_EQ(d.places.nodes, (Names{"n1", "n3", "n4"}));
  fits = [](int ranks) { return ranks % 4 == 0; };
  d = decide_after(saved(lost_at("n2"), 41));
  EXPECT_EQ(d.places.ranks, 4);
  EXPECT_EQ(d.places.nodes, (Names{"n1", "n3"}));
  EXPECT_EQ(d.places.spares, Names{"n4"}) << "a node that is left over may take a place later";
  EXPECT_NE(d.words.find("no spare node is left for n2, so the run continues with 4 ranks"), std::string::npos);
}

TEST_F(Decisions, DeckThatFitsNoSmallerNumberIsLeftToTheJob) {
  now.spares = {};
  dead = {"n2"};
  fits = [](int ranks) { return ranks == 4; };
  Decision d = decide_after(saved(lost_at("n2"), 40));
  EXPECT_EQ(d.status, 76);
  EXPECT_FALSE(d.given_up) << "on other nodes it goes on";
  fits = [](int) { return true; };
  rules.least = 4;
  EXPECT_EQ(decide_after(saved(lost_at("n2"), 41)).status, 76);
  rules.least = 3;
  EXPECT_EQ(decide_after(saved(lost_at("n2"), 42)).places.ranks, 3);
}

TEST_F(Decisions, AllNodesLost) {
  dead = {"n1", "n2", "n3", "n4", "n5", "n6"};
  EXPECT_EQ(decide_after(saved(lost_at("n2"), 40)).status, 76);
}

TEST_F(Decisions, NodeAtWhichTwoStartsEndedMakesPlaceForASpare) {
  EXPECT_EQ(decide_after(saved(lost_at("n3"), 40)).places, now);
  const Decision d = decide_after(saved(lost_at("n3"), 80));
  EXPECT_EQ(d.places.nodes, (Names{"n1", "n2", "n5", "n4"}));
  EXPECT_EQ(d.left_out, Names{"n3"});
  now = d.places;
  EXPECT_EQ(decide_after(saved(lost_at("n1"), 120)).places, now);
}

TEST_F(Decisions, WithoutASpareSuchANodeStaysWhileTheRunComesFurther) {
  now.spares = {};
  decide_after(saved(lost_at("n3"), 40));
  const Decision d = decide_after(saved(lost_at("n3"), 80));
  EXPECT_EQ(d.places, now);
  EXPECT_NE(d.words.find("without it there are too few nodes"), std::string::npos);
}

TEST_F(Decisions, WithoutASpareSuchANodeIsLeftOutWhereTheRunComesNoFurther) {
  now.spares = {};
  decide_after(lost_at("n3"));
  const Decision d = decide_after(lost_at("n3"));
  EXPECT_EQ(d.places.nodes, (Names{"n1", "n2", "n4"}));
  EXPECT_EQ(d.places.ranks, 3);
}

TEST_F(Decisions, RankThatIsLostOnTwoNodesTheSameWayWouldBeLostAgain) {
  decide_after(lost_at("n3"));
  const Decision d = decide_after(lost_at("n5"));
  EXPECT_EQ(d.status, 78);
  EXPECT_TRUE(d.given_up);
  ends.clear();
  decide_after(lost_at("n3"));
  EXPECT_FALSE(decide_after(lost_at("n5", "2", "Segmentation fault")).status) << "in another way";
  ends.clear();
  decide_after(lost_at("n3"));
  EXPECT_FALSE(decide_after(lost_at("n4", "3")).status) << "another rank";
  ends.clear();
  decide_after(saved(lost_at("n3"), 40));
  EXPECT_FALSE(decide_after(saved(lost_at("n5"), 80)).status) << "the run came further";
}

TEST_F(Decisions, StartsWithoutANewerSaveAreGivenUp) {
  EXPECT_FALSE(decide_after(saved({.status = 76, .stepped = true}, 40)).status);
  EXPECT_FALSE(decide_after(saved({.status = 76, .stepped = true}, 40)).status) << "not newer";
  EXPECT_FALSE(decide_after({.status = 76, .stepped = true}).status);
  const Decision d = decide_after({.status = 76, .stepped = true});
  EXPECT_EQ(d.status, 79);
  EXPECT_TRUE(d.given_up);
  EXPECT_NE(d.words.find("the last 3 starts saved no newer step"), std::string::npos);
}

TEST_F(Decisions, WhatOtherNodesHaveInMemoryIsProgressToo) {
  const auto copied = [](std::int64_t step) {
    StartEnd end{.status = 76, .stepped = true};
    end.copied = step;
    return end;
  };
  for (std::int64_t step = 10; step < 20; ++step) EXPECT_FALSE(decide_after(copied(step)).status) << step;
  EXPECT_FALSE(decide_after(copied(19)).status);
  EXPECT_FALSE(decide_after(copied(19)).status);
  EXPECT_EQ(decide_after(copied(19)).status, 79);
}

/// As validation/unit/scripts/test_job_scripts.py has them for slurm/ends.sh: what each start saved (0: nothing), and after how many the
/// run is given up.
TEST_F(Decisions, StartsAreCountedAsTheJobScriptsCountThem) {
  const std::vector<std::pair<std::vector<std::int64_t>, std::size_t>> rows{
      {{10, 20, 30, 40, 50}, 0}, {{0, 0, 0}, 3}, {{10, 10, 10, 10}, 4}, {{10, 0, 0, 20, 0, 0, 0}, 7}, {{90, 10, 20, 0, 0, 0}, 6}};
  for (const auto& [steps, given_up] : rows) {
    ends.clear();
    for (const std::int64_t step : steps) {
      StartEnd end{.status = 76, .stepped = true};
      if (step > 0) end.saved = step;
      const bool again = !decide_after(end).status;
      EXPECT_EQ(again, ends.size() != given_up) << "start " << ends.size() << " saved " << step;
    }
  }
}

TEST_F(Decisions, AnyNewerSaveBeginsTheCountAnew) {
  for (std::int64_t step = 1; step <= 20; ++step) EXPECT_FALSE(decide_after(saved({.status = 76, .stepped = true}, step)).status);
}

TEST_F(Decisions, OnlyStartsWithoutAStepWait) {
  rules.tries = 100;
  std::vector<double> pauses;
  for (int i = 0; i < 9; ++i) pauses.push_back(decide_after({.status = 76}).pause_seconds);
  EXPECT_EQ(pauses, (std::vector<double>{0, 1, 2, 4, 8, 16, 32, 60, 60}));
  EXPECT_EQ(decide_after({.status = 76, .stepped = true}).pause_seconds, 0);
  EXPECT_EQ(decide_after({.status = 76}).pause_seconds, 0);
}

TEST_F(Decisions, AskedToStopWhileStartingStartsNothing) {
  StartEnd end = lost_at("n3");
  end.asked = true;
  const Decision d = decide_after(end);
  EXPECT_EQ(d.status, 76);
  EXPECT_FALSE(d.given_up);
  EXPECT_TRUE(asked.empty());
}

TEST(LostPlaces, AreNamed) {
  EXPECT_EQ(name_of({.node = "n3", .rank = "2", .way = "Killed"}), "rank 2 on n3 (Killed)");
  EXPECT_EQ(name_of({.node = "n3", .way = "did not come"}), "a rank on n3 (did not come)");
  EXPECT_EQ(name_of({.node = "n3", .way = "node failure", .whole_node = true}), "node n3 (node failure)");
  EXPECT_EQ(name_of({.rank = "1", .way = "ended"}), "rank 1 (ended)");
  EXPECT_EQ(name_of({}), "");
}

}  // namespace tessera::decide_test
