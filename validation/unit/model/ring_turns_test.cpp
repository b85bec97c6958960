// What ranks of a ring see of each other's keys, against each pair of tokens alone.
#include "model/axes/ring_turns.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "kernels/attention/passes.hpp"
#include "random_models.hpp"

namespace tessera::ring_turns_test {
namespace {

using Pairs = std::set<std::pair<std::int64_t, std::int64_t>>;  // of a query's and a key's positions

std::vector<std::int64_t> positions(const ModelShape& s, std::int64_t index) {
  std::vector<std::int64_t> all;
  for (const Range& chunk : positions_of(s, static_cast<int>(index)))
    for (std::int64_t t = chunk.begin; t < chunk.end; ++t) all.push_back(t);
  return all;
}

/// What a pass computes of rank `there`'s keys for rank `here`'s queries.
Pairs pairs_of(const ModelShape& s, std::int64_t here, std::int64_t there, const kernels::AttentionRows& queries,
               const kernels::AttentionRows& keys, bool causal, const kernels::WindowStarts& starts) {
  const std::vector<std::int64_t> q = positions(s, here), k = positions(s, there);
  Pairs pairs;
  for (std::int64_t i = 0; i < queries.count; ++i)
    for (std::int64_t j = starts.of(static_cast<std::int32_t>(i)); j < (causal ? i + 1 : keys.count); ++j)
      pairs.emplace(q[static_cast<std::size_t>(queries.first + i)], k[static_cast<std::size_t>(keys.first + j)]);
  return pairs;
}

Pairs own_pairs(const ModelShape& s, std::int64_t here) {
  const kernels::AttentionShape shape = attention_shape(inside_attention(s));
  const kernels::AttentionRows all{0, shape.T};
  return pairs_of(s, here, here, all, all, true, kernels::attention_passes::window_starts(shape, shape.gap, shape.gap, 0));
}

/// All that the sequence's queries see, each pair by the rank that has the query and the one that has the key.
Pairs seen_pairs(const ModelShape& s, std::int64_t here, std::int64_t there) {
  Pairs pairs;
  for (const std::int64_t q : positions(s, here))
    for (const std::int64_t k : positions(s, there))
      if (k <= q && (s.kind.window == 0 || q - k < s.kind.window)) pairs.emplace(q, k);
  return pairs;
}

void check_window(ModelShape s, std::int64_t window) {
  SCOPED_TRACE(fmt::format("{} ranks, {} tokens, window {}", s.cp, s.T, window));
  s.kind.window = window;
  std::vector<std::int64_t> turns;
  for (std::int64_t step = 0; step < s.cp; ++step) {
    std::size_t most = 0;
    for (std::int64_t here = 0; here < s.cp; ++here) {
      const std::int64_t there = (here - step + s.cp) % s.cp;
      const ModelShape mine = cut_over_cp(s, static_cast<int>(here));
      const Pairs want = seen_pairs(s, here, there);
      most = std::max(most, want.size());
      if (step == 0) {
        ASSERT_EQ(own_pairs(mine, here), want) << "rank " << here << " alone";
        continue;
      }
      const std::optional<kernels::AttentionBlock> block = ring_block(mine, step);
      ASSERT_EQ(block.has_value(), !want.empty()) << "rank " << here << " sees something of rank " << there;
      if (!block) continue;
      ASSERT_TRUE(kernels::makes_sense(*block));
      ASSERT_EQ(pairs_of(s, here, there, block->queries, block->keys, false, kernels::attention_passes::window_starts(*block)), want)
          << "rank " << here << " of rank " << there;
    }
    if (step == 0) continue;
    ASSERT_EQ(most_ring_pairs(s, step), static_cast<double>(most)) << "step " << step;
    if (most > 0) turns.push_back(step);
  }
  ASSERT_EQ(ring_turns(s), turns);
}

TEST(RingTurns, EachPairOfTokensIsComputedOnce) {
  for (const int cp : {2, 3, 4, 7})
    for (const int chunk : {1, 2, 5}) {
      const ModelShape s = model_shape(test::tiny_deck(
          {fmt::format("mesh.cp={}", cp), "context.method=ring", fmt::format("batch.sequence_length={}", 2 * cp * chunk)}, cp));
      for (std::int64_t window = 0; window <= s.T + 1; ++window) ASSERT_NO_FATAL_FAILURE(check_window(s, window));
    }
}

// A window that begins in a rank's own chunks or those beside them takes two turns of any number; one token alone takes none.
TEST(RingTurns, OfAShortWindowAreThoseOfNeighbours) {
  ModelShape s = model_shape(test::tiny_deck({"mesh.cp=8", "context.method=ring", "batch.sequence_length=64"}, 8));
  EXPECT_EQ(ring_turns(s).size(), 7);
  s.kind.window = 5;  // a chunk has 4 tokens
  EXPECT_EQ(ring_turns(s), (std::vector<std::int64_t>{1, 7}));
  s.kind.window = 6;
  EXPECT_EQ(ring_turns(s), (std::vector<std::int64_t>{1, 2, 6, 7}));
  s.kind.window = 1;
  EXPECT_EQ(ring_turns(s), std::vector<std::int64_t>());
}

}  // namespace
}  // namespace tessera::ring_turns_test
