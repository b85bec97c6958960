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
  const double c = 2 * std::sqrt(2 / M_PI), v = tanh ? c * (g + 0.044715 * g * g * g) : g,
               v_slope = tanh ? c * (1 + 3 * 0.044715 * g * g) : 1;
  const double s = 1 / (1 + std::exp(-v)), complement = 1 / (1 + std::exp(v));
  return {g * s, complement == 0 ? s : s * (1 + g * v_slope * complement)};
}

std::vector<double> reference_forward(const std::vector<double>& gate_up, std::size_t F, GateActivation activation) {
  std::vector<double> out(gate_up.size() / 2);
  for (std::size_t i = 0; i < out.size(); ++i) {
    double g = gate_up[i / F * 2 * F + i % F], u = gate_up[i / F * 2 * F + F + i % F];
    out[i] = activated(g, activation).value * u;
  }
  return out;
}

std::vector<double> reference_backward(const std::vector<double>& d_out, const std::vector<double>& gate_up, std::size_t F,
                                       GateActivation activation) {
  std::vector<double> d(gate_up.size());
  for (std::size_t i = 0; i < d_out.size(); ++i) {
    std::size_t gate = i / F * 2 * F + i % F, up = gate + F;
    const Activated at = activated(gate_up[gate], activation);
    d[gate] = d_out[i] * gate_up[up] * at.slope;
    d[up] = d_out[i] * at.value;
  }
  return d;
}

template <class T>
struct Trial : SwigluInputs<T> {
  using SwigluInputs<T>::c, SwigluInputs<T>::gate_up, SwigluInputs<T>::d_out;
  GateActivation activation;
  std::vector<T> out, d_gate_up;
  explicit Trial(const SwigluCase& c, GateActivation activation = GateActivation::silu)
      : SwigluInputs<T>(c), activation(activation), out(poisoned<T>(c.M * c.F)), d_gate_up(poisoned<T>(2 * c.M * c.F)) {}
  void forward() {
    swiglu_forward({},
                   {.out = out.data(), .gate_up = gate_up.data(), .M = c.M, .F = c.F, .dtype = dtype_of<T>(), .activation = activation});
  }
  void backward(T* d, T* again = nullptr) {
    swiglu_backward({}, {.d_gate_up = d,
                         .d_out = d_out.data(),
                         .gate_up = gate_up.data(),
                         .M = c.M,
                         .F = c.F,
                         .dtype = dtype_of<T>(),
                         .activation = activation,
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
// rounding of its exponent times its size: that of g in a silu, that of g^2 / 2 and less than g^3 / 2 in a GELU, where it is 0 beyond 14.
TEST(Swiglu, KeepsDigitsOverTheWholeRange) {
  std::vector<float> gates;
  for (float g = -120; g <= 120; g += 0.37f) gates.push_back(g);
  for (float g = -15; g <= 6; g += 0.013f) gates.push_back(g);
  for (float g : {0.0f, -0.0f, 1e-30f, -1e-30f, 1e20f, -1e20f, 3e38f, -3e38f}) gates.push_back(g);
  auto F = static_cast<std::int64_t>(gates.size());
  for (const GateActivation activation : gate_activations) {
    SCOPED_TRACE(name_of_gate(activation));
    Trial<float> run({.M = 1, .F = F}, activation);
    std::copy(gates.begin(), gates.end(), run.gate_up.begin());
    std::fill(run.gate_up.begin() + F, run.gate_up.end(), 1.0f);
    std::fill(run.d_out.begin(), run.d_out.end(), 1.0f);
    run.forward();
    run.backward(run.d_gate_up.data());
    for (std::size_t i = 0; i < gates.size(); ++i) {
      const double g = static_cast<double>(gates[i]);
      const Activated expected = activated(g, activation);
      const double digits = 5e-7 + (activation == GateActivation::silu || std::abs(g) > 15 ? 0 : 6e-8 * (g * g + std::abs(g * g * g) / 8));
      EXPECT_NEAR(static_cast<double>(run.out[i]), expected.value, digits * std::abs(expected.value) + 1e-36) << g;
      EXPECT_NEAR(run.d_gate_up[i + gates.size()], expected.value, digits * std::abs(expected.value) + 1e-36) << g;
      // Near g = -1.28, in a GELU -0.75, the gradient passes through 0 as a difference of terms of size 0.3.
      const double scale = std::abs(expected.slope) + (std::abs(g) < 4 ? 0.3 : 0);
      EXPECT_NEAR(static_cast<double>(run.d_gate_up[i]), expected.slope, digits * scale + 1e-35) << g;
    }
  }
}

TEST(Swiglu, SameBitsForAnyThreadCount) {
  for (const SwigluCase& c : {SwigluCase{77, 1013}, {1200, 48}})
    for (const GateActivation activation : {GateActivation::silu, c.F == 48 ? GateActivation::gelu : GateActivation::gelu_tanh}) {
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
