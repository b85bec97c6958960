#include "swiglu_cases.hpp"

namespace tessera::kernels::testing::swiglu_test {
namespace {

std::vector<double> reference_forward(const std::vector<double>& gate_up, std::size_t F) {
  std::vector<double> out(gate_up.size() / 2);
  for (std::size_t i = 0; i < out.size(); ++i) {
    double g = gate_up[i / F * 2 * F + i % F], u = gate_up[i / F * 2 * F + F + i % F];
    out[i] = g / (1 + std::exp(-g)) * u;
  }
  return out;
}

std::vector<double> reference_backward(const std::vector<double>& d_out, const std::vector<double>& gate_up, std::size_t F) {
  std::vector<double> d(gate_up.size());
  for (std::size_t i = 0; i < d_out.size(); ++i) {
    std::size_t gate = i / F * 2 * F + i % F, up = gate + F;
    double g = gate_up[gate], s = 1 / (1 + std::exp(-g)), complement = 1 / (1 + std::exp(g));
    d[gate] = d_out[i] * gate_up[up] * s * (1 + g * complement);
    d[up] = d_out[i] * g * s;
  }
  return d;
}

template <class T>
struct Trial : SwigluInputs<T> {
  using SwigluInputs<T>::c, SwigluInputs<T>::gate_up, SwigluInputs<T>::d_out;
  std::vector<T> out, d_gate_up;
  explicit Trial(const SwigluCase& c) : SwigluInputs<T>(c), out(poisoned<T>(c.M * c.F)), d_gate_up(poisoned<T>(2 * c.M * c.F)) {}
  void forward() { swiglu_forward({}, {.out = out.data(), .gate_up = gate_up.data(), .M = c.M, .F = c.F, .dtype = dtype_of<T>()}); }
  void backward(T* d, T* again = nullptr) {
    swiglu_backward(
        {}, {.d_gate_up = d, .d_out = d_out.data(), .gate_up = gate_up.data(), .M = c.M, .F = c.F, .dtype = dtype_of<T>(), .out = again});
  }
};

template <class T>
void check_against_reference() {
  for (const SwigluCase& c : swiglu_cases) {
    SCOPED_TRACE(::testing::Message() << c);
    Trial<T> run(c);
    auto F = static_cast<std::size_t>(c.F);
    run.forward();
    EXPECT_LT(relative_error(run.out, reference_forward(doubles(run.gate_up), F)), tolerance<T>());
    run.backward(run.d_gate_up.data());
    EXPECT_LT(relative_error(run.d_gate_up, reference_backward(doubles(run.d_out), doubles(run.gate_up), F)), tolerance<T>());
    std::vector<T> d = run.d_gate_up;
    run.backward(d.data(), run.d_out.data());
    EXPECT_EQ(digest(d).hex(), digest(run.d_gate_up).hex()) << "beside forward's output";
    EXPECT_EQ(digest(run.d_out).hex(), digest(run.out).hex()) << "which is forward's";
    run.d_out = SwigluInputs<T>(c).d_out;
    run.backward(run.gate_up.data());
    EXPECT_EQ(digest(run.gate_up).hex(), digest(run.d_gate_up).hex()) << "in place";
  }
}
TEST(Swiglu, MatchesReferenceFp32) { check_against_reference<float>(); }
TEST(Swiglu, MatchesReferenceBf16) { check_against_reference<bf16>(); }
TEST(Swiglu, MatchesReferenceFp16) { check_against_reference<f16>(); }

TEST(Swiglu, ReferenceGradientMatchesFiniteDifferences) {
  std::vector<double> gate_up = doubles(random_values<float>(2 * 3 * 7, 1, 2.0f)), d_out = doubles(random_values<float>(3 * 7, 2));
  auto expected = finite_differences(gate_up, [&](const std::vector<double>& v) { return dot(d_out, reference_forward(v, 7)); });
  auto gradient = reference_backward(d_out, gate_up, 7);
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(gradient[i], expected[i], 1e-8);
}

// Each element against fp64 at its own size: large and tiny gates keep their digits, and nothing becomes NaN.
TEST(Swiglu, KeepsDigitsOverTheWholeRange) {
  std::vector<float> gates;
  for (float g = -120; g <= 120; g += 0.37f) gates.push_back(g);
  for (float g : {0.0f, -0.0f, 1e-30f, -1e-30f, 1e20f, -1e20f}) gates.push_back(g);
  auto F = static_cast<std::int64_t>(gates.size());
  Trial<float> run({.M = 1, .F = F});
  std::copy(gates.begin(), gates.end(), run.gate_up.begin());
  std::fill(run.gate_up.begin() + F, run.gate_up.end(), 1.0f);
  std::fill(run.d_out.begin(), run.d_out.end(), 1.0f);
  run.forward();
  run.backward(run.d_gate_up.data());
  auto out = reference_forward(doubles(run.gate_up), gates.size());
  auto gradient = reference_backward(doubles(run.d_out), doubles(run.gate_up), gates.size());
  for (std::size_t i = 0; i < gates.size(); ++i) {
    EXPECT_NEAR(static_cast<double>(run.out[i]), out[i], 5e-7 * std::abs(out[i]) + 1e-36) << gates[i];
    // Near g = -1.28 the gradient passes through 0 as a difference of terms of size 0.3.
    double scale = std::abs(gradient[i]) + (std::abs(gates[i]) < 4 ? 0.3 : 0);
    EXPECT_NEAR(static_cast<double>(run.d_gate_up[i]), gradient[i], 5e-7 * scale + 1e-36) << gates[i];
  }
}

TEST(Swiglu, SameBitsForAnyThreadCount) {
  for (const SwigluCase& c : {SwigluCase{77, 1013}, {1200, 48}}) {
    expect_same_bits([c] {
      Trial<float> run(c);
      Trial<bf16> half(c);
      run.forward(), half.forward();
      run.backward(run.d_gate_up.data()), half.backward(half.d_gate_up.data());
      return digest(run.out, run.d_gate_up, half.out, half.d_gate_up);
    });
  }
}

}  // namespace
}  // namespace tessera::kernels::testing::swiglu_test
