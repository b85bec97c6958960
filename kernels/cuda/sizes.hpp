// Sizes of launches on which the workspace of GPU kernels depends. No CUDA headers: files named *_sizes are compiled in every build, so
// that a plan for GPUs can be made where there is neither GPU nor CUDA.
#pragma once
#include <algorithm>
#include <cstdint>

#include "base/types.hpp"

namespace tessera::cuda {

inline constexpr int block_threads = 256;

/// Elements of a type in sixteen bytes.
template <class T>
inline constexpr int vector_elements = static_cast<int>(16 / sizeof(T));
inline int vector_elements_of(DType dtype) { return static_cast<int>(16 / size_of(dtype)); }

/// How a sum over rows is cut on a GPU: into blocks whose number and bounds depend on the number of rows alone, so that partial sums, added
/// in a fixed order, have the same bits on every GPU.
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

}  // namespace tessera::cuda
