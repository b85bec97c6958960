// Biases of products with the matrices of experts (kernels/grouped_gemm): of rows that lie expert by expert, those of expert e from
// offsets[e] to offsets[e + 1] as plan_dispatch leaves them. Rows from offsets[E] on are neither read nor written.
#pragma once
#include "kernels/context.hpp"

namespace tessera::kernels {

/// y row += the bias of its expert.
struct AddExpertBias {
  void* y = nullptr;                      ///< (rows,N), in place
  const void* bias = nullptr;             ///< (E,N)
  const std::int32_t* offsets = nullptr;  ///< (E+1)
  std::int64_t rows = 0, E = 0, N = 0;
  DType dtype = DType::f32;
};
TESSERA_OP(add_expert_bias, (const Context& context, const AddExpertBias& arguments), (context, arguments))

/// d_bias of an expert = the sum over its rows of d_y row, each times the weight that the row counts by, in fp32. The bits of an expert's
/// sum depend on its own rows alone, not on the rows and experts beside them.
struct ExpertBiasGradient {
  float* d_bias = nullptr;                ///< (E,N); of experts without rows zeros
  const void* d_y = nullptr;              ///< (rows,N)
  const float* weights = nullptr;         ///< (M,slots); null: each row counts once
  const std::int32_t* sources = nullptr;  ///< (rows) choices m k + j, as in WeighRows (kernels/dispatch); used with weights
  const std::int32_t* offsets = nullptr;  ///< (E+1)
  std::int64_t k = 0, slots = 0, rows = 0, E = 0, N = 0;
  bool accumulate = false;  ///< d_bias += instead of d_bias =
  DType dtype = DType::f32;
};
TESSERA_OP(expert_bias_gradient, (const Context& context, const ExpertBiasGradient& arguments), (context, arguments))
TESSERA_WORKSPACE(expert_bias_gradient_workspace_bytes, ExpertBiasGradient)

/// What a bias adds to the gradient of the weight that a row counts by: d_weights of its slot += d_y row . the bias of its expert, in fp32.
struct WeighExpertBias {
  float* d_weights = nullptr;             ///< (M,slots): of those that rows are for; others are left alone
  const void* d_y = nullptr;              ///< (rows,N)
  const void* bias = nullptr;             ///< (E,N)
  const std::int32_t* sources = nullptr;  ///< (rows) choices m k + j
  const std::int32_t* offsets = nullptr;  ///< (E+1)
  std::int64_t k = 0, slots = 0, rows = 0, E = 0, N = 0;
  DType dtype = DType::f32;
};
TESSERA_OP(weigh_expert_bias, (const Context& context, const WeighExpertBias& arguments), (context, arguments))

}  // namespace tessera::kernels
