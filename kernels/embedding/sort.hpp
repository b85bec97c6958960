// Token positions sorted by id on a GPU.
#pragma once
#include "kernels/cuda/device.hpp"
#include "kernels/embedding/embedding.hpp"

namespace tessera::kernels::cuda {

/// tokens[k] ascends, and tokens[k] stands at position order[k] of the batch; equal tokens are in the order of their positions. Of a slice
/// of the vocabulary, tokens count from its first, and those outside of it are V.
struct SortedTokens {
  const std::int32_t* tokens;  ///< (M)
  const std::int32_t* order;   ///< (M)
};

struct UnsortedTokens {
  const std::int32_t* tokens = nullptr;  ///< (M)
  std::int64_t M = 0, V = 0;
  VocabularySlice slice = {};
};

/// `workspace` has sort_sizes::bytes(M). A token outside a whole vocabulary traps.
SortedTokens sort_tokens(cudaStream_t stream, void* workspace, const UnsortedTokens& p);

}  // namespace tessera::kernels::cuda
