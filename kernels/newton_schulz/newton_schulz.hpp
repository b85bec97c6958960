// The orthogonal factor of a matrix, nearly: what Muon takes in place of a momentum (Jordan et al., 2024; Liu et al., arXiv:2502.16982).
// Each step of the iteration is an odd polynomial of degree five of all singular values at once, a x + b x^3 + c x^5.
#pragma once
#include "base/orthogonal_steps.hpp"
#include "kernels/context.hpp"

namespace tessera::kernels {

/// x(rows, columns) becomes scale times five steps of X = a X + (b A + c A A) X with A = X X^T, from X = x / |x|; of a tall matrix its
/// transpose does. |x| is the Frobenius norm and some (its sum in fp64, in an order of the shape's). X, A, and b A + c A A are bf16,
/// rounded as products of `gemm` are; sums are fp32. A matrix of zeros stays one.
struct NewtonSchulz {
  bf16* out = nullptr;  ///< may be x
  const bf16* x = nullptr;
  std::int64_t rows = 0, columns = 0;
  OrthogonalSteps steps = OrthogonalSteps::quintic;
  float scale = 1;
  /// x and out may be in equal parts, each row-major: of rows, or of columns. Those of out, which is not x then, follow each other. Parts
  /// change no bit of an element.
  std::int64_t parts = 1;
  bool parts_of_columns = false;
  std::int64_t part_step = 0;  ///< elements from a part of x to the next
};
TESSERA_OP(newton_schulz, (const Context& context, const NewtonSchulz& arguments), (context, arguments))
TESSERA_WORKSPACE(newton_schulz_workspace_bytes, NewtonSchulz)

/// Of the products.
double newton_schulz_flops(std::int64_t rows, std::int64_t columns);

}  // namespace tessera::kernels
