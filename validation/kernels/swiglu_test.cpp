#include "swiglu_cases.hpp"

namespace tessera::kernels::testing::swiglu_test {
namespace {

/// act(g) and its derivative by their definitions.
struct Activated {
  double value, slope;
};
Activated activated(double g, GateActivation activation) {
  if (activation == GateActivation::gelu) {
    const double below = 0.5 * std::erfc(-g / std::sqrt(2.0));
    return {g * below, below + g * std::exp(-g * g / 2) / std::sqrt(2 * M_PI)};
  }
  // 0.5 (1 + tanh u) is the sigmoid of 2 u.
  const bool tanh = activation == GateActivation::gelu_tanh;
  const double c = tanh                                         ? 2 * std::sqrt(2 / M_PI)
                   : activation == GateActivation::clamped_silu ? 1.702
                                                                : 1,
               v = c * (tanh ? g + 0.044715 * g * g * g : g), v_slope = c * (tanh ? 1 + 3 * 0.044715 * g * g : 1);
  const double s = 1 / (1 + std::exp(-v)), complement = 1 / (1 + std::exp(v));
  return {g * s, complement == 0 ? s : s * (1 + g * v_slope * complement)};
}

/// out of a gate and an up, and its derivatives by both.
struct Gated {
  double out, by_gate, by_up;
};
Gated gated(double g, double u, GateActivation activation, double limit) {
  if (activation != GateActivation::clamped_silu) {
    const Activated at = activated(g, activation);
    return {at.value * u, at.slope * u, at.value};
  }
  const Activated at = activated(std::min(g, limit), activation);
  const double factor = std::clamp(u, -limit, limit) + 1;
  return {at.value * factor, g <= limit ? at.slope * factor : 0, std::abs(u) <= limit ? at.value : 0};
}

std::vector<double> reference_forward(const std::vector<double>& gate_up, std::size_t F, GateActivation activation,
                                      double limit = gate_limit) {
  std::vector<double> out(gate_up.size() / 2);
  for (std::size_t i = 0; i < out.size(); ++i) {
    double g = gate_up[i / F * 2 * F + i % F], u = gate_up[i / F * 2 * F + F + i % F];
    out[i] = gated(g, u, activation, limit).out;
  }
  return out;
}

std::vector<double> reference_backward(const std::vector<double>& d_out, const std::vector<double>& gate_up, std::size_t F,
                                       GateActivation activation, double limit = gate_limit) {
  std::vector<double> d(gate_up.size());
  for (std::size_t i = 0; i < d_out.size(); ++i) {
    std::size_t gate = i / F * 2 * F + i % F, up = gate + F;
    const Gated at = gated(gate_up[gate], gate_up[up], activation, limit);
    d[gate] = d_out[i] * at.by_gate;
    d[up] = d_out[i] * at.by_up;
  }
  return d;
}

template <class T>
struct Trial : SwigluInputs<T> {
  using SwigluInputs<T>::c, SwigluInputs<T>::gate_up, SwigluInputs<T>::d_out;
  GateActivation activation;
  float limit = gate_limit;
  std::vector<T> out, d_gate_up;
  explicit Trial(const SwigluCase& c, GateActivation activation = GateActivation::silu)
      : SwigluInputs<T>(c), activation(activation), out(poisoned<T>(c.M * c.F)), d_gate_up(poisoned<T>(2 * c.M * c.F)) {}
  void forward() {
    swiglu_forward({}, {.out = out.data(),
                        .gate_up = gate_up.data(),
                        .M = c.M,
                        .F = c.F,
                        .dtype = dtype_of<T>(),
                        .activation = activation,
                        .limit = limit});
  }
  void backward(T* d, T* again = nullptr) {
    swiglu_backward({}, {.d_gate_up = d,
                         .d_out = d_out.data(),
                         .gate_up = gate_up.data(),
                         .M = c.M,
                         .F = c.F,
                         .dtype = dtype_of<T>(),
                         .activation = activation,
                         .limit = limit,
                         .out = again});
  }
};

template <class T>
void check_against_reference(const SwigluCase& c, GateActivation activation) {
  SCOPED_TRACE(::testing::Message() << c << ", " << name_of_gate(activation));
  Trial<T> run(c, activation);
  auto F = static_cast<std::size_t>(c.F);
  run.forward();
  EXPECT_LT(relative_error(run.out, reference_forward(doubles(run.gate_up), F, activation)), tolerance<T>());
  run.backward(run.d_gate_up.data());
  EXPECT_LT(relative_error(run.d_gate_up, reference_backward(doubles(run.d_out), doubles(run.gate_up), F, activation)), tolerance<T>());
  std::vector<T> d = run.d_gate_up;
  run.backward(d.data(), run.d_out.data());
  EXPECT_EQ(digest(d).hex(), digest(run.d_gate_up).hex()) << "beside forward's output";
  EXPECT_EQ(digest(run.d_out).hex(), digest(run.out).hex()) << "which is forward's";
  run.d_out = SwigluInputs<T>(c).d_out;
  run.backward(run.gate_up.data());
  EXPECT_EQ(digest(run.gate_up).hex(), digest(run.d_gate_up).hex()) << "in place";
}
template <class T>
void check_against_reference() {
  for (const GateActivation activation : gate_activations)
    for (const SwigluCase& c : swiglu_cases) check_against_reference<T>(c, activation);
}
TEST(Swiglu, MatchesReferenceFp32) { check_against_reference<float>(); }
TEST(Swiglu, MatchesReferenceBf16) { check_against_reference<bf16>(); }
TEST(Swiglu, MatchesReferenceFp16) { check_against_reference<f16>(); }

TEST(Swiglu, ReferenceGradientMatchesFiniteDifferences) {
  std::vector<double> gate_up = doubles(random_values<float>(2 * 3 * 7, 1, 2.0f)), d_out = doubles(random_values<float>(3 * 7, 2));
  for (const GateActivation activation : gate_activations) {
    auto expected =
        finite_differences(gate_up, [&](const std::vector<double>& v) { return dot(d_out, reference_forward(v, 7, activation)); });
    auto gradient = reference_backward(d_out, gate_up, 7, activation);
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(gradient[i], expected[i], 1e-8) << name_of_gate(activation);
  }
}

// Each element against fp64 at its own size: large and tiny gates keep their digits, and nothing becomes NaN. An exponential has the
// rounding of its exponent times its size: that of g in a silu, of 1.702 g in a clamped one (where gates end at the limit), that of g^2 / 2
// and less than g^3 / 2 in a GELU, where it is 0 beyond 14.
TEST(Swiglu, KeepsDigitsOverTheWholeRange) {
  std::vector<float> gates;
  for (float g = -120; g <= 120; g += 0.37f) gates.push_back(g);
  for (float g = -15; g <= 6; g += 0.013f) gates.push_back(g);
  for (float g : {0.0f, -0.0f, 1e-30f, -1e-30f, 1e20f, -1e20f, 3e38f, -3e38f}) gates.push_back(g);
  auto F = static_cast<std::int64_t>(gates.size());
  for (const GateActivation activation : gate_activations) {
    SCOPED_TRACE(name_of_gate(activation));
    const bool clamped = activation == GateActivation::clamped_silu;
    Trial<float> run({.M = 1, .F = F}, activation);
    run.limit = 30;
    std::copy(gates.begin(), gates.end(), run.gate_up.begin());
    std::fill(run.gate_up.begin() + F, run.gate_up.end(), 1.0f);
    std::fill(run.d_out.begin(), run.d_out.end(), 1.0f);
    run.forward();
    run.backward(run.d_gate_up.data());
    for (std::size_t i = 0; i < gates.size(); ++i) {
      const double g = static_cast<double>(gates[i]);
      const Gated expected = gated(g, 1, activation, 30);
      const double digits = 5e-7 + (clamped                                                  ? 2e-7 * std::min(std::abs(g), 60.0)
                                    : activation == GateActivation::silu || std::abs(g) > 15 ? 0
                                                                                             : 6e-8 * (g * g + std::abs(g * g * g) / 8));
      EXPECT_NEAR(static_cast<double>(run.out[i]), expected.out, digits * std::abs(expected.out) + 1e-36) << g;
      EXPECT_NEAR(run.d_gate_up[i + gates.size()], expected.by_up, digits * std::abs(expected.by_up) + 1e-36) << g;
      // Near g = -1.28, in a GELU -0.75, the gradient passes through 0 as a difference of terms of size 0.3.
      const double scale = std::abs(expected.by_gate) + (std::abs(g) < 4 ? 0.6 : 0);
      EXPECT_NEAR(static_cast<double>(run.d_gate_up[i]), expected.by_gate, digits * scale + 1e-35) << g;
    }
  }
}

// On a bound as inside, beyond it nothing; and 7 is the bound of who says none.
template <class T>
void check_bounds() {
  EXPECT_EQ(SwigluForward{}.limit, 7) << "GPT-OSS's";
  EXPECT_EQ(SwigluBackward{}.limit, 7);
  for (const float limit : {7.0f, 0.75f}) {
    const float beyond = limit * 1.02f;
    const std::vector<std::pair<float, float>> values{{limit, limit},    {beyond, 1},       {1, beyond},     {-beyond, -limit},
                                                      {1, -beyond},      {beyond, -beyond}, {limit, -limit}, {-limit, limit},
                                                      {-100 * limit, 1}, {1000, limit},     {limit, -1000}};
    Trial<T> run({.M = 1, .F = static_cast<std::int64_t>(values.size())}, GateActivation::clamped_silu);
    run.limit = limit;
    for (std::size_t i = 0; i < values.size(); ++i)
      run.gate_up[i] = T(values[i].first), run.gate_up[values.size() + i] = T(values[i].second), run.d_out[i] = T(1.0f);
    run.forward();
    run.backward(run.d_gate_up.data());
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto [g, u] = values[i];
      SCOPED_TRACE(::testing::Message() << "gate " << g << ", up " << u << ", limit " << limit);
      const std::size_t up = values.size() + i;
      const Gated expected = gated(doubles(run.gate_up)[i], doubles(run.gate_up)[up], run.activation, static_cast<double>(limit));
      const auto near = [](T value, double wanted) {
        EXPECT_NEAR(static_cast<double>(static_cast<float>(value)), wanted, tolerance<T>() * (std::abs(wanted) + 0.1));
      };
      near(run.out[i], expected.out), near(run.d_gate_up[i], expected.by_gate), near(run.d_gate_up[up], expected.by_up);
      EXPECT_EQ(static_cast<float>(run.d_gate_up[i]) == 0, g > limit || g < -50);
      EXPECT_EQ(static_cast<float>(run.d_gate_up[up]) == 0, std::abs(u) > limit || g < -50);
    }
  }
}
TEST(Swiglu, ClampedGatesHaveGradientsUpToTheirBounds) { check_bounds<float>(), check_bounds<bf16>(), check_bounds<f16>(); }

TEST(Swiglu, SameBitsForAnyThreadCount) {
  for (const SwigluCase& c : {SwigluCase{77, 1013}, {1200, 48}})
    for (const GateActivation activation :
         {GateActivation::silu, GateActivation::clamped_silu, c.F == 48 ? GateActivation::gelu : GateActivation::gelu_tanh}) {
      expect_same_bits([=] {
        Trial<float> run(c, activation);
        Trial<bf16> half(c, activation);
        run.forward(), half.forward();
        run.backward(run.d_gate_up.data()), half.backward(half.d_gate_up.data());
        return digest(run.out, run.d_gate_up, half.out, half.d_gate_up);
      });
    }
}

}  // namespace
}  // namespace tessera::kernels::testing::swiglu_test
