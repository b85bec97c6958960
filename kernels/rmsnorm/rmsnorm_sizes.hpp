// How the GPU's RMSNorm and LayerNorm lay rows over threads and blocks.
#pragma once
#include "kernels/cuda/sizes.hpp"

namespace tessera::kernels::cuda::rmsnorm_sizes {

inline constexpr int most_threads = 512, forward_vectors = 4, backward_vectors = 2;

/// How rows are laid over threads: by C alone, since it decides the order of sums.
struct Grouping {
  int group = 1;    ///< threads of a row, a power of two
  int threads = 0;  ///< of a block: one or more groups
  int vectors = 1;  ///< that a thread holds of a row. A longer row's rest is read again from the caches.
  int elements;     ///< of a vector
  Grouping(std::int64_t C, int elements, int most_vectors) : elements(elements) {
    const std::int64_t all = ceil_div(C, elements);
    while (vectors < most_vectors && all > std::int64_t{tessera::cuda::block_threads} * vectors) vectors *= 2;
    while (group < most_threads && std::int64_t{group} * vectors < all) group *= 2;
    threads = std::max(group, tessera::cuda::block_threads);
  }
  int rows() const { return threads / group; }
  std::int64_t held() const { return std::int64_t{group} * vectors * elements; }
};

/// What fits into an H200 at once (four blocks an SM, two where threads have two vectors), each of at least eight rows a group.
inline tessera::cuda::RowBlocks backward_blocks(std::int64_t rows, std::int64_t C, DType dtype) {
  const Grouping g(C, tessera::cuda::vector_elements_of(dtype), backward_vectors);
  return {rows, 8 * g.rows(), g.vectors == 1 ? 528 : 264};
}

}  // namespace tessera::kernels::cuda::rmsnorm_sizes
