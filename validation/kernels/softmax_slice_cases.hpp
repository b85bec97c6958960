// A vocabulary cut into slices: what the tests of both backends make their losses of.
#pragma once
#include "kernels/cross_entropy/cross_entropy.hpp"
#include "kernels/cross_entropy/softmax_slice.hpp"
#include "same_bits.hpp"
#include "softmax_loss_rows_cases.hpp"

namespace tessera::kernels::testing {

struct SoftmaxSliceCase {
  std::int64_t rows, V, slices;
  float spread = 3;
  LogitMap map = {};
};
// Slices of one token, unequal ones, whole vectors, more than a block's threads; peaked rows with a subnormal tail; mapped logits.
inline const SoftmaxSliceCase softmax_slice_cases[] = {{1, 1, 1},
                                                       {3, 7, 7},
                                                       {4, 257, 2},
                                                       {5, 64, 4},
                                                       {3, 1013, 3},
                                                       {2, 20001, 2},
                                                       {3, 1000, 5, 60},
                                                       {4, 257, 3, 3, {0.5f, 0}},
                                                       {3, 7, 7, 20, {1, 30}},
                                                       {3, 1013, 3, 60, {2, 30}},
                                                       {2, 4099, 2, 10, {-1, 12}}};

struct SoftmaxSliceInputs {
  std::vector<float> logits;
  std::vector<std::int32_t> targets;
  std::vector<float> weights;  ///< 1, a fraction, 0 (whose target is none), others
  explicit SoftmaxSliceInputs(const SoftmaxSliceCase& c) : logits(random_values<float>(c.rows * c.V, 1, c.spread)) {
    for (std::int64_t r = 0; r < c.rows; ++r) {
      targets.push_back(r == 2 ? -7 : static_cast<std::int32_t>(r == 0 ? c.V - 1 : (r * 7919) % c.V));
      weights.push_back(r == 0 ? 1.0f : r == 1 ? 0.3f : r == 2 ? 0.0f : static_cast<float>(r));
    }
  }
  Range slice(const SoftmaxSliceCase& c, std::int64_t k) const { return {c.V * k / c.slices, c.V * (k + 1) / c.slices}; }
  /// Columns of a slice, row by row.
  std::vector<float> columns(const SoftmaxSliceCase& c, const Range& range) const {
    std::vector<float> part;
    for (std::int64_t r = 0; r < c.rows; ++r)
      part.insert(part.end(), logits.begin() + r * c.V + range.begin, logits.begin() + r * c.V + range.end);
    return part;
  }
};

/// With weights of either sign, as losses of preferences have them.
inline SoftmaxSliceInputs signed_inputs(const SoftmaxSliceCase& c) {
  SoftmaxSliceInputs in(c);
  for (std::size_t r = 0; r < in.weights.size(); r += 3) in.weights[r] = -in.weights[r];
  return in;
}

struct SoftmaxSliceResult {
  std::vector<float> losses;     ///< (rows)
  std::vector<double> d_logits;  ///< (rows,V)
  Hash128 hash() const { return digest(losses, d_logits); }
};

inline constexpr float softmax_slice_grad_scale = 0x1p-10f;

/// What the loss of whole rows makes of it, on the host.
template <class T>
SoftmaxSliceResult of_whole_rows(const SoftmaxSliceCase& c) {
  SoftmaxSliceInputs in(c);
  auto losses = poisoned<float>(c.rows);
  auto d = poisoned<T>(c.rows * c.V);
  host::softmax_loss_rows({}, {.losses = losses.data(),
                               .logits = in.logits.data(),
                               .d_logits = d.data(),
                               .targets = in.targets.data(),
                               .weights = in.weights.data(),
                               .grad_scale = &softmax_slice_grad_scale,
                               .rows = c.rows,
                               .V = c.V,
                               .dtype = dtype_of<T>(),
                               .map = c.map});
  SoftmaxSliceResult result{losses, {}};
  for (const T x : d) result.d_logits.push_back(static_cast<double>(static_cast<float>(x)));
  return result;
}

/// d_logits by definition, in fp64.
inline std::vector<double> gradient_in_fp64(const SoftmaxSliceCase& c, const SoftmaxSliceInputs& in) {
  std::vector<double> d;
  for (std::int64_t r = 0; r < c.rows; ++r) {
    const float* row = in.logits.data() + r * c.V;
    const double weight = static_cast<double>(in.weights[static_cast<std::size_t>(r)]) * static_cast<double>(softmax_slice_grad_scale);
    double most = -std::numeric_limits<double>::infinity(), total = 0;
    for (std::int64_t v = 0; v < c.V; ++v) most = std::max(most, mapped_in_fp64(static_cast<double>(row[v]), c.map));
    for (std::int64_t v = 0; v < c.V; ++v) total += std::exp(mapped_in_fp64(static_cast<double>(row[v]), c.map) - most);
    for (std::int64_t v = 0; v < c.V; ++v) {
      const auto x = static_cast<double>(row[v]);
      const double probability = std::exp(mapped_in_fp64(x, c.map) - most) / total;
      const bool is_target = v == in.targets[static_cast<std::size_t>(r)];
      d.push_back(weight == 0 ? 0 : weight * (probability - (is_target ? 1 : 0)) * map_slope_in_fp64(x, c.map));
    }
  }
  return d;
}

template <class T>
void expect_close(const SoftmaxSliceResult& result, const SoftmaxSliceResult& expected) {
  ASSERT_EQ(result.losses.size(), expected.losses.size());
  for (std::size_t r = 0; r < expected.losses.size(); ++r)
    EXPECT_NEAR(result.losses[r], expected.losses[r], 1e-6 * std::max(1.0, std::abs(static_cast<double>(expected.losses[r]))));
  ASSERT_EQ(result.d_logits.size(), expected.d_logits.size());
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < expected.d_logits.size(); ++i) {
    const double a = result.d_logits[i], b = expected.d_logits[i];
    difference += (a - b) * (a - b), norm += b * b;
    EXPECT_TRUE(a == 0 || std::abs(a) >= static_cast<double>(std::numeric_limits<float>::min())) << a;
  }
  if (expected.d_logits.size() > 1) {  // of one token probability - 1 is nothing but rounding
    EXPECT_LT(std::sqrt(difference / norm), sizeof(T) == 4 ? 1e-6 : 1e-3);
  }
}

}  // namespace tessera::kernels::testing
