#include "schedule/build/micro_batches.hpp"

#include <gtest/gtest.h>

#include <set>

namespace tessera::micro_batches_test {
namespace {

Deck with(std::int64_t global, std::int64_t micro, std::int64_t ep = 1) {
  Deck deck;
  deck.batch = {.global = global, .micro = micro, .sequence_length = 16};
  deck.mesh.ep = ep;
  return deck;
}

// Whatever the number of ranks, each micro-batch runs once.
TEST(MicroBatches, EachRunsOnce) {
  for (std::int64_t count : {1, 2, 5, 8, 30})
    for (int ranks = 1; ranks <= 9; ++ranks) {
      const Deck deck = with(3 * count, 3, ranks % 3 == 0 ? 3 : ranks % 2 == 0 ? 2 : 1);
      std::set<std::int64_t> seen;
      for (int rank = 0; rank < ranks; ++rank)
        for (std::int64_t place = 0; place < accumulation_steps(deck, ranks); ++place)
          if (const auto number = micro_batch_at(deck, ranks, rank, place)) {
            EXPECT_TRUE(seen.insert(*number).second) << *number;
          }
      EXPECT_EQ(static_cast<std::int64_t>(seen.size()), count) << ranks;
      EXPECT_EQ(*seen.rbegin(), count - 1);
      EXPECT_LT((accumulation_steps(deck, ranks) - 1) * ranks, count);
    }
}

// Those that meet in the exchanges of expert-parallel ranks follow each other, and are the same ones over any number of data-parallel
// ranks.
TEST(MicroBatches, ThoseThatMeetDoNotDependOnDataParallelRanks) {
  for (const int ep : {2, 4})
    for (const std::int64_t count : {1, 3, 8, 21})
      for (const int dp : {1, 2, 3}) {
        const Deck deck = with(count, 1, ep);
        for (int d = 0; d < dp; ++d)
          for (std::int64_t place = 0; place < accumulation_steps(deck, dp * ep); ++place) {
            const auto first = micro_batch_at(deck, dp * ep, d * ep, place);
            for (int e = 0; e < ep; ++e) {
              const auto number = micro_batch_at(deck, dp * ep, d * ep + e, place);
              if (first) {
                EXPECT_EQ(*first % ep, 0);
              }
              if (number) {
                EXPECT_EQ(*number, *first + e);
              } else {
                EXPECT_TRUE(!first || *first + e >= count);
              }
            }
          }
      }
}

TEST(MicroBatches, SaysWhatEmptyOnesCost) {
  EXPECT_EQ(describe_batch(with(64, 2), 4), "64 sequences of 16 tokens, 1.02 K tokens a step: 8 micro-batches of 2 on each of 4 ranks");
  EXPECT_EQ(describe_batch(with(60, 2), 4),
            "60 sequences of 16 tokens, 960 tokens a step: 8 micro-batches of 2 on each of 4 ranks; 2 of these 32 are empty, which wastes "
            "6.2 % of a step: "
            "batch.global = 64 would leave none empty");
  EXPECT_NE(describe_batch(with(10, 2), 3).find("; 1 of these 6 is empty, which wastes 16.7 % of a step"), std::string::npos);
}

}  // namespace
}  // namespace tessera::micro_batches_test
