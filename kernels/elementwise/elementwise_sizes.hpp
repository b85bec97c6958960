// How the GPU's sums of columns are cut.
#pragma once
#include "kernels/cuda/sizes.hpp"
#include "kernels/elementwise/elementwise.hpp"

namespace tessera::kernels::cuda {

inline tessera::cuda::RowBlocks column_sum_blocks(std::int64_t M) { return {M, 64, 128}; }

}  // namespace tessera::kernels::cuda
