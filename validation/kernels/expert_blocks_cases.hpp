// Shapes of what ranks exchange for their experts, random labels of it, and what comes of them by definition.
#pragma once
#include <bit>
#include <random>

#include "kernels/expert_blocks/expert_blocks.hpp"
#include "same_bits.hpp"

namespace tessera::kernels::testing {

struct ExpertBlocksCase {
  std::int64_t N, E, rows, M, k, slots;
  ExpertBlocks blocks() const { return {.N = N, .E = E, .rows = rows}; }
  std::int64_t all_rows() const { return N * rows; }
  std::int64_t all_labels() const { return N * (E + rows); }
};
/// A rank alone; an expert a rank; several, more than a block of threads of a GPU has rows for; blocks of no rows.
inline const ExpertBlocksCase expert_blocks_cases[] = {{1, 1, 1, 1, 1, 1},     {2, 1, 7, 9, 1, 1},     {2, 4, 12, 6, 2, 3},
                                                       {4, 3, 300, 150, 2, 2}, {3, 300, 40, 40, 5, 6}, {2, 2, 0, 1, 1, 1}};

inline std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

/// Rows of each expert of each block: blocks that are full, empty and in between.
inline std::vector<std::int32_t> random_counts(const ExpertBlocksCase& c) {
  std::mt19937 engine(11 + test_seed());
  std::vector<std::int32_t> counts(at(c.N * c.E), 0);
  for (std::int64_t n = 0; n < c.N; ++n) {
    const auto used = static_cast<std::uint32_t>(n == 0 ? c.rows : n == 1 ? 0 : engine() % static_cast<std::uint32_t>(c.rows + 1));
    for (std::uint32_t row = 0; row < used; ++row)
      ++counts[at(n * c.E + static_cast<std::int64_t>(engine() % static_cast<std::uint32_t>(c.E)))];
  }
  return counts;
}

/// A sender's side: offsets of its experts, and of each row a choice.
struct Sent {
  std::vector<std::int32_t> offsets{0}, sources;
  std::vector<float> weights;
  explicit Sent(const ExpertBlocksCase& c) : sources(at(c.all_rows()), -1), weights(random_values<float>(c.M * c.slots, 3)) {
    const std::vector<std::int32_t> counts = random_counts(c);
    std::mt19937 engine(12 + test_seed());
    for (std::int64_t n = 0; n < c.N; ++n) {
      std::int64_t used = 0;
      for (std::int64_t e = 0; e < c.E; ++e) used += counts[at(n * c.E + e)], offsets.push_back(offsets.back() + counts[at(n * c.E + e)]);
      for (std::int64_t row = 0; row < used; ++row)
        sources[at(n * c.rows + row)] = static_cast<std::int32_t>(engine() % static_cast<std::uint32_t>(c.M * c.k));
    }
  }
};

inline std::vector<std::uint32_t> labels_by_definition(const ExpertBlocksCase& c, const Sent& sent) {
  std::vector<std::uint32_t> labels;
  for (std::int64_t n = 0; n < c.N; ++n) {
    for (std::int64_t e = n * c.E; e < (n + 1) * c.E; ++e)
      labels.push_back(static_cast<std::uint32_t>(sent.offsets[at(e + 1)] - sent.offsets[at(e)]));
    for (std::int64_t row = n * c.rows; row < (n + 1) * c.rows; ++row) {
      const std::int64_t choice = sent.sources[at(row)];
      labels.push_back(choice < 0 ? 0 : std::bit_cast<std::uint32_t>(sent.weights[at(choice / c.k * c.slots + choice % c.k)]));
    }
  }
  return labels;
}

struct Arrived {
  std::vector<std::int32_t> offsets, order, places;
  std::vector<float> weights;
  Hash128 exact() const { return digest(offsets, order, places, weights); }
};

/// Expert by expert, then by rank, then as they came.
inline Arrived arrived_by_definition(const ExpertBlocksCase& c, const std::vector<std::uint32_t>& labels) {
  Arrived r{{0}, std::vector<std::int32_t>(at(c.all_rows()), -1), std::vector<std::int32_t>(at(c.all_rows()), -1), {}};
  std::int32_t sorted = 0;
  for (std::int64_t e = 0; e < c.E; ++e) {
    for (std::int64_t n = 0; n < c.N; ++n) {
      const std::uint32_t* of_block = labels.data() + n * (c.E + c.rows);
      std::int64_t row = n * c.rows;
      for (std::int64_t before = 0; before < e; ++before) row += of_block[before];
      for (std::uint32_t i = 0; i < of_block[e]; ++i, ++row, ++sorted)
        r.order[at(sorted)] = static_cast<std::int32_t>(row), r.places[at(row)] = sorted;
    }
    r.offsets.push_back(sorted);
  }
  for (std::int64_t n = 0; n < c.N; ++n)
    for (std::int64_t row = 0; row < c.rows; ++row) r.weights.push_back(std::bit_cast<float>(labels[at(n * (c.E + c.rows) + c.E + row)]));
  return r;
}

/// Of each choice a row, or none.
inline std::vector<std::int32_t> random_places(const ExpertBlocksCase& c) {
  std::mt19937 engine(13 + test_seed());
  std::vector<std::int32_t> places;
  for (std::int64_t i = 0; i < c.M * c.k; ++i)
    places.push_back(
        c.all_rows() == 0 || engine() % 4 == 0 ? -1 : static_cast<std::int32_t>(engine() % static_cast<std::uint32_t>(c.all_rows())));
  return places;
}

/// `before` where nothing is written.
inline std::vector<float> collected_by_definition(const ExpertBlocksCase& c, const std::vector<float>& rows,
                                                  const std::vector<std::int32_t>& places, std::vector<float> before) {
  for (std::int64_t m = 0; m < c.M; ++m)
    for (std::int64_t j = 0; j < c.k; ++j)
      before[at(m * c.slots + j)] = places[at(m * c.k + j)] < 0 ? 0 : rows[at(places[at(m * c.k + j)])];
  return before;
}

}  // namespace tessera::kernels::testing
