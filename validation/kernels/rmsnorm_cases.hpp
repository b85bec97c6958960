// RMSNorm on rows drawn by a seed.
#pragma once
#include <ostream>

#include "kernels/rmsnorm/rmsnorm.hpp"
#include "same_bits.hpp"

namespace tessera::kernels::testing {

struct RmsnormCase {
  std::int64_t rows, C;
  std::int64_t elements() const { return rows * C; }
};
/// On a GPU from a row on part of a warp to rows that registers do not hold; lengths that are no whole vectors; several row blocks.
inline const RmsnormCase rmsnorm_cases[] = {{1, 1},    {1, 48},    {77, 1},    {77, 48},  {77, 128}, {9, 1013}, {3, 1013},
                                            {130, 80}, {40, 1000}, {33, 2048}, {9, 4096}, {3, 8192}, {3, 16448}};
inline std::ostream& operator<<(std::ostream& out, const RmsnormCase& c) { return out << "rows " << c.rows << ", C " << c.C; }

template <class T>
struct RmsnormInputs {
  RmsnormCase c;
  std::vector<T> x, weight, d_out, residual;
  std::vector<float> d_weight;  ///< what is there before
  explicit RmsnormInputs(const RmsnormCase& c)
      : c(c),
        x(random_values<T>(c.elements(), 1)),
        weight(random_values<T>(c.C, 2)),
        d_out(random_values<T>(c.elements(), 3)),
        residual(random_values<T>(c.elements(), 4)),
        d_weight(random_values<float>(c.C, 5)) {}
  /// Without results.
  RmsnormForward forward_arguments() const {
    return {.x = x.data(), .weight = weight.data(), .rows = c.rows, .C = c.C, .dtype = dtype_of<T>()};
  }
  RmsnormBackward backward_arguments(const std::vector<float>& rstd) const {
    return {.d_out = d_out.data(),
            .d_residual = residual.data(),
            .x = x.data(),
            .weight = weight.data(),
            .rstd = rstd.data(),
            .rows = c.rows,
            .C = c.C,
            .dtype = dtype_of<T>()};
  }
};

}  // namespace tessera::kernels::testing
