// Products of rows with the matrices of their experts. Rows lie expert by expert: those of expert e are offsets[e] to offsets[e + 1], as
// plan_dispatch leaves them, and how many there are is known when the product runs. Nothing grows with experts times rows: the work is that
// of the rows, and what an expert's last block of rows is filled up with.
#pragma once
#include "kernels/context.hpp"

namespace tessera::kernels {

/// c row = scale times a row times its expert's matrix, transposed or not, or that added to what c is. Rows from offsets[E] on become
/// zeros, or stay. The bits of a row depend on the shape alone, not on how many rows its expert has. Linear layers: forward y = x w^T uses
/// b_transposed; the input gradient d_x = d_y w does not.
struct GroupedGemm {
  void* c = nullptr;                      ///< (rows,N)
  const void* a = nullptr;                ///< (rows,K)
  const void* b = nullptr;                ///< (E,N,K) if b_transposed, else (E,K,N)
  const std::int32_t* offsets = nullptr;  ///< (E+1)
  std::int64_t rows = 0, E = 0, N = 0, K = 0;
  std::int64_t a_stride = 0, c_stride = 0;  ///< from a row to the next, 0: K and N
  float scale = 1;
  bool b_transposed = false;
  bool accumulate = false;   ///< c += instead of c =
  bool one_by_one = false;   ///< a host multiplies rows alone, as they are few: those of a decoded token. With b_transposed
  DType dtype = DType::f32;  ///< of a, b and c. Sums are fp32.

  TESSERA_BOTH std::int64_t from_a() const { return a_stride ? a_stride : K; }
  TESSERA_BOTH std::int64_t from_c() const { return c_stride ? c_stride : N; }
};
TESSERA_OP(grouped_gemm, (const Context& context, const GroupedGemm& arguments), (context, arguments))
TESSERA_WORKSPACE(grouped_gemm_workspace_bytes, GroupedGemm)

/// d_w of expert e = the sum over its rows of d_y row (as a column) times x row; those of experts without rows are zeros.
struct GroupedWeightGradient {
  float* d_w = nullptr;                   ///< (E,N,K)
  const void* d_y = nullptr;              ///< (rows,N)
  const void* x = nullptr;                ///< (rows,K)
  const std::int32_t* offsets = nullptr;  ///< (E+1)
  std::int64_t rows = 0, E = 0, N = 0, K = 0;
  std::int64_t d_y_stride = 0;  ///< from a row to the next, 0: N
  bool accumulate = false;      ///< d_w += instead of d_w =
  DType dtype = DType::f32;     ///< of d_y and x

  TESSERA_BOTH std::int64_t from_d_y() const { return d_y_stride ? d_y_stride : N; }
};
TESSERA_OP(grouped_weight_gradient, (const Context& context, const GroupedWeightGradient& arguments), (context, arguments))
TESSERA_WORKSPACE(grouped_weight_gradient_workspace_bytes, GroupedWeightGradient)

}  // namespace tessera::kernels
