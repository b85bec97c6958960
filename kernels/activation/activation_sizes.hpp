// How the GPU's activations cut their sums.
#pragma once
#include "kernels/activation/activation.hpp"
#include "kernels/cuda/sizes.hpp"

namespace tessera::kernels::cuda::activation_sizes {

/// xIELU's backward pass over vectors: what fits into an H200 at once (four blocks an SM), each thread of at least eight vectors.
inline tessera::cuda::RowBlocks xielu_blocks(const ActivationBackward& p) {
  return {ceil_div(p.M * p.F, tessera::cuda::vector_elements_of(p.dtype)), 8 * tessera::cuda::block_threads, 528};
}

}  // namespace tessera::kernels::cuda::activation_sizes
