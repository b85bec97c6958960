#include "activation_cases.hpp"

#include "base/check.hpp"
#include "kernels/exp.hpp"

namespace tessera::kernels::testing::activation_test {
namespace {

using Case = ActivationCase;

/// act(x), and its derivatives by x and by both alphas, by their definitions.
struct Activated {
  double value, slope, by_positive = 0, by_negative = 0;
};
Activated activated(double x, PlainActivation activation, const std::vector<double>& alphas) {
  if (activation == PlainActivation::gelu) {
    const double below = 0.5 * std::erfc(-x / std::sqrt(2.0));
    return {x * below, below + x * std::exp(-x * x / 2) / std::sqrt(2 * M_PI)};
  }
  if (activation == PlainActivation::gelu_tanh) {
    // 0.5 (1 + tanh u) is the sigmoid of 2 u.
    const double c = 2 * std::sqrt(2 / M_PI), v = c * (x + 0.044715 * x * x * x), v_slope = c * (1 + 3 * 0.044715 * x * x);
    const double s = 1 / (1 + std::exp(-v)), complement = 1 / (1 + std::exp(v));
    return {x * s, complement == 0 ? s : s * (1 + x * v_slope * complement)};
  }
  if (activation == PlainActivation::relu_squared) return {x > 0 ? x * x : 0, x > 0 ? 2 * x : 0};
  const double beta = 0.5, eps = static_cast<double>(-1e-6f);
  const double a_p = std::log1p(std::exp(alphas[0])), a_n = beta + std::log1p(std::exp(alphas[1]));
  if (x > 0) return {a_p * x * x + beta * x, 2 * a_p * x + beta, x * x / (1 + std::exp(-alphas[0])), 0};
  const double below = std::expm1(std::min(x, eps)) - x;
  return {a_n * below + beta * x, a_n * ((x < eps ? std::exp(x) : 0) - 1) + beta, 0, below / (1 + std::exp(-alphas[1]))};
}

struct Reference {
  std::vector<double> out, d_x, d_alphas = {0, 0}, sizes = {0, 0};  ///< sizes: of the terms of d_alphas
};
Reference reference(const std::vector<double>& x, const std::vector<double>& d_out, PlainActivation activation,
                    const std::vector<double>& alphas) {
  Reference r;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const Activated at = activated(x[i], activation, alphas);
    r.out.push_back(at.value), r.d_x.push_back(d_out[i] * at.slope);
    r.d_alphas[0] += d_out[i] * at.by_positive, r.d_alphas[1] += d_out[i] * at.by_negative;
    r.sizes[0] += std::abs(d_out[i] * at.by_positive), r.sizes[1] += std::abs(d_out[i] * at.by_negative);
  }
  return r;
}

template <class T>
struct Trial : ActivationInputs<T> {
  using Inputs = ActivationInputs<T>;
  using Inputs::c, Inputs::x, Inputs::d_out, Inputs::alphas, Inputs::d_alphas;
  std::vector<T> out, d_x;
  Trial(const Case& c, PlainActivation activation) : Inputs(c, activation), out(poisoned<T>(c.M * c.F)), d_x(out) {}
  void forward(T* to) {
    ActivationForward p = this->forward_arguments();
    p.out = to;
    activation_forward({}, p);
  }
  void backward(T* to, T* again = nullptr) {
    ActivationBackward p = this->backward_arguments();
    p.d_x = to, p.out = again;
    if (this->xielu()) p.d_alphas = d_alphas.data();
    Workspace workspace(activation_backward_workspace_bytes({.M = p.M, .F = p.F, .dtype = p.dtype, .activation = p.activation}));
    activation_backward(workspace.context(), p);
    EXPECT_TRUE(workspace.intact());
  }
  Reference expected() const { return reference(doubles(x), doubles(d_out), this->activation, doubles(alphas)); }
};

template <class T>
void check_against_reference(const Case& c, PlainActivation activation) {
  SCOPED_TRACE(::testing::Message() << c << ", " << name_of_plain(activation));
  const std::vector<float> before = ActivationInputs<T>(c, activation).d_alphas;
  Trial<T> run(c, activation);
  const Reference expected = run.expected();
  run.forward(run.out.data());
  EXPECT_LT(relative_error(run.out, expected.out), tolerance<T>());
  run.backward(run.d_x.data());
  EXPECT_LT(relative_error(run.d_x, expected.d_x), tolerance<T>());
  for (std::size_t i = 0; i < 2; ++i)
    EXPECT_NEAR(static_cast<double>(run.d_alphas[i]), static_cast<double>(before[i]) + expected.d_alphas[i],
                5e-7 * expected.sizes[i] + 1e-6);
  const std::string gradients = digest(run.d_x, run.d_alphas).hex();

  Trial<T> again(c, activation);
  again.backward(again.d_x.data(), again.d_out.data());
  EXPECT_EQ(digest(again.d_x, again.d_alphas).hex(), gradients) << "beside forward's output";
  EXPECT_EQ(digest(again.d_out).hex(), digest(run.out).hex()) << "which is forward's";
  for (auto shared : {&Trial<T>::x, &Trial<T>::d_out}) {
    Trial<T> in_place(c, activation);
    in_place.backward((in_place.*shared).data(), in_place.out.data());
    EXPECT_EQ(digest(in_place.*shared, in_place.d_alphas).hex(), gradients) << "in place";
    EXPECT_EQ(digest(in_place.out).hex(), digest(run.out).hex());
  }
  run.forward(run.x.data());
  EXPECT_EQ(digest(run.x).hex(), digest(run.out).hex()) << "forward in place";
}
template <class T>
void check_against_reference() {
  for (const PlainActivation activation : plain_activations)
    for (const Case& c : activation_cases) check_against_reference<T>(c, activation);
}
TEST(Activation, MatchesReferenceFp32) { check_against_reference<float>(); }
TEST(Activation, MatchesReferenceBf16) { check_against_reference<bf16>(); }
TEST(Activation, MatchesReferenceFp16) { check_against_reference<f16>(); }

TEST(Activation, ReferenceGradientMatchesFiniteDifferences) {
  const std::vector<double> x = doubles(random_values<float>(21, 1, 2.0f)), d_out = doubles(random_values<float>(21, 2)),
                            alphas = {0.2, -1};
  for (const PlainActivation activation : plain_activations) {
    SCOPED_TRACE(name_of_plain(activation));
    const auto loss = [&](const std::vector<double>& v, const std::vector<double>& a) {
      return dot(d_out, reference(v, d_out, activation, a).out);
    };
    const Reference gradient = reference(x, d_out, activation, alphas);
    const auto by_x = finite_differences(x, [&](const std::vector<double>& v) { return loss(v, alphas); });
    const auto by_alphas = finite_differences(alphas, [&](const std::vector<double>& a) { return loss(x, a); });
    for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(gradient.d_x[i], by_x[i], 1e-7);
    for (std::size_t i = 0; i < 2; ++i) EXPECT_NEAR(gradient.d_alphas[i], by_alphas[i], 1e-7);
  }
}

// Each element against fp64 at its own size. An exponential of a GELU has the rounding of its exponent, below g^2 / 2 and g^3 / 2, times
// its size; xIELU below 0 is a difference of terms of the size of x, or of the 1e-6 at which its exponential ends.
TEST(Activation, KeepsDigitsOverTheWholeRange) {
  std::vector<float> values;
  for (float g = -120; g <= 120; g += 0.37f) values.push_back(g);
  for (float g = -15; g <= 6; g += 0.013f) values.push_back(g);
  for (float g = 1e-9f; g < 1; g *= 1.7f) values.push_back(g), values.push_back(-g);
  for (float g : {0.0f, -0.0f, 1e-30f, -1e-30f, 1e17f, -1e17f}) values.push_back(g);
  for (const PlainActivation activation : plain_activations) {
    SCOPED_TRACE(name_of_plain(activation));
    Trial<float> run({.M = 1, .F = static_cast<std::int64_t>(values.size())}, activation);
    run.x = values;
    std::fill(run.d_out.begin(), run.d_out.end(), 1.0f);
    run.forward(run.out.data());
    run.backward(run.d_x.data());
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double g = static_cast<double>(values[i]);
      const Activated expected = activated(g, activation, doubles(run.alphas));
      const bool gelu = activation == PlainActivation::gelu || activation == PlainActivation::gelu_tanh;
      const double digits = 5e-7 + (gelu && std::abs(g) < 15 ? 6e-8 * (g * g + std::abs(g * g * g) / 8) : 0);
      const double size = std::abs(expected.value) + (run.xielu() ? std::abs(g) + 1e-6 : 0);
      EXPECT_NEAR(static_cast<double>(run.out[i]), expected.value, digits * size + 1e-36) << g;
      const double slope_size = std::abs(expected.slope) + (run.xielu() ? 1 : gelu && std::abs(g) < 4 ? 0.3 : 0);
      EXPECT_NEAR(static_cast<double>(run.d_x[i]), expected.slope, digits * slope_size + 1e-35) << g;
    }
  }
}

