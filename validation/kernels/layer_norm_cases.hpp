// LayerNorm on rows drawn by a seed, whose mean is not 0.
#pragma once
#include <ostream>

#include "kernels/layer_norm/layer_norm.hpp"
#include "same_bits.hpp"

namespace tessera::kernels::testing {

struct LayerNormCase {
  std::int64_t rows, C;
  std::int64_t elements() const { return rows * C; }
};
/// On a GPU from a row on part of a warp to rows that registers do not hold; lengths that are no whole vectors; several row blocks.
inline const LayerNormCase layer_norm_cases[] = {{1, 1},    {1, 48},    {77, 1},    {77, 48},  {77, 128}, {9, 1013}, {3, 1013},
                                                 {130, 80}, {40, 1000}, {33, 2048}, {9, 4096}, {3, 8192}, {3, 16448}};
inline std::ostream& operator<<(std::ostream& out, const LayerNormCase& c) { return out << "rows " << c.rows << ", C " << c.C; }

template <class T>
struct LayerNormInputs {
  LayerNormCase c;
  std::vector<T> x, weight, bias, d_out, residual;
  std::vector<float> d_weight, d_bias;  ///< what is there before
  explicit LayerNormInputs(const LayerNormCase& c)
      : c(c),
        x(random_values<T>(c.elements(), 1)),
        weight(random_values<T>(c.C, 2)),
        bias(random_values<T>(c.C, 6)),
        d_out(random_values<T>(c.elements(), 3)),
        residual(random_values<T>(c.elements(), 4)),
        d_weight(random_values<float>(c.C, 5)),
        d_bias(random_values<float>(c.C, 7)) {
    for (T& value : x) value = T(static_cast<float>(value) + 1.5f);
  }
  /// Without results.
  LayerNormForward forward_arguments(bool with_bias, bool joined) const {
    return {.x = x.data(),
            .weight = weight.data(),
            .bias = with_bias ? bias.data() : nullptr,
            .rows = c.rows,
            .C = c.C,
            .dtype = dtype_of<T>(),
            .residual = joined ? residual.data() : nullptr};
  }
  LayerNormBackward backward_arguments(bool joined, const std::vector<float>& mean, const std::vector<float>& rstd) const {
    return {.d_out = d_out.data(),
            .d_residual = joined ? residual.data() : nullptr,
            .x = x.data(),
            .weight = weight.data(),
            .mean = mean.data(),
            .rstd = rstd.data(),
            .rows = c.rows,
            .C = c.C,
            .dtype = dtype_of<T>()};
  }
};

}  // namespace tessera::kernels::testing
