// How a sum over rows is cut on a GPU: into blocks whose number and bounds depend on the number of rows alone, so that partial sums, added
// in a fixed order, have the same bits on every GPU.
#pragma once
#include <algorithm>

#include "kernels/cuda/device.hpp"

namespace tessera::cuda {

struct RowBlocks {
  std::int64_t rows = 0, count = 0;
  /// Blocks of at least `least` rows, so that partial sums stay a small part of the traffic, and at most `most` blocks.
  RowBlocks(std::int64_t rows, std::int64_t least, std::int64_t most)
      : rows(rows), count(std::clamp<std::int64_t>(rows / least, 1, most)) {}
  TESSERA_BOTH std::int64_t begin(std::int64_t block) const { return rows * block / count; }
  TESSERA_BOTH std::int64_t end(std::int64_t block) const { return begin(block + 1); }
  /// Workspace for one row of N partial sums a block.
  std::size_t bytes(std::int64_t N) const { return static_cast<std::size_t>(count * N) * sizeof(float); }
};

/// sum[j] += partial (count,N) summed over its rows in a fixed order.
void add_partial_sums(cudaStream_t stream, float* sum, const float* partial, std::int64_t count, std::int64_t N);

}  // namespace tessera::cuda
