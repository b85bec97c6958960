// How a sum over rows is cut: into blocks whose number and bounds depend on the number of rows alone, so that partial sums, combined in the
// order of the blocks, have the same bits for any number of threads.
#pragma once
#include <algorithm>

#include "kernels/parallel.hpp"
#include "kernels/vector/vector.hpp"

namespace tessera::kernels {

struct RowBlocks {
  std::int64_t rows = 0, count = 0;
  /// At least 32 rows a block, so that the partial sums stay a small part of the traffic; at most 64 blocks.
  explicit RowBlocks(std::int64_t rows) : rows(rows), count(std::clamp<std::int64_t>(rows / 32, 1, 64)) {}
  std::int64_t begin(std::int64_t block) const { return rows * block / count; }
  std::int64_t end(std::int64_t block) const { return begin(block + 1); }
  /// Workspace for one row of N partial sums a block, in whole vectors.
  static std::int64_t stride(std::int64_t N) { return round_up(N, lanes); }
  std::size_t bytes(std::int64_t N) const { return static_cast<std::size_t>(count * stride(N)) * sizeof(float); }
};

/// sum[j] += partial (count, stride(N)), vectors in the order of T, summed over the blocks in their order.
template <class T>
void add_partial_sums(float* sum, const float* partial, const RowBlocks& blocks, std::int64_t N) {
  parallel_ranges(N, 1024, [&](std::int64_t begin, std::int64_t end) {
    for_vectors(begin, end, [&](std::int64_t j, auto n) {
      f32x16 total{};
      for (std::int64_t b = 0; b < blocks.count; ++b) total += load(partial + b * blocks.stride(N) + j);
      store(sum + j, load(sum + j, n) + in_order<T>(total), n);
    });
  });
}

}  // namespace tessera::kernels
