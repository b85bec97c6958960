// Drawing of tokens.
#include "train/text/sampling.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <vector>

#include "../scratch.hpp"
#include "memory/runtime.hpp"

namespace tessera::sampling_test {
namespace {

const std::vector<float> logits = {0.0f, 2.0f, 1.0f, -1.0f, 1.5f};

std::map<std::int32_t, double> shares(double temperature, std::int64_t top_k, std::uint64_t seed = 1) {
  std::map<std::int32_t, double> share;
  constexpr int draws = 20000;
  for (int i = 0; i < draws; ++i) share[sample_token(logits, temperature, top_k, seed, i)] += 1.0 / draws;
  return share;
}

TEST(SampleToken, ZeroTemperatureTakesTheLargest) {
  for (std::int64_t position = 0; position < 20; ++position) EXPECT_EQ(sample_token(logits, 0, 0, 1, position), 1);
}

TEST(SampleToken, DrawsByTheirProbability) {
  for (double temperature : {0.5, 1.0, 2.0}) {
    double sum = 0;
    for (float x : logits) sum += std::exp(x / temperature);
    auto share = shares(temperature, 0);
    for (std::int32_t token = 0; token < 5; ++token)
      EXPECT_NEAR(share[token], std::exp(logits[static_cast<std::size_t>(token)] / temperature) / sum, 0.015)
          << token << " at " << temperature;
  }
}

TEST(SampleToken, TopKLeavesTheRestOut) {
  auto share = shares(1.0, 2);
  EXPECT_EQ(share.size(), 2u);
  EXPECT_NEAR(share[1], 1 / (1 + std::exp(-0.5)), 0.015);
  EXPECT_EQ(shares(1.0, 1).size(), 1u);
  EXPECT_EQ(shares(1.0, 100).size(), 5u) << "more than there are: all";
}

TEST(SampleToken, DependsOnSeedAndPositionAlone) {
  EXPECT_EQ(sample_token(logits, 1, 0, 3, 7), sample_token(logits, 1, 0, 3, 7));
  EXPECT_NE(shares(1.0, 0, 1), shares(1.0, 0, 2));
}

TEST(SampleToken, HugeLogitsAndTinyTemperaturesStayFinite) {
  for (std::int64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(sample_token(std::vector<float>{1e30f, -1e30f, 0.0f}, 1, 0, 1, i), 0);
    EXPECT_EQ(sample_token(logits, 1e-6, 0, 1, i), 1);
  }
}

// A vocabulary that several threads share: no token is lost where their pieces meet, and none that is impossible is drawn.
TEST(SampleToken, ReachesAllOfALargeVocabulary) {
  std::vector<float> flat(20000, -INFINITY);
  for (std::size_t i : {0u, 4095u, 4096u, 8191u, 19999u}) flat[i] = 3.0f;
  std::map<std::int32_t, int> drawn;
  for (int i = 0; i < 500; ++i) ++drawn[sample_token(flat, 1.0, 0, 1, i)];
  EXPECT_EQ(drawn.size(), 5u);
  for (const auto& [token, times] : drawn) {
    EXPECT_EQ(flat[static_cast<std::size_t>(token)], 3.0f) << token;
    EXPECT_NEAR(times, 100, 35) << token;
  }
}

TEST(SampleToken, OfEqualsTheLowerIdComesFirst) {
  std::vector<float> flat(10000, 1.0f);
  for (std::size_t i : {9000u, 4096u, 70u}) flat[i] = 2.0f;
  for (std::int64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(sample_token(flat, 0.8, 1, 1, i), 70) << "the token of temperature 0";
    const std::int32_t of_two = sample_token(flat, 0.8, 2, 1, i), of_five = sample_token(flat, 100, 5, 1, i);
    EXPECT_TRUE(of_two == 70 || of_two == 4096) << of_two;
    EXPECT_TRUE(of_five < 2 || of_five == 70 || of_five == 4096 || of_five == 9000) << of_five;
  }
}

// A NaN once gave the last id of the vocabulary, which for the byte tokenizer ends the text as if all were well.
TEST(SampleToken, LogitsThatAreNoNumbersAreRefusedWithTheTokensNumber) {
  const float nan = std::nanf("");
  for (double temperature : {0.0, 0.8})
    for (std::int64_t top_k : {0, 1, 3})
      for (std::size_t size : {5u, 9000u}) {
        const auto expect_refused = [&](const std::vector<float>& x) {
          const std::string text = test::error_of(ExitCode::numerics, [&] { sample_token(x, temperature, top_k, 1, 12); });
          for (const char* part : {"token 12", "tessera inspect CHECKPOINT --verify"}) EXPECT_TRUE(test::has(text, part)) << text;
        };
        expect_refused(std::vector<float>(size, nan));
        expect_refused(std::vector<float>(size, -INFINITY));
        for (std::size_t at : {std::size_t{0}, size / 2, size - 1}) {
          std::vector<float> x(size, 1.0f);
          x[at] = nan;
          expect_refused(x);
        }
      }
  EXPECT_TRUE(test::has(test::error_of(ExitCode::numerics,
                                       [&] {
                                         sample_token(std::vector<float>{1, INFINITY, 2}, 1, 0, 1, 0);
                                       }),
                        "token 0"));
}

}  // namespace
}  // namespace tessera::sampling_test
