// The order of the data: every epoch takes every sample once, each in an order of its own.
#include "train/data/data_order.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace tessera::data_order_test {
namespace {

std::vector<std::int64_t> epoch(std::uint64_t seed, std::int64_t samples, std::int64_t number) {
  std::vector<std::int64_t> order;
  for (std::int64_t i = 0; i < samples; ++i) order.push_back(sample_at(seed, samples, number * samples + i));
  return order;
}

TEST(DataOrder, EveryEpochTakesEverySampleOnce) {
  for (std::int64_t samples = 1; samples <= 1000; samples += samples < 70 ? 1 : 31)
    for (std::int64_t number : {0, 1, 7}) {
      std::vector<int> seen(static_cast<std::size_t>(samples), 0);
      for (std::int64_t s : epoch(static_cast<std::uint64_t>(samples), samples, number)) {
        ASSERT_GE(s, 0);
        ASSERT_LT(s, samples);
        ASSERT_EQ(seen[static_cast<std::size_t>(s)]++, 0) << "sample " << s << " of " << samples << " comes twice";
      }
    }
}

TEST(DataOrder, PowersOfTwoAndTheirNeighbours) {
  for (std::int64_t samples : {1023, 1024, 1025, 4095, 4096, 4097}) {
    std::vector<bool> seen(static_cast<std::size_t>(samples), false);
    for (std::int64_t s : epoch(1, samples, 0)) {
      ASSERT_LT(s, samples);
      seen[static_cast<std::size_t>(s)] = true;
    }
    EXPECT_EQ(std::count(seen.begin(), seen.end(), true), samples);
  }
}

TEST(DataOrder, EpochsAndSeedsDiffer) {
  const auto first = epoch(1, 500, 0);
  EXPECT_EQ(epoch(1, 500, 0), first);
  EXPECT_NE(epoch(1, 500, 1), first);
  EXPECT_NE(epoch(2, 500, 0), first);
  EXPECT_NE(epoch(2, 500, 0), epoch(1, 500, 1));
}

TEST(DataOrder, LooksLikeChance) {
  // A random permutation has about one fixed point and about one sample that its successor follows; a weak one has many.
  double fixed = 0, followed = 0;
  constexpr std::int64_t samples = 300, epochs = 200;
  for (std::int64_t e = 0; e < epochs; ++e) {
    const auto order = epoch(3, samples, e);
    for (std::size_t i = 0; i < order.size(); ++i) {
      fixed += order[i] == static_cast<std::int64_t>(i);
      followed += i > 0 && order[i] == order[i - 1] + 1;
    }
  }
  EXPECT_NEAR(fixed / epochs, 1, 0.5);  // standard deviation 0.07
  EXPECT_NEAR(followed / epochs, 1, 0.5);
  // Where a sample lands is uniform: the first sample's place over epochs has mean near the middle.
  double place = 0;
  for (std::int64_t e = 0; e < 400; ++e) place += static_cast<double>(sample_at(3, samples, e * samples));
  EXPECT_NEAR(place / 400 / samples, 0.5, 0.1);
}

TEST(DataOrder, HugeDataSetsAreReachedEverywhere) {
  const std::int64_t samples = std::int64_t{3} << 40;
  std::int64_t smallest = samples, largest = 0;
  for (std::int64_t i = 0; i < 2000; ++i) {
    const std::int64_t s = sample_at(1, samples, samples - 1 - i);
    ASSERT_TRUE(s >= 0 && s < samples);
    smallest = std::min(smallest, s), largest = std::max(largest, s);
  }
  EXPECT_LT(smallest, samples / 100);
  EXPECT_GT(largest, samples / 100 * 99);
}

}  // namespace
}  // namespace tessera::data_order_test
