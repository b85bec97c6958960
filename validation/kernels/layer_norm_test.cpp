#include "layer_norm_cases.hpp"

#include "base/check.hpp"

namespace tessera::kernels::testing::layer_norm_test {
namespace {

using Case = LayerNormCase;

/// Those of both backends, and of the host alone: many rows.
std::vector<Case> cases() {
  std::vector<Case> all(std::begin(layer_norm_cases), std::end(layer_norm_cases));
  all.insert(all.end(), {{130, 1013}, {2100, 80}});
  return all;
}
constexpr float eps = 1e-5f;

struct Moments {
  double mean, rstd;
};
Moments moments(const double* x, std::size_t C) {
  double sum = 0, squares = 0;
  for (std::size_t i = 0; i < C; ++i) sum += x[i];
  const double mean = sum / static_cast<double>(C);
  for (std::size_t i = 0; i < C; ++i) squares += (x[i] - mean) * (x[i] - mean);
  return {mean, 1 / std::sqrt(squares / static_cast<double>(C) + static_cast<double>(eps))};
}

/// The definition, dense, in fp64. `bias` may be empty.
std::vector<double> reference_forward(const std::vector<double>& x, const std::vector<double>& weight, const std::vector<double>& bias) {
  const std::size_t C = weight.size();
  std::vector<double> out(x.size());
  for (std::size_t r = 0; r < x.size() / C; ++r) {
    const auto [mean, rstd] = moments(&x[r * C], C);
    for (std::size_t i = 0; i < C; ++i) out[r * C + i] = (x[r * C + i] - mean) * rstd * weight[i] + (bias.empty() ? 0 : bias[i]);
  }
  return out;
}

struct Gradients {
  std::vector<double> d_x, d_weight, d_bias;
  double largest_term = 0;  ///< of d_x: with C = 1 all of it cancels
};
Gradients reference_backward(const std::vector<double>& d_out, const std::vector<double>& x, const std::vector<double>& weight) {
  const std::size_t C = weight.size();
  Gradients g{.d_x = std::vector<double>(x.size()), .d_weight = std::vector<double>(C), .d_bias = std::vector<double>(C)};
  for (std::size_t r = 0; r < x.size() / C; ++r) {
    const auto [mean, rstd] = moments(&x[r * C], C);
    double along = 0, sum = 0;
    for (std::size_t i = 0; i < C; ++i) {
      sum += d_out[r * C + i] * weight[i];
      along += d_out[r * C + i] * weight[i] * (x[r * C + i] - mean) * rstd;
    }
    for (std::size_t i = 0; i < C; ++i) {
      const std::size_t at = r * C + i;
      const double normed = (x[at] - mean) * rstd;
      g.d_x[at] = rstd * (d_out[at] * weight[i] - (sum + normed * along) / static_cast<double>(C));
      g.largest_term = std::max(g.largest_term, std::abs(rstd * d_out[at] * weight[i]));
      g.d_weight[i] += d_out[at] * normed;
      g.d_bias[i] += d_out[at];
    }
  }
  return g;
}

template <class T>
struct Trial : LayerNormInputs<T> {
  using Inputs = LayerNormInputs<T>;
  using Inputs::c, Inputs::x, Inputs::weight, Inputs::bias, Inputs::d_out, Inputs::residual, Inputs::d_weight, Inputs::d_bias;
  std::vector<T> out, d_x;
  std::vector<float> mean, rstd;

