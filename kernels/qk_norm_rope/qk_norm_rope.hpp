// QK-norm and rotary position embedding in one pass over the fused qkv rows: each query and key head is normed (kernels/rmsnorm; one weight
// vector for all query heads, one for all key heads) and rotated (kernels/rope), or the first features of it are. In between values stay in
// fp32.
#pragma once
#include "kernels/context.hpp"

namespace tessera::kernels {

/// A row of qkv is [H query heads | G key heads | G value heads] of D elements (D even), a row of the statistics [H query heads | G key
/// heads]; row m has position m % T, counted from document_starts[m] on where they are given.
struct QkNormRopeForward {
  void* out = nullptr;           ///< (M, (H+2G)*D); may be x. Value heads are those of x.
  float* rstd = nullptr;         ///< (M, H+G), or null
  const void* x = nullptr;       ///< (M, (H+2G)*D): the projection's output
  const void* q_norm = nullptr;  ///< (D)
  const void* k_norm = nullptr;  ///< (D)
  const float* table = nullptr;  ///< (T, rotated/2, 2), of rope_table
  std::int64_t M = 0, T = 0, H = 0, G = 0, D = 0;
  float eps = 1e-5f;
  DType dtype = DType::f32;
  float offset = 0;                               ///< as in kernels/rmsnorm
  const std::int32_t* document_starts = nullptr;  ///< (M) or null: at most m % T each
  std::int64_t rotated = 0;                       ///< features of a head that are turned, an even number, its first ones; 0: all
  bool neighbours = false;                        ///< pairs (2i, 2i+1) in place of (i, i + rotated/2)
};
TESSERA_OP(qk_norm_rope_forward, (const Context& context, const QkNormRopeForward& arguments), (context, arguments))

/// In place: query and key heads of d_qkv are the gradient after the rotation and become that of x; value heads are neither read nor
/// written. The weights' gradients (fp32) are added to.
struct QkNormRopeBackward {
  void* d_qkv = nullptr;         ///< (M, (H+2G)*D)
  float* d_q_norm = nullptr;     ///< (D)
  float* d_k_norm = nullptr;     ///< (D)
  const void* x = nullptr;       ///< (M, (H+2G)*D), as in the forward pass
  const void* q_norm = nullptr;  ///< (D)
  const void* k_norm = nullptr;  ///< (D)
  const float* rstd = nullptr;   ///< (M, H+G), of the forward pass
  const float* table = nullptr;  ///< (T, rotated/2, 2)
  std::int64_t M = 0, T = 0, H = 0, G = 0, D = 0;
  DType dtype = DType::f32;
  float offset = 0;                               ///< as in kernels/rmsnorm
  const std::int32_t* document_starts = nullptr;  ///< (M) or null: at most m % T each
  std::int64_t rotated = 0;                       ///< features of a head that are turned, an even number, its first ones; 0: all
  bool neighbours = false;                        ///< pairs (2i, 2i+1) in place of (i, i + rotated/2)
};
TESSERA_OP(qk_norm_rope_backward, (const Context& context, const QkNormRopeBackward& arguments), (context, arguments))
/// For partial sums of the weights' gradients: a fixed number of row blocks, summed in a fixed order.
TESSERA_WORKSPACE(qk_norm_rope_backward_workspace_bytes, QkNormRopeBackward)

}  // namespace tessera::kernels
