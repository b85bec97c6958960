// Adafactor (Shazeer and Stern, arXiv:1804.04235) as transformers' Adafactor has it without relative_step, scale_parameter and beta1: of a
// matrix the mean squares of gradients are kept for each row and each column, of a vector for each element.
//
// Sums over rows and columns are exact: squares, times scalars->square_scale, are rounded to 2^-80 as SplitSquare does, and a line has the
// parts above and below 2^-40 as an integer each. They do not depend on how a matrix is cut.
#pragma once
#include "kernels/update/update.hpp"

namespace tessera::kernels {

/// What the squares of gradients are at least taken for.
inline constexpr double adafactor_least_square = 1e-30;

/// The lines' sums get the squares of g = grad * grad_scale. With scalars->skip no call does anything, but the last, which makes the copy.
TESSERA_OP(adafactor_squares, (const Context& context, const Update& arguments), (context, arguments))
/// Of a whole matrix, from its lines' sums: of_rows = b2 of_rows + (1-b2) mean of the row, and so of_columns; the last words of the sums
/// get the mean of of_rows, as fp64. n counts for nothing.
TESSERA_OP(adafactor_lines, (const Context& context, const Update& arguments), (context, arguments))
/// u = g / sqrt(of_rows / their mean) / sqrt(of_columns); the tensor's sum gets u^2.
TESSERA_OP(adafactor_direction, (const Context& context, const Update& arguments), (context, arguments))
/// w = w (1 - lr weight_decay) - lr u / max(1, root of the mean of u^2 / update_clipping).
TESSERA_OP(adafactor, (const Context& context, const Update& arguments), (context, arguments))

/// Of a vector: v = b2 v + (1-b2) (g^2 + least square), u = g / sqrt(v); the tensor's sum gets u^2. State: v.
TESSERA_OP(adafactor_vector_direction, (const Context& context, const Update& arguments), (context, arguments))
/// As adafactor.
TESSERA_OP(adafactor_vector, (const Context& context, const Update& arguments), (context, arguments))

namespace adafactor_detail {

/// The mean of what is kept of rows is summed in so many chains, row i in chain i % chains, which are joined by halves.
inline constexpr int chains = 256;

/// A line's sum of squares over `count` elements, from its two words.
TESSERA_BOTH inline double mean_square(const std::int64_t* words, double square_scale, std::int64_t count) {
  const double sum = static_cast<double>(words[0]) * 0x1p-40 + static_cast<double>(words[1]) * 0x1p-80;
  return sum / square_scale / static_cast<double>(count) + adafactor_least_square;
}
TESSERA_BOTH inline float moved(float kept, float beta2, double mean) {
  return static_cast<float>(::fma(static_cast<double>(beta2), static_cast<double>(kept), (1 - static_cast<double>(beta2)) * mean));
}

/// Of an update whose squares are summed: what all its elements are multiplied by, and the weights.
struct Factors {
  float step, keep;

  TESSERA_BOTH Factors(const UpdateScalars& s, const Update& p) {
    const double root = ::sqrt(p.sums[0].value() / static_cast<double>(p.tensor_elements));
    const double over = root / static_cast<double>(s.update_clipping);
    const auto rate = static_cast<double>(s.learning_rate * p.rate_scale);
    step = static_cast<float>(rate / (over > 1 ? over : 1));
    keep = static_cast<float>(::fma(-rate, static_cast<double>(p.weight_decay), 1.0));
  }
};

}  // namespace adafactor_detail

struct AdafactorVectorDirectionRule : UpdateRule {
  static constexpr int states = 1, sums = 1;
  static constexpr bool changes_master = false;
  float grad_scale, beta2, rest2;

  TESSERA_BOTH AdafactorVectorDirectionRule(const UpdateScalars& s, const Update&)
      : grad_scale(s.grad_scale), beta2(s.beta2), rest2(1.0f - s.beta2) {}

  template <class F>
  TESSERA_BOTH TESSERA_INLINE void operator()(F&, F* state, F g, F* summed) const {
    using A = Arithmetic<F>;
    g = g * grad_scale;
    state[0] = A::fma(beta2, state[0], rest2 * A::fma(g, g, A::splat(static_cast<float>(adafactor_least_square))));
    summed[0] = g / A::sqrt(state[0]);
  }
};

struct AdafactorVectorRule : UpdateRule {
  static constexpr int states = 1;
  static constexpr bool changes_state = false, reads_sums = true;
  float grad_scale;
  adafactor_detail::Factors factors;

  TESSERA_BOTH AdafactorVectorRule(const UpdateScalars& s, const Update& p) : grad_scale(s.grad_scale), factors(s, p) {}

  template <class F>
  TESSERA_BOTH TESSERA_INLINE void operator()(F& w, F* state, F g) const {
    using A = Arithmetic<F>;
    w = A::fma(w, factors.keep, -(g * grad_scale / A::sqrt(state[0]) * factors.step));
  }
};

}  // namespace tessera::kernels
