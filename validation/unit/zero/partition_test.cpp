// Who owns what: ranges tile units, cuts respect buckets and blocks, padding is what no tensor has.
#include "zero/partition.hpp"

#include <gtest/gtest.h>

#include "../model/random_models.hpp"

namespace tessera::partition_test {
namespace {

TEST(OwnedRange, RanksTileEveryUnit) {
  test::Random random(1);
  for (int trial = 0; trial < 200; ++trial) {
    const Layout layout = test::random_layout(random);
    for (int u = 0; u < static_cast<int>(layout.units.size()); ++u) {
      std::int64_t at = 0;
      for (int rank = 0; rank < layout.shards; ++rank) {
        const Range mine = owned_range(layout, u, rank);
        EXPECT_EQ(mine.begin, at);
        EXPECT_EQ(mine.size() % shard_block, 0);
        at = mine.end;
      }
      EXPECT_EQ(at, layout.units[static_cast<std::size_t>(u)].elements);
    }
  }
}

TEST(CutShard, PiecesCoverInOrderOnWholeBlocks) {
  test::Random random(2);
  for (int trial = 0; trial < 2000; ++trial) {
    const std::int64_t n = shard_block * random(0, 40), bucket = random(1, 40000);
    const int shards = static_cast<int>(random(1, 9));
    std::int64_t at = 0;
    for (const Range& piece : cut_shard(n, shards, bucket)) {
      ASSERT_EQ(piece.begin, at);
      ASSERT_GT(piece.size(), 0);
      ASSERT_EQ(piece.size() % shard_block, 0);
      // A collective moves the piece of every shard; one block of each is the least it can move.
      ASSERT_TRUE(piece.size() * shards <= bucket || piece.size() == shard_block) << piece.size() << " x " << shards << " of " << bucket;
      at = piece.end;
    }
    ASSERT_EQ(at, n);
  }
}

TEST(CutShard, IsNoFinerThanTheBucketAsks) {
  EXPECT_EQ(cut_shard(10 * shard_block, 2, 500'000'000).size(), 1u);
  EXPECT_EQ(cut_shard(10 * shard_block, 2, 10 * shard_block).size(), 2u);
  EXPECT_EQ(cut_shard(10 * shard_block, 2, 1).size(), 10u);
  EXPECT_TRUE(cut_shard(0, 4, 1000).empty());
}

TEST(PaddingOf, ComplementsTheTensors) {
  test::Random random(3);
  for (int trial = 0; trial < 200; ++trial) {
    const Layout layout = test::random_layout(random);
    for (const Unit& unit : layout.units) {
      std::vector<int> owners(static_cast<std::size_t>(unit.elements), 0);
      for (const Slot& slot : unit.slots)
        for (std::int64_t i = 0; i < slot.elements; ++i) ++owners[static_cast<std::size_t>(slot.offset + i)];
      for (const Range& gap : padding_of(unit)) {
        ASSERT_LT(gap.begin, gap.end);
        for (std::int64_t i = gap.begin; i < gap.end; ++i) ++owners[static_cast<std::size_t>(i)];
      }
      ASSERT_TRUE(std::all_of(owners.begin(), owners.end(), [](int n) { return n == 1; })) << unit.name;
    }
  }
}

TEST(UnitStorage, EachStageShardsOneThingMore) {
  const Unit layer{.name = "layers.0", .slots = {}}, persistent{.name = "persistent", .slots = {}, .elements = 0, .persistent = true};
  for (int stage = 0; stage <= 3; ++stage) {
    const UnitStorage s = unit_storage(stage, layer, 4);
    EXPECT_EQ(s.optimizer_whole, stage < 1);
    EXPECT_EQ(s.gradients_whole, stage < 2);
    EXPECT_EQ(s.parameters_whole, stage < 3);
    EXPECT_TRUE(unit_storage(stage, persistent, 4).parameters_whole);
    EXPECT_EQ(unit_storage(stage, persistent, 4).gradients_whole, stage < 2);
    const UnitStorage alone = unit_storage(stage, layer, 1);
    EXPECT_TRUE(alone.optimizer_whole && alone.gradients_whole && alone.parameters_whole);
  }
}

}  // namespace
}  // namespace tessera::partition_test
