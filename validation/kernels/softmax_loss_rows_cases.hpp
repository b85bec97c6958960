// Rows of logits and their targets.
#pragma once
#include <ostream>

#include "kernels/cross_entropy/cross_entropy.hpp"
#include "same_bits.hpp"

namespace tessera::kernels::testing {

struct SoftmaxLossRowsCase {
  std::int64_t rows, V;
  float spread = 3;
  LogitMap map = {};
};
/// Rows shorter than a block of threads, several tiles, longer than what shared memory keeps, no whole vectors; peaked rows with a
/// subnormal tail.
inline const SoftmaxLossRowsCase softmax_loss_rows_cases[] = {{1, 1},     {3, 2},     {3, 7},     {5, 64},    {3, 1013},    {2, 2048},
                                                              {2, 16384}, {2, 20001}, {1, 45056}, {3, 50257}, {3, 1000, 60}};
/// Logits in a cap's straight part, around its bend, at its end; scaled ones, and ones whose order is turned.
inline const SoftmaxLossRowsCase mapped_rows_cases[] = {{1, 1, 3, {1, 30}},     {3, 7, 3, {0.5f, 0}},       {3, 1013, 3, {0.0625f, 5}},
                                                        {2, 2048, 20, {1, 30}}, {3, 1000, 60, {0.25f, 0}},  {2, 20001, 20, {0.5f, 5}},
                                                        {3, 1013, 60, {2, 30}}, {1, 45056, 10, {1.5f, 12}}, {3, 1013, 6, {-1, 4}}};
inline std::ostream& operator<<(std::ostream& out, const SoftmaxLossRowsCase& c) {
  return out << c.rows << " rows of " << c.V << ", spread " << c.spread << ", scale " << c.map.scale << ", cap " << c.map.cap;
}

/// A mapped logit and its derivative by definition.
inline double mapped_in_fp64(double x, const LogitMap& map) {
  const auto scale = static_cast<double>(map.scale), cap = static_cast<double>(map.cap);
  return cap == 0 ? scale * x : cap * std::tanh(scale * x / cap);
}
inline double map_slope_in_fp64(double x, const LogitMap& map) {
  const auto scale = static_cast<double>(map.scale), cap = static_cast<double>(map.cap);
  const double cosh = cap == 0 ? 1 : std::cosh(scale * x / cap);
  return scale / (cosh * cosh);
}

struct SoftmaxLossRowsInputs {
  std::vector<float> logits;
  std::vector<std::int32_t> targets;  ///< the last token, another one, others
  std::vector<float> weights;         ///< 1, a fraction, 0 (whose target is none), others
  explicit SoftmaxLossRowsInputs(const SoftmaxLossRowsCase& c) : logits(random_values<float>(c.rows * c.V, 1, c.spread)) {
    for (std::int64_t r = 0; r < c.rows; ++r) {
      targets.push_back(r == 2 ? -7 : static_cast<std::int32_t>(r == 0 ? c.V - 1 : (r * 7919) % c.V));
      weights.push_back(r == 0 ? 1.0f : r == 1 ? 0.3f : r == 2 ? 0.0f : static_cast<float>(r));
    }
  }
};

inline constexpr float softmax_grad_scale = 0x1p-10f;

}  // namespace tessera::kernels::testing
