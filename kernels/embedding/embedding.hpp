// Token embedding: gather rows; backward adds rows, in token order for each row, with no atomics.
#pragma once
#include "kernels/context.hpp"

namespace tessera::kernels {

/// Where a table has the rows of a slice of the vocabulary alone: V tokens from `first` on. The rows of other tokens are zeros, and their
/// gradients are another rank's.
struct VocabularySlice {
  std::int64_t first = 0;
  bool whole = true;  ///< there are no other tokens: one outside [0, V) is an error
};

struct EmbeddingForward {
  void* out = nullptr;                   ///< (M,C)
  const void* table = nullptr;           ///< (V,C)
  const std::int32_t* tokens = nullptr;  ///< (M)
  std::int64_t M = 0, C = 0;
  DType dtype = DType::f32;
  std::int64_t V = 0;  ///< of a slice
  VocabularySlice slice = {};
  float scale = 1;  ///< of the rows
};
TESSERA_OP(embedding_forward, (const Context& context, const EmbeddingForward& arguments), (context, arguments))

struct EmbeddingBackward {
  float* d_table = nullptr;              ///< (V,C), added to
  const void* d_out = nullptr;           ///< (M,C)
  const std::int32_t* tokens = nullptr;  ///< (M)
  std::int64_t M = 0, C = 0, V = 0;
  DType dtype = DType::f32;  ///< of d_out
  VocabularySlice slice = {};
  float scale = 1;  ///< as in the forward pass
};
TESSERA_OP(embedding_backward, (const Context& context, const EmbeddingBackward& arguments), (context, arguments))
TESSERA_WORKSPACE(embedding_backward_workspace_bytes, EmbeddingBackward)

}  // namespace tessera::kernels
