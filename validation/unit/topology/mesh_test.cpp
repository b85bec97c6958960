#include "topology/mesh.hpp"

#include <gtest/gtest.h>

#include <set>

#include "base/check.hpp"

namespace tessera {
namespace {

const Mesh every_axis{{2, 3, 2, 1, 4}};

TEST(Mesh, RanksAndCoordinatesAreInverse) {
  ASSERT_EQ(every_axis.ranks(), 48);
  std::set<Coordinates> seen;
  for (int rank = 0; rank < every_axis.ranks(); ++rank) {
    Coordinates at = coordinates_of(every_axis, rank);
    EXPECT_EQ(rank_of(every_axis, at), rank);
    seen.insert(at);
  }
  EXPECT_EQ(seen.size(), 48u);
}

TEST(Mesh, TensorParallelNeighboursAreConsecutiveRanks) {
  EXPECT_EQ(axis_group(every_axis, Axis::tp, 5).ranks, (std::vector<int>{4, 5, 6, 7}));
  EXPECT_EQ(axis_group(every_axis, Axis::cp, 5).ranks, (std::vector<int>{1, 5}));
  EXPECT_EQ(axis_group(every_axis, Axis::dp, 5).ranks, (std::vector<int>{5, 13, 21}));
  EXPECT_EQ(axis_group(every_axis, Axis::pp, 5).ranks, (std::vector<int>{5, 29}));
  EXPECT_EQ(axis_group(every_axis, Axis::ep, 5).ranks, (std::vector<int>{5}));
}

TEST(Mesh, GroupsOfAnAxisCoverAllRanksOnce) {
  for (Axis axis : all_axes) {
    std::set<std::pair<int, int>> places;
    for (int rank = 0; rank < every_axis.ranks(); ++rank) {
      AxisGroup group = axis_group(every_axis, axis, rank);
      ASSERT_EQ(static_cast<int>(group.ranks.size()), every_axis.size(axis));
      EXPECT_EQ(group.ranks[static_cast<std::size_t>(group.key)], rank);
      EXPECT_LT(group.colour, every_axis.ranks() / every_axis.size(axis));
      for (int member : group.ranks) EXPECT_EQ(axis_group(every_axis, axis, member).colour, group.colour);
      EXPECT_TRUE(places.insert({group.colour, group.key}).second);
    }
  }
}

TEST(Mesh, DataParallelTakesWhatIsLeft) {
  EXPECT_EQ(make_mesh({.dp = 0}, 6), (Mesh{{1, 6, 1, 1, 1}}));
  EXPECT_EQ(make_mesh({.dp = 0, .tp = 2, .pp = 3}, 12), (Mesh{{3, 2, 1, 1, 2}}));
  EXPECT_EQ(describe(make_mesh({.dp = 4}, 4)), "pp 1 x dp 4 x cp 1 x ep 1 x tp 1");
}

TEST(Mesh, RefusesWhatDoesNotMultiplyToTheRanks) {
  try {
    make_mesh({.dp = 3}, 4);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code, ExitCode::usage);
    EXPECT_NE(std::string(error.what()).find("set mesh.dp = 4 or start 3 ranks"), std::string::npos) << error.what();
  }
  EXPECT_THROW(make_mesh({.dp = 0, .tp = 4}, 6), Error);
  EXPECT_THROW(make_mesh({.dp = 0, .tp = 0}, 6), Error);
  EXPECT_THROW(coordinates_of(every_axis, 48), Error);
  EXPECT_THROW(rank_of(every_axis, {0, 3, 0, 0, 0}), Error);
}

}  // namespace
}  // namespace tessera
