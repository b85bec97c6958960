// RMSNorm (Zhang and Sennrich, arXiv:1910.07467): out = x * rstd * (offset + weight), rstd = 1 / sqrt(mean(x^2) + eps), statistics in fp32.
#pragma once
#include "kernels/context.hpp"

namespace tessera::kernels {

struct RmsnormForward {
  void* out = nullptr;           ///< (rows, C)
  float* rstd = nullptr;         ///< (rows), or null
  const void* x = nullptr;       ///< (rows, C)
  const void* weight = nullptr;  ///< (C)
  std::int64_t rows = 0, C = 0;
  float eps = 1e-5f;
  DType dtype = DType::f32;
  float offset = 0;                ///< 0, or 1: what norms of Gemma's kind scale by is 1 + weight
  const void* residual = nullptr;  ///< (rows, C), or null: out = residual + what the norm makes, rounded once; may be out
};
TESSERA_OP(rmsnorm_forward, (const Context& context, const RmsnormForward& arguments), (context, arguments))

/// d_x = gradient (+ d_residual where given: the residual branch joins here in the same pass); d_weight (fp32) is added to.
struct RmsnormBackward {
  void* d_x = nullptr;               ///< (rows, C); may be the same memory as d_residual or d_out
  float* d_weight = nullptr;         ///< (C)
  const void* d_out = nullptr;       ///< (rows, C)
  const void* d_residual = nullptr;  ///< (rows, C), or null
  const void* x = nullptr;           ///< (rows, C)
  const void* weight = nullptr;      ///< (C)
  const float* rstd = nullptr;       ///< (rows), of the forward pass
  std::int64_t rows = 0, C = 0;
  DType dtype = DType::f32;
  float offset = 0;  ///< as in the forward pass
};
TESSERA_OP(rmsnorm_backward, (const Context& context, const RmsnormBackward& arguments), (context, arguments))
/// For partial sums of d_weight: a fixed number of row blocks, summed in a fixed order, whatever the number of threads.
TESSERA_WORKSPACE(rmsnorm_backward_workspace_bytes, RmsnormBackward)

}  // namespace tessera::kernels
