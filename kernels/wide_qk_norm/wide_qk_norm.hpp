// QK-norm of the whole width (OLMo 2, arXiv:2501.00656): RMSNorm (kernels/rmsnorm) over all query features of a token, and over all its key
// features, before the rotation. Tensor-parallel ranks have a part of these features each: every rank sums over its own, the ranks gather
// the sums, and each norms its features by all of them. Alone, the sums are one part.
#pragma once
#include "kernels/context.hpp"

namespace tessera::kernels {

/// A row of features: Q query features, K key features, then others up to `stride`, which are neither read nor written but where said.
struct WideQkShape {
  std::int64_t M = 0, Q = 0, K = 0, stride = 0;
  std::int64_t parts = 1;  ///< ranks that the features of a token lie on
  DType dtype = DType::f32;
  float eps = 1e-5f;
  float offset = 0;  ///< as in kernels/rmsnorm

  /// Features that are normed together.
  TESSERA_BOTH std::int64_t all_queries() const { return parts * Q; }
  TESSERA_BOTH std::int64_t all_keys() const { return parts * K; }
};

/// sums (M,2): of each row the sum of squares of its query features, and of its key features.
struct WideQkSums {
  float* sums = nullptr;    ///< (M,2)
  const void* x = nullptr;  ///< (M,stride)
  WideQkShape shape;
};
TESSERA_OP(wide_qk_sums, (const Context& context, const WideQkSums& arguments), (context, arguments))

/// Parts are added in their order, so that all ranks get the same bits.
struct WideQkNorm {
  void* out = nullptr;           ///< (M,stride), other features copied from x; may be x
  const void* x = nullptr;       ///< (M,stride)
  const float* sums = nullptr;   ///< (parts,M,2)
  const void* q_norm = nullptr;  ///< (Q)
  const void* k_norm = nullptr;  ///< (K)
  WideQkShape shape;
};
TESSERA_OP(wide_qk_norm, (const Context& context, const WideQkNorm& arguments), (context, arguments))

/// dots (M,2): of each row the sums of d x (offset + weight) over its query features, and over its key features.
struct WideQkDots {
  float* dots = nullptr;         ///< (M,2)
  const void* d = nullptr;       ///< (M,stride): gradient of the normed features
  const void* x = nullptr;       ///< (M,stride), as in the forward pass
  const void* q_norm = nullptr;  ///< (Q)
  const void* k_norm = nullptr;  ///< (K)
  WideQkShape shape;
};
TESSERA_OP(wide_qk_dots, (const Context& context, const WideQkDots& arguments), (context, arguments))

/// In place: query and key features of d become the gradient of x. The weights' gradients (fp32) are added to.
struct WideQkNormBackward {
  void* d = nullptr;             ///< (M,stride)
  float* d_q_norm = nullptr;     ///< (Q)
  float* d_k_norm = nullptr;     ///< (K)
  const void* x = nullptr;       ///< (M,stride), as in the forward pass
  const float* sums = nullptr;   ///< (parts,M,2), of the forward pass
  const float* dots = nullptr;   ///< (parts,M,2)
  const void* q_norm = nullptr;  ///< (Q)
  const void* k_norm = nullptr;  ///< (K)
  WideQkShape shape;
};
TESSERA_OP(wide_qk_norm_backward, (const Context& context, const WideQkNormBackward& arguments), (context, arguments))
/// For partial sums of the weights' gradients: a fixed number of row blocks, summed in a fixed order. Pointers are not looked at.
TESSERA_WORKSPACE(wide_qk_norm_backward_workspace_bytes, WideQkNormBackward)

}  // namespace tessera::kernels
