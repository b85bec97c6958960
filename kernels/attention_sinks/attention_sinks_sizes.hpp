// How the GPU's attention sinks lay heads over threads and tokens over blocks.
#pragma once
#include "kernels/attention_sinks/attention_sinks.hpp"
#include "kernels/cuda/sizes.hpp"

namespace tessera::kernels::cuda::attention_sinks_sizes {

/// Threads that have a head of D elements, a power of two up to a warp: each has a vector of them, or one in each of several turns.
inline int lanes_of_head(std::int64_t D, DType dtype) {
  int lanes = 1;
  while (lanes < 32 && lanes * tessera::cuda::vector_elements_of(dtype) < D) lanes *= 2;
  return lanes;
}

/// A block of the backward pass has `heads` heads of one of the row blocks, of so many of its tokens at once.
struct SinkTiles {
  int lanes, heads, tokens;
  std::int64_t across;  ///< blocks that have all heads of a token
  tessera::cuda::RowBlocks rows;
  explicit SinkTiles(const AttentionSinksBackward& p)
      : lanes(lanes_of_head(p.D, p.dtype)),
        heads(0),
        tokens(0),
        across(ceil_div(p.H, std::int64_t{tessera::cuda::block_threads / lanes})),
        rows(p.B * p.T, 64, 528) {  // four blocks an SM of an H200, each of tokens enough that partial sums are nothing beside them
    heads = static_cast<int>(ceil_div(p.H, std::max<std::int64_t>(1, across)));  // as many in each
    tokens = tessera::cuda::block_threads / lanes / std::max(1, heads);
  }
};

}  // namespace tessera::kernels::cuda::attention_sinks_sizes
