// How the GPU's norm of the whole width is cut.
#pragma once
#include "kernels/cuda/sizes.hpp"
#include "kernels/wide_qk_norm/wide_qk_norm.hpp"

namespace tessera::kernels::cuda::wide_qk_norm_sizes {

/// Vectors of a row: of query features, then of key features; the last of each may be short.
struct WideVectors {
  std::int64_t query = 0, key = 0;
  WideVectors(const WideQkShape& s, std::int64_t elements) : query(ceil_div(s.Q, elements)), key(ceil_div(s.K, elements)) {}
};

/// Of the backward pass: a thread has a vector's place in all rows of a row block, a block of threads as many neighbouring ones.
inline std::int64_t column_blocks(const WideQkShape& s) {
  const WideVectors vectors(s, tessera::cuda::vector_elements_of(s.dtype));
  return ceil_div(vectors.query + vectors.key, std::int64_t{tessera::cuda::block_threads});
}
/// About what fits into an H200 at once, of at least eight rows.
inline tessera::cuda::RowBlocks row_blocks(const WideQkShape& s) {
  return {s.M, 8, static_cast<int>(std::max<std::int64_t>(1, 528 / column_blocks(s)))};
}

}  // namespace tessera::kernels::cuda::wide_qk_norm_sizes
