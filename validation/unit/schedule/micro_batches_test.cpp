#include "schedule/build/micro_batches.hpp"

#include <gtest/gtest.h>

#include <set>

namespace tessera {
namespace {

Deck with(std::int64_t global, std::int64_t micro) {
  Deck deck;
  deck.batch = {.global = global, .micro = micro, .sequence_length = 16};
  return deck;
}

// Whatever the number of ranks, each micro-batch runs once.
TEST(MicroBatches, EachRunsOnce) {
  for (std::int64_t count : {1, 2, 5, 8, 30})
    for (int ranks = 1; ranks <= 9; ++ranks) {
      const Deck deck = with(3 * count, 3);
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

TEST(MicroBatches, SaysWhatEmptyOnesCost) {
  EXPECT_EQ(describe_batch(with(64, 2), 4), "64 sequences of 16 tokens: 8 micro-batches of 2 on each of 4 ranks");
  EXPECT_EQ(describe_batch(with(60, 2), 4),
            "60 sequences of 16 tokens: 8 micro-batches of 2 on each of 4 ranks; 2 of these 32 are empty, which wastes 6.2 % of a step: "
            "batch.global = 64 would leave none empty");
  EXPECT_NE(describe_batch(with(10, 2), 3).find("; 1 of these 6 is empty, which wastes 16.7 % of a step"), std::string::npos);
}

}  // namespace
}  // namespace tessera