  explicit Trial(const Case& c)
      : Inputs(c), out(poisoned<T>(c.elements())), d_x(out), mean(poisoned<float>(c.rows)), rstd(poisoned<float>(c.rows)) {}
  LayerNormForward forward(bool with_bias, bool joined) {
    LayerNormForward p = this->forward_arguments(with_bias, joined);
    p.out = out.data(), p.mean = mean.data(), p.rstd = rstd.data(), p.eps = eps;
    layer_norm_forward({}, p);
    return p;
  }
  LayerNormBackward arguments(bool with_bias, bool joined) {
    LayerNormBackward p = this->backward_arguments(joined, mean, rstd);
    p.d_x = d_x.data(), p.d_weight = d_weight.data(), p.d_bias = with_bias ? d_bias.data() : nullptr;
    return p;
  }
  void backward(const LayerNormBackward& p) {
    Workspace workspace(layer_norm_backward_workspace_bytes({.rows = p.rows, .C = p.C, .dtype = p.dtype}));
    layer_norm_backward(workspace.context(), p);
    EXPECT_TRUE(workspace.intact());
  }
};

void add(std::vector<double>& to, const std::vector<double>& what) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += what[i];
}

template <class T>
void check_forward(const Case& c, bool with_bias, bool joined) {
  Trial<T> run(c);
  LayerNormForward p = run.forward(with_bias, joined);
  std::vector<double> expected =
      reference_forward(doubles(run.x), doubles(run.weight), with_bias ? doubles(run.bias) : doubles(std::vector<T>{}));
  if (joined) add(expected, doubles(run.residual));
  // With C = 1 what is normed is 0, and there is nothing to compare with but 0.
  EXPECT_LT(relative_error(run.out, expected, 1), tolerance<T>());
  const std::vector<double> x = doubles(run.x);
  for (std::size_t r = 0; r < run.mean.size(); ++r) {
    const Moments of = moments(&x[r * static_cast<std::size_t>(c.C)], static_cast<std::size_t>(c.C));
    EXPECT_NEAR(static_cast<double>(run.mean[r]), of.mean, 1e-6 * (1 + std::abs(of.mean)));
    EXPECT_NEAR(static_cast<double>(run.rstd[r]), of.rstd, 2e-6 * of.rstd);
  }
  std::vector<T> in_place = run.residual;
  p.mean = p.rstd = nullptr;
  if (joined) p.residual = in_place.data();
  p.out = in_place.data();
  layer_norm_forward({}, p);
  EXPECT_EQ(digest(in_place).hex(), digest(run.out).hex()) << "over the residual, without statistics";
}

template <class T>
void check_backward(const Case& c, bool with_bias, bool joined) {
  Trial<T> run(c);
  run.forward(with_bias, false);
  Gradients expected = reference_backward(doubles(run.d_out), doubles(run.x), doubles(run.weight));
  add(expected.d_weight, doubles(run.d_weight));
  if (joined) add(expected.d_x, doubles(run.residual));
  const std::vector<float> d_bias = run.d_bias;
  run.backward(run.arguments(with_bias, joined));
  EXPECT_LT(relative_error(run.d_x, expected.d_x, expected.largest_term), tolerance<T>());
  EXPECT_LT(relative_error(run.d_weight, expected.d_weight), 2e-6);
  if (with_bias) {
    add(expected.d_bias, doubles(d_bias));
    EXPECT_LT(relative_error(run.d_bias, expected.d_bias), 2e-6);
  } else {
    EXPECT_EQ(run.d_bias, d_bias);
  }
  for (auto shared : {&Trial<T>::residual, &Trial<T>::d_out}) {
    Trial<T> in_place(c);
    in_place.forward(with_bias, false);
    LayerNormBackward p = in_place.arguments(with_bias, joined);
    p.d_x = (in_place.*shared).data();
    in_place.backward(p);
    EXPECT_EQ(digest(in_place.*shared, in_place.d_weight, in_place.d_bias).hex(), digest(run.d_x, run.d_weight, run.d_bias).hex());
  }
}

template <class T>
void check_against_reference() {
  for (const Case& c : cases()) {
    const bool all = c.elements() < 20000;
    for (const bool with_bias : {false, true})
      for (const bool joined : {false, true}) {
        if (!all && with_bias != joined) continue;
        SCOPED_TRACE(::testing::Message() << c << (with_bias ? ", with a bias" : "") << (joined ? ", joined by a residual" : ""));
        check_forward<T>(c, with_bias, joined), check_backward<T>(c, with_bias, joined);
      }
  }
}
TEST(LayerNorm, MatchesReferenceFp32) { check_against_reference<float>(); }
TEST(LayerNorm, MatchesReferenceBf16) { check_against_reference<bf16>(); }
TEST(LayerNorm, MatchesReferenceFp16) { check_against_reference<f16>(); }

// The squares of x are no part of the variance: it keeps its digits where the mean is a thousand times the deviation.
TEST(LayerNorm, KeepsDigitsBesideALargeMean) {
  for (const std::int64_t C : {77, 1024}) {
    Trial<float> run({.rows = 5, .C = C});
    for (float& x : run.x) x += 4000.0f;
    run.forward(true, false);
    const auto expected = reference_forward(doubles(run.x), doubles(run.weight), doubles(run.bias));
    EXPECT_LT(relative_error(run.out, expected), 4e-4);  // the rounding of the mean, 2^-13
    const std::vector<double> x = doubles(run.x);
    for (std::size_t r = 0; r < 5; ++r) {
      const double rstd = moments(&x[r * static_cast<std::size_t>(C)], static_cast<std::size_t>(C)).rstd;
      EXPECT_NEAR(static_cast<double>(run.rstd[r]), rstd, 3e-6 * rstd);
    }
  }
}

// What the norm makes is not rounded before the residual joins: only next to ties may fp32 choose the other neighbour.
TEST(LayerNorm, RoundsOnceWithAResidual) {
  Trial<bf16> run({.rows = 60, .C = 256});
  run.forward(true, true);
  auto expected = reference_forward(doubles(run.x), doubles(run.weight), doubles(run.bias));
  add(expected, doubles(run.residual));
  std::size_t others = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) others += run.out[i] != bf16(static_cast<float>(expected[i]));
  EXPECT_LT(static_cast<double>(others), 2e-3 * static_cast<double>(expected.size()));
}

