// Matrices in fp8: shapes, values, and the definition of their codes and scales in fp64.
#pragma once
#include <limits>

#include "kernels/fp8/fp8.hpp"
#include "same_bits.hpp"

namespace tessera::kernels::testing {

struct Fp8Case {
  Fp8Scaling scaling = Fp8Scaling::tensor;
  DType type = DType::e4m3;
  bool transposed = false;
};
inline std::vector<Fp8Case> fp8_cases() {
  std::vector<Fp8Case> cases;
  for (const Fp8Scaling scaling : {Fp8Scaling::tensor, Fp8Scaling::rows, Fp8Scaling::row_blocks, Fp8Scaling::square_blocks})
    for (const DType type : {DType::e4m3, DType::e5m2})
      for (const bool transposed : {false, true}) cases.push_back({scaling, type, transposed});
  return cases;
}
struct Fp8Size {
  std::int64_t rows, columns;
};
/// One element, less than a block, blocks and remainders, whole blocks.
inline const Fp8Size fp8_sizes[] = {{1, 1}, {3, 40}, {150, 77}, {128, 256}, {261, 400}};

/// Normal values whose size differs from row to row and from column to column; some zeros of both signs, a row and a column of zeros.
template <class T>
std::vector<T> fp8_values(const Fp8Size& size, unsigned seed) {
  auto x = random_values<T>(size.rows * size.columns, seed);
  for (std::int64_t i = 0; i < size.rows; ++i)
    for (std::int64_t j = 0; j < size.columns; ++j) {
      auto& value = x[static_cast<std::size_t>(i * size.columns + j)];
      float v = std::ldexp(static_cast<float>(value), static_cast<int>((i / 3 + j / 5) % 13) - 6);
      if (i == 2 || j == 7 || (i + j) % 11 == 0) v = j % 2 == 0 ? 0.f : -0.f;
      value = T(v);
    }
  return x;
}

/// Codes and scales of a case; of either backend.
struct Fp8Matrix {
  std::vector<std::uint8_t> codes;
  std::vector<float> scales;
};
inline Fp8Matrix poisoned_fp8(const Fp8Case& c, const Fp8Size& size) {
  const std::int64_t rows = c.transposed ? size.columns : size.rows, columns = c.transposed ? size.rows : size.columns;
  return {poisoned<std::uint8_t>(rows * columns), poisoned<float>(fp8_scales(c.scaling, rows, columns))};
}
inline Fp8Quantize fp8_arguments(const Fp8Case& c, const Fp8Size& size, const void* x, DType dtype, std::uint8_t* codes, float* scales) {
  return {.codes = codes,
          .scales = scales,
          .x = x,
          .rows = size.rows,
          .columns = size.columns,
          .transposed = c.transposed,
          .dtype = dtype,
          .type = c.type,
          .scaling = c.scaling};
}
template <class T>
Fp8Matrix fp8_of(const Fp8Case& c, const Fp8Size& size, const std::vector<T>& x) {
  Fp8Matrix m = poisoned_fp8(c, size);
  host::fp8_quantize({}, fp8_arguments(c, size, x.data(), dtype_of<T>(), m.codes.data(), m.scales.data()));
  return m;
}

/// A multiplier with which some of the values below saturate in either type, and what is not finite among them.
inline constexpr float delayed_multiplier = 1900.7f;
inline std::vector<float> delayed_fp8_values(const Fp8Size& size) {
  std::vector<float> x = fp8_values<float>(size, 9);
  for (std::size_t i = 0; i < x.size(); i += 97) x[i] *= 1000;
  if (x.size() > 200) x[40] = std::numeric_limits<float>::infinity(), x[41] = -x[40], x[77] = std::numeric_limits<float>::quiet_NaN();
  return x;
}
struct DelayedFp8 {
  Fp8Matrix matrix;
  float largest = 0;
};
/// `known`: of the largest magnitude before.
inline DelayedFp8 delayed_fp8_of(const Fp8Case& c, const Fp8Size& size, const std::vector<float>& x, float known) {
  DelayedFp8 made{poisoned_fp8(c, size), known};
  Fp8Quantize p = fp8_arguments(c, size, x.data(), DType::f32, made.matrix.codes.data(), made.matrix.scales.data());
  p.delayed = {&delayed_multiplier, &made.largest};
  host::fp8_quantize({}, p);
  return made;
}

}  // namespace tessera::kernels::testing
