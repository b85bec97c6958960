// How the GPU's QK-norm and RoPE lay heads over threads and blocks.
#pragma once
#include "kernels/cuda/sizes.hpp"
#include "kernels/qk_norm_rope/qk_norm_rope.hpp"

namespace tessera::kernels::cuda::qk_norm_rope_sizes {

/// Threads of a head, a power of two up to a warp. Each has N pairs, of those that are turned and of those that are not.
inline int group_of(std::int64_t D, std::int64_t elements) {
  int group = 1;
  while (group * elements < D / 2) group *= 2;
  return group;
}

/// The blocks of one launch: those of query heads, then those of key heads.
struct HeadBlocks {
  tessera::cuda::RowBlocks query, key;
};
/// What fits into an H200 at once (three blocks an SM: a thread has 80 registers in bf16), shared out so that all blocks have as many
/// heads, each of at least eight a group.
inline HeadBlocks head_blocks(const QkNormRopeBackward& p) {
  const std::int64_t least = 8 * (tessera::cuda::block_threads / group_of(p.D, tessera::cuda::vector_elements_of(p.dtype)));
  const auto of = [&](std::int64_t heads) {
    return tessera::cuda::RowBlocks(p.M * heads, least, std::max<std::int64_t>(1, 396 * heads / (p.H + p.G)));
  };
  return {of(p.H), of(p.G)};
}

}  // namespace tessera::kernels::cuda::qk_norm_rope_sizes
