// Which file of a mixture comes when: each has its share of any number of samples.
#include "train/data/interleave.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "base/types.hpp"

namespace tessera::interleave_test {
namespace {

using Shares = std::vector<std::int64_t>;

/// Walks two periods, and holds counts and places against what was walked over.
void check_every_place(const Shares& shares) {
  const Interleave order(shares);
  const std::int64_t W = std::accumulate(shares.begin(), shares.end(), std::int64_t{0});
  ASSERT_EQ(order.period(), W);
  Shares seen(shares.size(), 0);
  for (std::int64_t i = 0; i <= 2 * W; ++i) {
    for (std::size_t k = 0; k < shares.size(); ++k) {
      const std::int64_t count = order.count(static_cast<int>(k), i);
      ASSERT_EQ(count, seen[k]) << "source " << k << " of " << shares.size() << " at " << i;
      ASSERT_GE(count, i * shares[k] / W) << "source " << k << " comes late at " << i;
      ASSERT_LE(count, ceil_div(i * shares[k], W)) << "source " << k << " comes early at " << i;
    }
    const Interleave::Place place = order.at(i);
    ASSERT_EQ(place.number, seen[static_cast<std::size_t>(place.source)]++);
  }
}

TEST(Interleave, EachSourceHasItsShareAfterAnyNumberOfSamples) {
  for (const Shares& shares :
       {Shares{1}, {5}, {1, 1}, {7, 3}, {1, 999}, {999, 1}, {1, 2, 3}, {5, 5, 5, 1}, {600, 300, 99, 1}, {1, 1, 1, 1, 1, 1, 1}})
    check_every_place(shares);
  std::mt19937_64 random(5);
  for (int round = 0; round < 60; ++round) {
    Shares shares(1 + random() % 12);
    for (std::int64_t& share : shares) share = 1 + static_cast<std::int64_t>(random() % (random() % 2 ? 5 : 200));
    check_every_place(shares);
  }
}

TEST(Interleave, IsAtAnyPlaceAtOnce) {
  const Interleave order({7, 2, 1});
  EXPECT_EQ(order.at(0).source, 0);
  for (std::int64_t i = 0; i < 10; ++i) {
    const std::int64_t far = 10'000'000'000'000'000 + i;
    EXPECT_EQ(order.at(far).source, order.at(i).source);
    EXPECT_EQ(order.at(far).number,
              1'000'000'000'000'000 * order.shares()[static_cast<std::size_t>(order.at(i).source)] + order.at(i).number);
  }
}

TEST(Interleave, WeightsOfFewDigitsAreExact) {
  const auto shares = [](std::vector<double> weights) { return whole_shares(weights); };
  EXPECT_EQ(shares({0.7, 0.3}), (Shares{7, 3}));
  EXPECT_EQ(shares({70, 30}), (Shares{7, 3}));
  EXPECT_EQ(shares({0.29, 0.57, 0.14}), (Shares{29, 57, 14}));
  EXPECT_EQ(shares({1, 2, 3}), (Shares{1, 2, 3}));
  EXPECT_EQ(shares({1e9, 1e9}), (Shares{1, 1}));
  EXPECT_EQ(shares({1e-9, 2e-9}), (Shares{1, 2}));
  EXPECT_EQ(shares({0.125, 1.5}), (Shares{1, 12}));
  EXPECT_EQ(shares({3.5}), (Shares{1}));
}

TEST(Interleave, OtherWeightsAreWithinAMillionth) {
  std::mt19937_64 random(6);
  for (int round = 0; round < 200; ++round) {
    std::vector<double> weights(2 + random() % 6);
    for (double& weight : weights) weight = 1e-3 + static_cast<double>(random() % 1000003) / 999983;
    const Shares shares = whole_shares(weights);
    const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
    const auto W = static_cast<double>(std::accumulate(shares.begin(), shares.end(), std::int64_t{0}));
    for (std::size_t k = 0; k < weights.size(); ++k)
      EXPECT_NEAR(static_cast<double>(shares[k]) / W, weights[k] / all, 4e-6) << "weight " << weights[k];
  }
  EXPECT_EQ(std::ranges::min(whole_shares(std::vector<double>{1.0 / 3, 1e-9})), 1) << "no source is left out";
}

}  // namespace
}  // namespace tessera::interleave_test