TEST(Activation, SoftplusKeepsDigitsWhereItIsSmall) {
  for (float x = -80; x < 30; x += 0.173f) {
    const double expected = std::log1p(std::exp(static_cast<double>(x)));
    EXPECT_NEAR(static_cast<double>(softplus(x)), expected, 6e-7 * expected) << x;
  }
}

TEST(Activation, SameBitsForAnyThreadCount) {
  for (const PlainActivation activation : plain_activations) {
    expect_same_bits([=] {
      Trial<float> run({65, 4099}, activation);
      Trial<bf16> half({65, 2011}, activation);
      run.forward(run.out.data()), half.forward(half.out.data());
      run.backward(run.d_x.data()), half.backward(half.d_x.data());
      return digest(run.out, run.d_x, run.d_alphas, half.out, half.d_x, half.d_alphas);
    });
  }
}

// Outputs beyond the caches are written with streaming stores: the bits are the same.
TEST(Activation, LargeOutputsHaveTheBitsOfSmallOnes) {
  constexpr std::int64_t rows = 2060, F = 4112, last = 5;  // fp32 of 34 MB, whose last elements are no whole vector
  auto memory = poisoned<float>(rows * F + 16);
  float* to = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64 / 4;
  for (const PlainActivation activation : {PlainActivation::relu_squared, PlainActivation::xielu}) {
    Trial<float> small({2, F}, activation), large({1, 1}, activation);
    small.forward(small.out.data()), small.backward(small.d_x.data());
    large.x.clear(), large.d_out.clear();
    for (std::int64_t r = 0; r < rows; r += 2) {
      large.x.insert(large.x.end(), small.x.begin(), small.x.end());
      large.d_out.insert(large.d_out.end(), small.d_out.begin(), small.d_out.end());
    }
    large.c = {1, rows * F - last};
    const auto expect_rows_of = [&](const std::vector<float>& expected) {
      for (std::int64_t r = 0; r < rows; ++r) {
        const std::size_t count = static_cast<std::size_t>(r + 1 < rows ? F : F - last);
        ASSERT_EQ(std::memcmp(to + r * F, expected.data() + r % 2 * F, count * sizeof(float)), 0) << r;
      }
    };
    large.forward(to);
    expect_rows_of(small.out);
    large.backward(to);
    expect_rows_of(small.d_x);
  }
}

TEST(Activation, RefusesWhatIsMissing) {
  Trial<float> run({3, 5}, PlainActivation::xielu);
  ActivationForward p = run.forward_arguments();
  p.out = run.out.data(), p.alphas = nullptr;
  EXPECT_THROW(activation_forward({}, p), Error);
  ActivationBackward b = run.backward_arguments();
  b.d_x = run.d_x.data(), b.d_alphas = run.d_alphas.data();
  EXPECT_THROW(activation_backward({}, b), Error) << "workspace";
}

}  // namespace
}  // namespace tessera::kernels::testing::activation_test
