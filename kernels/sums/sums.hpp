// Norms over flat shards, in an order that is fixed by 256-element blocks and so does not depend on who owns which blocks.
#pragma once
#include "kernels/context.hpp"
#include "kernels/fixed/fixed.hpp"

namespace tessera::kernels {

inline constexpr std::int64_t sum_block = 256;

/// *sum += sum over blocks of 256 of (sum of squares of the block in fp64, in a fixed order). x is fp32, bf16 or fixed-point int64
/// (x * 2^-44), n a multiple of 256. Where values are *scale times too large, a power of two, so are not their squares. *not_finite is set
/// to 1 where a block's sum is not finite or does not fit.
struct SumOfSquares {
  FixedSum* sum = nullptr;
  std::int32_t* not_finite = nullptr;
  const void* x = nullptr;
  std::int64_t n = 0;
  DType dtype = DType::f32;      ///< f32, bf16 or i64
  const float* scale = nullptr;  ///< null: 1
};
TESSERA_OP(sum_of_squares, (const Context& context, const SumOfSquares& arguments), (context, arguments))
TESSERA_WORKSPACE(sum_of_squares_workspace_bytes, SumOfSquares)

}  // namespace tessera::kernels
