// Token positions sorted by id on a GPU.
#pragma once
#include "kernels/cuda/device.hpp"
#include "kernels/embedding/embedding.hpp"

namespace tessera::kernels::cuda {

/// tokens[k] ascends, and tokens[k] stands at position order[k] of the batch; equal tokens are in the order of their positions.
struct SortedTokens {
  const std::int32_t* tokens;  ///< (M)
  const std::int32_t* order;   ///< (M)
};

/// `workspace` has sort_sizes::bytes(M). A token outside [0, V) traps.
SortedTokens sort_tokens(cudaStream_t stream, void* workspace, const std::int32_t* tokens, std::int64_t M, std::int64_t V);

}  // namespace tessera::kernels::cuda
