// Token embedding: gather rows; backward adds rows, in token order for each row, with no atomics.
#pragma once
#include "kernels/context.hpp"

namespace tessera::kernels {

struct EmbeddingForward {
  void* out = nullptr;                   ///< (M,C)
  const void* table = nullptr;           ///< (V,C)
  const std::int32_t* tokens = nullptr;  ///< (M)
  std::int64_t M = 0, C = 0;
  DType dtype = DType::f32;
};
void embedding_forward(const Context&, const EmbeddingForward&);

struct EmbeddingBackward {
  float* d_table = nullptr;              ///< (V,C), added to
  const void* d_out = nullptr;           ///< (M,C)
  const std::int32_t* tokens = nullptr;  ///< (M)
  std::int64_t M = 0, C = 0, V = 0;
  DType dtype = DType::f32;  ///< of d_out
};
void embedding_backward(const Context&, const EmbeddingBackward&);
std::size_t embedding_backward_workspace_bytes(const EmbeddingBackward&);

}  // namespace tessera::kernels
