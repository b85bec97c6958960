// What differs between ranks, and what all have.
#include "report/ranks.hpp"

#include <gtest/gtest.h>

#include "base/json.hpp"

namespace tessera::ranks_test {
namespace {

/// Three ranks on two nodes, of which one has an adapter more, another limit, and memory that is taken meanwhile.
RanksAround small_cluster() {
  const auto rank = [](const char* host, const char* files, const char* free) {
    Surroundings s;
    s.facts = {{"node", "host", host}, {"node", "processor", "fast"}, {"node", "free memory", free, true}, {"limits", "open files", files}};
    s.lacking = {{"all", "why", "what"}};
    return s;
  };
  RanksAround around{.map = "0-1 on n1, 2 on n2"};
  around.ranks = {rank("n1", "1024", "9 GiB"), rank("n1", "512", "8 GiB"), rank("n2", "1024", "9 GiB")};
  around.nodes = {0, 0, 1};
  around.ranks[2].facts.insert(around.ranks[2].facts.begin() + 1, Fact{"links", "mlx5_0:1", "400 Gb/sec (4X NDR), ACTIVE"});
  around.ranks[2].lacking.push_back({"one", "its own", ""});
  return around;
}

TEST(Ranks, WhatIsTheSameIsSaidOnceAndWhatDiffersByItsRanks) {
  EXPECT_EQ(print_ranks(small_cluster()), R"(ranks 0-1 on n1, 2 on n2

the same on all ranks

node
  processor                    fast
  free memory                  9 GiB

what differs

node
  host
    ranks 0-1                  n1
    rank 2                     n2
limits
  open files
    ranks 0,2                  1024
    rank 1                     512
links
  mlx5_0:1
    ranks 0-1                  none
    rank 2                     400 Gb/sec (4X NDR), ACTIVE

lacks
  all: why; what
  one (rank 2): its own
)");
}

TEST(Ranks, JsonHasTheSame) {
  const auto json = Json::parse(ranks_json(small_cluster()));
  EXPECT_EQ(json["same"], Json::parse(R"({"node": {"processor": "fast", "free memory": "9 GiB"}})"));
  ASSERT_EQ(json["differs"].size(), 3u);
  EXPECT_EQ(json["differs"][1]["values"][0], Json::parse(R"({"ranks": [0, 2], "value": "1024"})"));
  EXPECT_EQ(json["lacking"][1]["ranks"], Json::parse("[2]"));
}

TEST(Ranks, AreUnpackedAsTheyWerePacked) {
  for (const Surroundings& rank : small_cluster().ranks) {
    const Surroundings again = unpack(pack(rank));
    EXPECT_EQ(print_surroundings(again), print_surroundings(rank));
    EXPECT_EQ(again.facts[2].passing, rank.facts[2].passing);
  }
  Surroundings hostile;
  hostile.facts = {{"node", "host", "\xff\x1b"}};  // no UTF-8
  EXPECT_EQ(unpack(pack(hostile)).facts.size(), 1u);
}

}  // namespace
}  // namespace tessera::ranks_test
