#include "topology/mesh.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/check.hpp"
#include "topology/mesh_map.hpp"

namespace tessera::mesh_test {
namespace {

const Mesh every_axis{{2, 1, 3, 2, 1, 4}};

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
  EXPECT_EQ(group_of(every_axis, axes({Axis::tp}), 5).world, (std::vector<int>{4, 5, 6, 7}));
  EXPECT_EQ(group_of(every_axis, axes({Axis::cp}), 5).world, (std::vector<int>{1, 5}));
  EXPECT_EQ(group_of(every_axis, axes({Axis::dp}), 5).world, (std::vector<int>{5, 13, 21}));
  EXPECT_EQ(group_of(every_axis, axes({Axis::pp}), 5).world, (std::vector<int>{5, 29}));
  EXPECT_EQ(group_of(every_axis, axes({Axis::ep}), 5).world, (std::vector<int>{5}));
  EXPECT_EQ(group_of(every_axis, axes({Axis::dp, Axis::cp}), 5).world, (std::vector<int>{1, 5, 9, 13, 17, 21}));
  EXPECT_EQ(group_of(every_axis, 0, 5).world, (std::vector<int>{5}));
}

TEST(Mesh, GroupsOfAnySetOfAxesCoverAllRanksOnce) {
  for (Axes set = 0; set < 1 << axis_count; ++set) {
    std::set<std::pair<int, int>> places;  // of a rank: its group's first member, its index there
    for (int rank = 0; rank < every_axis.ranks(); ++rank) {
      const Group group = group_of(every_axis, set, rank);
      ASSERT_EQ(static_cast<int>(group.world.size()), group.size);
      EXPECT_EQ(group.world[static_cast<std::size_t>(group.rank)], rank);
      EXPECT_TRUE(std::is_sorted(group.world.begin(), group.world.end()));
      for (const int member : group.world) EXPECT_EQ(group_of(every_axis, set, member).world, group.world);
      EXPECT_TRUE(places.insert({group.world.front(), group.rank}).second);
    }
  }
  EXPECT_EQ(describe(axes({Axis::tp, Axis::dp})), "dp x tp");
}

TEST(Mesh, ReplicasAreGroupsOfNeighboursThatShareTheBatch) {
  const Mesh mesh = make_mesh({.dp = 6, .tp = 2, .replicate = 2}, 12);
  EXPECT_EQ(mesh, (Mesh{{1, 2, 3, 1, 1, 2}}));
  EXPECT_EQ(describe(mesh), "pp 1 x replicate 2 x dp 3 x cp 1 x ep 1 x tp 2");
  EXPECT_EQ(describe(make_mesh({.dp = 6}, 6)), "pp 1 x dp 6 x cp 1 x ep 1 x tp 1");
  EXPECT_EQ(group_of(mesh, owner_axes(mesh), 9).world, (std::vector<int>{7, 9, 11}));
  EXPECT_EQ(group_of(mesh, axes({Axis::replicate}), 9).world, (std::vector<int>{3, 9}));
  EXPECT_EQ(group_of(mesh, batch_axes(mesh), 9).world, (std::vector<int>{1, 3, 5, 7, 9, 11}))
      << "the order of the batch is that of dp alone";
  EXPECT_EQ(batch_ranks(mesh), 6);
  EXPECT_THROW(make_mesh({.dp = 6, .replicate = 4}, 6), Error);
}

TEST(Mesh, GroupsWithAComputeCopyShareTheState) {
  const Mesh mesh = make_mesh({.dp = 4, .tp = 2}, 8, 2);
  EXPECT_EQ(mesh, (Mesh{{1, 2, 2, 1, 1, 2}, true}));
  EXPECT_EQ(describe(mesh), "pp 1 x replicate 2 x dp 2 x cp 1 x ep 1 x tp 2, replicas of compute copies alone");
  // Ranks 0, 2 are a group along dp, and 4, 6 the other; those with the same part of a copy are neighbours.
  EXPECT_EQ(group_of(mesh, owner_axes(mesh), 0).world, (std::vector<int>{0, 4, 2, 6}));
  EXPECT_EQ(group_of(mesh, owner_axes(mesh), 2).rank, 2);
  EXPECT_EQ(group_of(mesh, axes({Axis::replicate}), 2).world, (std::vector<int>{2, 6}));
  EXPECT_EQ(group_of(mesh, axes({Axis::dp}), 6).world, (std::vector<int>{4, 6}));
  EXPECT_EQ(batch_group(make_mesh({.dp = 2, .ep = 2}, 4, 2), 3).world, (std::vector<int>{0, 1, 2, 3})) << "experts' ranks side by side";
  EXPECT_EQ(make_mesh({.dp = 4}, 4, 4), (Mesh{{1, 1, 4, 1, 1, 1}})) << "one group is no groups";
  EXPECT_EQ(make_mesh({.dp = 2, .cp = 2}, 4, 2), (Mesh{{1, 2, 1, 2, 1, 1}, true}));
  EXPECT_THROW(make_mesh({.dp = 4}, 4, 3), Error);
  EXPECT_THROW(make_mesh({.dp = 2, .cp = 2}, 4, 1 + 2), Error);
}

TEST(Mesh, TheEndsOfAPipelineAreItsFirstAndLastStage) {
  const Mesh mesh{{3, 1, 2, 1, 1, 2}};
  EXPECT_EQ(group_of(mesh, pipeline_ends, 1).world, (std::vector<int>{1, 9}));
  EXPECT_EQ(group_of(mesh, pipeline_ends, 9).rank, 1);
  EXPECT_EQ(group_of(mesh, static_cast<Axes>(data_axes | pipeline_ends), 8).world, (std::vector<int>{0, 2, 8, 10}));
  EXPECT_THROW(group_of(mesh, pipeline_ends, 5), Error) << "a stage between them";
  EXPECT_EQ(group_of({{1, 1, 2, 1, 1, 1}}, pipeline_ends, 1).size, 1);
  EXPECT_EQ(describe(static_cast<Axes>(data_axes | pipeline_ends)), "dp x ends of pp");
}

TEST(Mesh, DataParallelTakesWhatIsLeft) {
  EXPECT_EQ(make_mesh({.dp = 0}, 6), (Mesh{{1, 1, 6, 1, 1, 1}}));
  EXPECT_EQ(make_mesh({.dp = 0, .tp = 2, .pp = 3}, 12), (Mesh{{3, 1, 2, 1, 1, 2}}));
  EXPECT_EQ(describe(make_mesh({.dp = 4}, 4)), "pp 1 x dp 4 x cp 1 x ep 1 x tp 1");
}

TEST(Mesh, ExpertParallelRanksDivideTheBatchAndShareAllButExperts) {
  const Mesh plain{{2, 1, 3, 1, 1, 2}}, experts{{1, 1, 3, 2, 2, 1}};
  EXPECT_EQ(batch_axes(plain), data_axes);
  EXPECT_EQ(owner_axes(plain), data_axes);
  EXPECT_EQ(alike_axes(plain), data_axes);
  EXPECT_EQ(expert_owner_axes(plain), axes({Axis::dp, Axis::tp})) << "which cuts no expert";
  EXPECT_EQ(batch_axes(experts), axes({Axis::dp, Axis::ep}));
  EXPECT_EQ(owner_axes(experts), axes({Axis::dp, Axis::cp, Axis::ep}));
  EXPECT_EQ(alike_axes(experts), axes({Axis::dp, Axis::cp}));
  EXPECT_EQ(expert_owner_axes(experts), axes({Axis::dp, Axis::cp}));
  EXPECT_EQ(batch_ranks(experts), 6);
  EXPECT_EQ(group_of(experts, batch_axes(experts), 7).world, (std::vector<int>{2, 3, 6, 7, 10, 11})) << "of the second share of sequences";
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

TEST(MeshMap, NamesTheRanksOfEachNodeAndTheReachOfEachAxis) {
  EXPECT_EQ(print_map({{1, 1, 2, 1, 1, 4}}, 4),
            "  node 0     ranks 0-3: dp 0, tp 0-3\n"
            "  node 1     ranks 4-7: dp 1, tp 0-3\n"
            "  dp         4 groups of 2 ranks, over 2 nodes\n"
            "  tp         2 groups of 4 ranks, each inside a node\n");
  EXPECT_EQ(print_map({{1, 1, 4, 1, 1, 2}}, 8),
            "  node 0     ranks 0-7: dp 0-3, tp 0-1\n"
            "  dp         2 groups of 4 ranks, each inside a node\n"
            "  tp         4 groups of 2 ranks, each inside a node\n");
  EXPECT_EQ(print_map({{1, 1, 2, 1, 1, 3}}, 4),
            "  node 0     ranks 0-2: dp 0, tp 0-2; rank 3: dp 1, tp 0\n"
            "  node 1     ranks 4-5: dp 1, tp 1-2\n"
            "  dp         3 groups of 2 ranks, over 2 nodes\n"
            "  tp         2 groups of 3 ranks, over 2 nodes\n");
  EXPECT_EQ(print_map({}, 8), "  node 0     rank 0\n");
}

TEST(MeshMap, GroupsReachAsManyNodesAsTheirMembers) {
  for (int per_node = 1; per_node <= 9; ++per_node)
    for (const Axis axis : all_axes) {
      std::size_t most = 0;
      for (int rank = 0; rank < every_axis.ranks(); ++rank) {
        std::set<int> nodes;
        for (int other = 0; other < every_axis.ranks(); ++other) {
          Coordinates a = coordinates_of(every_axis, rank), b = coordinates_of(every_axis, other);
          a[static_cast<std::size_t>(axis)] = b[static_cast<std::size_t>(axis)] = 0;
          if (a == b) nodes.insert(other / per_node);
        }
        most = std::max(most, nodes.size());
      }
      EXPECT_EQ(nodes_of_groups(every_axis, axis, per_node), static_cast<int>(most)) << name_of(axis) << " " << per_node;
    }
}

}  // namespace
}  // namespace tessera::mesh_test
