// RMSNorm (Zhang and Sennrich, arXiv:1910.07467): out = x * rstd * weight, rstd = 1 / sqrt(mean(x^2) + eps), statistics in fp32.
#pragma once
#include "kernels/context.hpp"

namespace tessera::kernels {

/// Rows of C elements. `inner` rows share one token row of `x_stride` (`out_stride`) elements, so that the heads inside a fused qkv row can
/// be normed: row r begins at (r / inner) * stride + (r % inner) * C. The default, inner = 1 and strides 0, is a dense (rows, C) matrix.
struct RmsnormForward {
  void* out = nullptr;    ///< may be x, with the same strides
  float* rstd = nullptr;  ///< (rows)
  const void* x = nullptr;
  const void* weight = nullptr;  ///< (C)
  std::int64_t rows = 0, C = 0, inner = 1, x_stride = 0, out_stride = 0;
  float eps = 1e-5f;
  DType dtype = DType::f32;
};
TESSERA_OP(rmsnorm_forward, (const Context& context, const RmsnormForward& arguments), (context, arguments))

/// d_x = gradient (+ d_residual where given: the residual branch joins here in the same pass); d_weight (fp32) is added to.
struct RmsnormBackward {
  void* d_x = nullptr;               ///< layout of x; may be the same memory as d_residual or d_out
  float* d_weight = nullptr;         ///< (C)
  const void* d_out = nullptr;       ///< layout of out
  const void* d_residual = nullptr;  ///< layout of x, or null
  const void* x = nullptr;
  const void* weight = nullptr;
  const float* rstd = nullptr;
  std::int64_t rows = 0, C = 0, inner = 1, x_stride = 0, out_stride = 0;  ///< d_x has x's strides, d_out has out's
  DType dtype = DType::f32;
};
TESSERA_OP(rmsnorm_backward, (const Context& context, const RmsnormBackward& arguments), (context, arguments))
/// For partial sums of d_weight: a fixed number of row blocks, summed in a fixed order, whatever the number of threads.
TESSERA_WORKSPACE(rmsnorm_backward_workspace_bytes, RmsnormBackward)

}  // namespace tessera::kernels