TEST(LayerNorm, ReferenceGradientMatchesFiniteDifferences) {
  const std::vector<double> x = doubles(random_values<float>(3 * 19, 1)), weight = doubles(random_values<float>(19, 2)),
                            d_out = doubles(random_values<float>(3 * 19, 3)), bias = doubles(random_values<float>(19, 4));
  const Gradients g = reference_backward(d_out, x, weight);
  const auto expect_near = [](const std::vector<double>& a, const std::vector<double>& b) {
    for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-8);
  };
  const auto loss = [&](const auto& a, const auto& b, const auto& c) { return dot(d_out, reference_forward(a, b, c)); };
  expect_near(g.d_x, finite_differences(x, [&](const std::vector<double>& v) { return loss(v, weight, bias); }));
  expect_near(g.d_weight, finite_differences(weight, [&](const std::vector<double>& v) { return loss(x, v, bias); }));
  expect_near(g.d_bias, finite_differences(bias, [&](const std::vector<double>& v) { return loss(x, weight, v); }));
}

TEST(LayerNorm, SameBitsForAnyThreadCount) {
  for (const Case c : {Case{77, 1013}, Case{4099, 48}}) {
    expect_same_bits([c] {
      Trial<float> run(c);
      Trial<bf16> half(c);
      run.forward(true, true), half.forward(true, false);
      run.backward(run.arguments(true, true)), half.backward(half.arguments(true, false));
      return digest(run.out, run.mean, run.rstd, run.d_x, run.d_weight, run.d_bias, half.out, half.d_x, half.d_weight, half.d_bias);
    });
  }
}

// Outputs beyond the caches are written with streaming stores: the bits are the same.
TEST(LayerNorm, LargeOutputsHaveTheBitsOfSmallOnes) {
  constexpr std::int64_t rows = 8200, C = 1024, elements = rows * C;
  auto out_memory = poisoned<float>(elements + 16);
  float* out = out_memory.data() + (64 - reinterpret_cast<std::uintptr_t>(out_memory.data()) % 64) % 64 / 4;
  Trial<float> small({.rows = 8, .C = C});
  auto x = poisoned<float>(elements), d_out = x, mean = poisoned<float>(rows), rstd = mean;
  for (std::int64_t r = 0; r < rows; ++r) {
    std::copy_n(small.x.data() + r % 8 * C, C, x.data() + r * C);
    std::copy_n(small.d_out.data() + r % 8 * C, C, d_out.data() + r * C);
  }
  const auto expect_rows_of = [&](const std::vector<float>& expected) {
    for (std::int64_t r = 0; r < rows; ++r) ASSERT_EQ(std::memcmp(out + r * C, expected.data() + r % 8 * C, C * sizeof(float)), 0) << r;
  };
  LayerNormForward p = small.forward(true, false);
  p.out = out, p.mean = mean.data(), p.rstd = rstd.data(), p.x = x.data(), p.rows = rows;
  layer_norm_forward({}, p);
  expect_rows_of(small.out);
  LayerNormBackward b = small.arguments(true, false);
  small.backward(b);
  b.d_x = out, b.d_out = d_out.data(), b.x = x.data(), b.mean = mean.data(), b.rstd = rstd.data(), b.rows = rows;
  small.backward(b);
  expect_rows_of(small.d_x);
}

TEST(LayerNorm, RefusesAShortWorkspace) {
  Trial<float> run({.rows = 77, .C = 48});
  EXPECT_THROW(layer_norm_backward({}, run.arguments(true, true)), Error);
}

}  // namespace
}  // namespace tessera::kernels::testing::layer_norm_test
