// Documents of rows, for tests of what is masked by them.
#pragma once
#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "validation/kernels/seed.hpp"

namespace tessera::kernels::testing {

/// Document starts (B, T): lengths at random, many of a few tokens and some of hundreds, so that some begin inside tiles and others go
/// over several.
inline std::vector<std::int32_t> random_documents(std::int64_t B, std::int64_t T, unsigned seed) {
  std::mt19937 engine(seed + test_seed());
  std::vector<std::int32_t> starts;
  for (std::int64_t b = 0; b < B; ++b)
    for (std::int64_t t = 0; t < T;) {
      const std::int64_t longest = engine() % 3 == 0 ? 300 : engine() % 2 == 0 ? 50 : 4;
      const std::int64_t length = std::min<std::int64_t>(1 + static_cast<std::int64_t>(engine() % static_cast<unsigned>(longest)), T - t);
      starts.insert(starts.end(), static_cast<std::size_t>(length), static_cast<std::int32_t>(t));
      t += length;
    }
  return starts;
}

/// Document starts of a sequence of documents of these lengths.
inline std::vector<std::int32_t> documents_of(const std::vector<std::int64_t>& lengths) {
  std::vector<std::int32_t> starts;
  for (std::int64_t length : lengths)
    starts.insert(starts.end(), static_cast<std::size_t>(length), static_cast<std::int32_t>(starts.size()));
  return starts;
}

/// Of a table (T, D) of rotations the rows of M tokens whose documents begin so, (M, D): what positions that are no longer m % T read.
inline std::vector<float> rotations_of(const std::vector<float>& table, const std::vector<std::int32_t>& starts, std::int64_t T,
                                       std::int64_t D) {
  std::vector<float> rows;
  for (std::int64_t m = 0; m < static_cast<std::int64_t>(starts.size()); ++m) {
    const auto row = table.begin() + (m % T - starts[static_cast<std::size_t>(m)]) * D;
    rows.insert(rows.end(), row, row + D);
  }
  return rows;
}

}  // namespace tessera::kernels::testing
