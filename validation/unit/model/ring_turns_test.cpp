// What ranks of a ring see of each other's keys, against each pair of tokens alone.
#include "model/axes/ring_turns.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "kernels/attention/passes.hpp"
#include "random_models.hpp"
#include "validation/unit/sample.hpp"

namespace tessera::ring_turns_test {
namespace {

using Pairs = std::set<std::pair<std::int64_t, std::int64_t>>;  // of a query's and a key's positions

std::vector<std::int64_t> positions(const ModelShape& s, std::int64_t index) {
  std::vector<std::int64_t> all;
  for (const Range& chunk : positions_of(s, static_cast<int>(index)))
    for (std::int64_t t = chunk.begin; t < chunk.end; ++t) all.push_back(t);
  return all;
}

/// Where the document of each token of a sequence begins; empty: all are of one.
using Starts = std::vector<std::int32_t>;

/// What a pass computes of rank `there`'s keys for rank `here`'s queries.
Pairs pairs_of(const ModelShape& s, std::int64_t here, std::int64_t there, const kernels::AttentionRows& queries,
               const kernels::AttentionRows& keys, bool causal, const kernels::KeyStarts& starts, const Starts& documents) {
  const std::vector<std::int64_t> q = positions(s, here), k = positions(s, there);
  std::vector<std::int32_t> of_rows(q.size(), -kernels::KeyStarts::all_keys);
  if (!documents.empty()) ring_document_starts(documents, positions_of(s, static_cast<int>(here)), of_rows);
  Pairs pairs;
  for (std::int64_t i = 0; i < queries.count; ++i)
    for (std::int64_t j = starts.of(static_cast<std::int32_t>(i), of_rows[static_cast<std::size_t>(queries.first + i)]);
         j < (causal ? i + 1 : keys.count); ++j)
      pairs.emplace(q[static_cast<std::size_t>(queries.first + i)], k[static_cast<std::size_t>(keys.first + j)]);
  return pairs;
}

Pairs own_pairs(const ModelShape& s, std::int64_t here, const Starts& documents) {
  const kernels::AttentionShape shape = attention_shape(inside_attention(s));
  const kernels::AttentionRows all{0, shape.T};
  return pairs_of(s, here, here, all, all, true, kernels::attention_passes::key_starts(shape), documents);
}

/// All that the sequence's queries see, each pair by the rank that has the query and the one that has the key.
Pairs seen_pairs(const ModelShape& s, std::int64_t here, std::int64_t there, const Starts& documents) {
  Pairs pairs;
  for (const std::int64_t q : positions(s, here))
    for (const std::int64_t k : positions(s, there))
      if (k <= q && (s.kind.window == 0 || q - k < s.kind.window) && (documents.empty() || k >= documents[static_cast<std::size_t>(q)]))
        pairs.emplace(q, k);
  return pairs;
}

/// Blocks are of a window; of documents, which are known when a step begins, passes see less of them.
void check_window(ModelShape s, std::int64_t window, const Starts& documents) {
  SCOPED_TRACE(fmt::format("{} ranks, {} tokens, window {}, documents from {}", s.cp, s.T, window, fmt::join(documents, " ")));
  s.kind.window = window;
  std::vector<std::int64_t> turns;
  for (std::int64_t step = 0; step < s.cp; ++step) {
    std::size_t most = 0;
    for (std::int64_t here = 0; here < s.cp; ++here) {
      const std::int64_t there = (here - step + s.cp) % s.cp;
      const ModelShape mine = cut_over_cp(s, static_cast<int>(here));
      const Pairs of_window = seen_pairs(s, here, there, {}), want = seen_pairs(s, here, there, documents);
      most = std::max(most, of_window.size());
      if (step == 0) {
        ASSERT_EQ(own_pairs(mine, here, documents), want) << "rank " << here << " alone";
        continue;
      }
      const std::optional<kernels::AttentionBlock> block = ring_block(mine, step);
      ASSERT_EQ(block.has_value(), !of_window.empty()) << "rank " << here << " sees something of rank " << there;
      if (!block) continue;
      ASSERT_TRUE(kernels::makes_sense(*block));
      ASSERT_EQ(pairs_of(s, here, there, block->queries, block->keys, false, kernels::attention_passes::key_starts(*block), documents),
                want)
          << "rank " << here << " of rank " << there;
    }
    if (step == 0) continue;
    ASSERT_EQ(most_ring_pairs(s, step), static_cast<double>(most)) << "step " << step;
    if (most > 0) turns.push_back(step);
  }
  ASSERT_EQ(ring_turns(s), turns);
}

TEST(RingTurns, EachPairOfTokensIsComputedOnce) {
  std::mt19937_64 draw(test::Sample::seed());
  for (const int cp : {2, 3, 4, 7})
    for (const int chunk : {1, 2, 5}) {
      const ModelShape s = model_shape(test::tiny_deck(
          {fmt::format("mesh.cp={}", cp), "context.method=ring", fmt::format("batch.sequence_length={}", 2 * cp * chunk)}, cp));
      for (std::int64_t window = 0; window <= s.T + 1; ++window) {
        ASSERT_NO_FATAL_FAILURE(check_window(s, window, {}));
        const std::uint64_t longest = 1 + draw() % static_cast<std::uint64_t>(s.T);
        Starts documents(static_cast<std::size_t>(s.T));
        for (std::size_t t = 1; t < documents.size(); ++t)
          documents[t] = draw() % longest == 0 ? static_cast<std::int32_t>(t) : documents[t - 1];
        ASSERT_NO_FATAL_FAILURE(check_window(s, window, documents));
      }
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
