// LayerNorm (Ba, Kiros and Hinton, arXiv:1607.06450): out = (x - mean) * rstd * weight (+ bias), rstd = 1 / sqrt(var + eps),
// var = mean((x - mean)^2), statistics in fp32.
#pragma once
#include "kernels/context.hpp"

namespace tessera::kernels {

struct LayerNormForward {
  void* out = nullptr;           ///< (rows, C)
  float* mean = nullptr;         ///< (rows), or null
  float* rstd = nullptr;         ///< (rows), or null
  const void* x = nullptr;       ///< (rows, C)
  const void* weight = nullptr;  ///< (C)
  const void* bias = nullptr;    ///< (C), or null
  std::int64_t rows = 0, C = 0;
  float eps = 1e-5f;
  DType dtype = DType::f32;
  const void* residual = nullptr;  ///< (rows, C), or null: out = residual + what the norm makes, rounded once; may be out
};
TESSERA_OP(layer_norm_forward, (const Context& context, const LayerNormForward& arguments), (context, arguments))

/// d_x = gradient (+ d_residual where given: the residual branch joins here in the same pass); d_weight and d_bias (fp32) are added to.
struct LayerNormBackward {
  void* d_x = nullptr;               ///< (rows, C); may be the same memory as d_residual or d_out
  float* d_weight = nullptr;         ///< (C)
  float* d_bias = nullptr;           ///< (C), or null
  const void* d_out = nullptr;       ///< (rows, C)
  const void* d_residual = nullptr;  ///< (rows, C), or null
  const void* x = nullptr;           ///< (rows, C)
  const void* weight = nullptr;      ///< (C)
  const float* mean = nullptr;       ///< (rows), of the forward pass
  const float* rstd = nullptr;       ///< (rows), of the forward pass
  std::int64_t rows = 0, C = 0;
  DType dtype = DType::f32;
};
TESSERA_OP(layer_norm_backward, (const Context& context, const LayerNormBackward& arguments), (context, arguments))
/// For partial sums of d_weight and of d_bias, as much without d_bias: a fixed number of row blocks, summed in a fixed order, whatever the
/// number of threads.
TESSERA_WORKSPACE(layer_norm_backward_workspace_bytes, LayerNormBackward)

}  // namespace tessera::kernels
