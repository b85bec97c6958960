#include "topology/failure/watch_tree.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace tessera::watch_tree_test {
namespace {

std::vector<int> nodes_of(int ranks, int size) {
  std::vector<int> leaders;
  for (int rank = 0; rank < ranks; ++rank) leaders.push_back(rank - rank % size);
  return leaders;
}

TEST(WatchTree, EveryRankIsReachedWithFewLinksAndInFewSteps) {
  const struct {
    int ranks, size, depth;
  } cases[] = {{1, 1, 0},     {2, 1, 1},   {8, 8, 1},     {33, 33, 1},   {34, 34, 2},     {32, 1, 1},
               {512, 128, 3}, {512, 8, 4}, {16384, 1, 3}, {16384, 8, 4}, {16384, 128, 4}, {16381, 7, 4}};
  for (const auto& [ranks, size, depth] : cases) {
    const WatchTree tree(nodes_of(ranks, size));
    int deepest = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const std::vector<int>& children = tree.children(rank);
      EXPECT_LE(std::ssize(children) + (rank > 0), most_links) << rank;
      EXPECT_TRUE(std::ranges::is_sorted(children));
      for (int child : children) EXPECT_EQ(tree.parent(child), rank);
      int steps = 0;
      for (int at = rank; at != 0; at = tree.parent(at)) ASSERT_LT(++steps, ranks);
      deepest = std::max(deepest, steps);
      EXPECT_EQ(tree.way_down(0, rank) >= 0, rank > 0);
    }
    EXPECT_LE(deepest, depth) << ranks << " ranks, " << size << " a node";
  }
}

TEST(WatchTree, NodesTalkByTheirFirstRanks) {
  const WatchTree tree(nodes_of(512, 8));
  EXPECT_EQ(tree.parent(8), 0);
  EXPECT_EQ(tree.parent(15), 8);
  EXPECT_EQ(tree.parent(256), 8) << "node 32 hangs below node 1";
  EXPECT_EQ(tree.way_down(0, 263), 8);
  EXPECT_EQ(tree.way_down(8, 263), 256);
  EXPECT_EQ(tree.way_down(8, 7), -1);
  // Ranks that take turns over the nodes.
  const WatchTree turns(std::vector{0, 1, 0, 1});
  EXPECT_EQ(turns.children(0), (std::vector{1, 2}));
  EXPECT_EQ(turns.children(1), std::vector{3});
}

}  // namespace
}  // namespace tessera::watch_tree_test
