// Matrices as codes of 8 bits and scales: the operands of a product in fp8 (Micikevicius et al., arXiv:2209.05433; blocks as in
// DeepSeek-V3, arXiv:2412.19437). A scale belongs to elements that share it: a code is x * m rounded to nearest even and saturating, with m
// the largest value of the type over the largest magnitude of those elements, at least 1e-12, divided in fp64 and kept in fp32. What codes
// are multiplied by is 1 / m. Of blocks that is the least power of two with which no code saturates. Elements beside one that is not finite
// are NaN.
#pragma once
#include "kernels/context.hpp"

namespace tessera::kernels {

/// Which elements of a matrix of codes (rows, columns) share a scale. A product sums over columns.
enum class Fp8Scaling : std::uint8_t {
  tensor,        ///< all
  rows,          ///< those of a row
  row_blocks,    ///< 128 of a row
  square_blocks  ///< 128 x 128
};
inline constexpr std::int64_t fp8_block = 128;
inline constexpr double fp8_least_magnitude = 1e-12;

/// Scales of a matrix of codes, row by row; of blocks at its end too, where they are shorter.
constexpr std::int64_t fp8_scales(Fp8Scaling scaling, std::int64_t rows, std::int64_t columns) {
  switch (scaling) {
    case Fp8Scaling::tensor:
      return 1;
    case Fp8Scaling::rows:
      return rows;
    case Fp8Scaling::row_blocks:
      return rows * ceil_div(columns, fp8_block);
    case Fp8Scaling::square_blocks:
      return ceil_div(rows, fp8_block) * ceil_div(columns, fp8_block);
  }
  return 0;
}

/// Of a tensor whose scale was chosen before (kernels/fp8_history): m, and where its largest finite magnitude joins what others have
/// found. Elements beyond the scale's range saturate, and those that are not finite alone are NaN.
struct Fp8Delayed {
  const float* multiplier = nullptr;  ///< null: the scale is that of the tensor as it is
  float* largest = nullptr;           ///< null: nobody asks
};

/// An operand of a product, whose elements are codes.
struct Fp8Operand {
  DType type = DType::e4m3;
  Fp8Scaling scaling = Fp8Scaling::tensor;
  const float* scales = nullptr;  ///< what codes are multiplied by
  Fp8Delayed delayed = {};        ///< of codes that gemm_pack_b makes
};

/// codes (rows,columns) and their scales of x (rows,columns), fp32, bf16 or fp16; transposed: codes (columns,rows).
struct Fp8Quantize {
  std::uint8_t* codes = nullptr;
  float* scales = nullptr;  ///< fp8_scales of codes' shape
  const void* x = nullptr;
  std::int64_t rows = 0, columns = 0;  ///< of x
  bool transposed = false;
  DType dtype = DType::bf16;  ///< of x
  DType type = DType::e4m3;   ///< of codes: e4m3 or e5m2
  Fp8Scaling scaling = Fp8Scaling::tensor;
  Fp8Delayed delayed = {};  ///< with the scaling of a tensor
};
TESSERA_OP(fp8_quantize, (const Context& context, const Fp8Quantize& arguments), (context, arguments))

}  // namespace tessera::kernels
