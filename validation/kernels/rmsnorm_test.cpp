#include "rmsnorm_cases.hpp"

#include "base/check.hpp"

namespace tessera::kernels::testing::rmsnorm_test {
namespace {

using Case = RmsnormCase;

/// Those of both backends, and of the host alone: many rows.
std::vector<Case> cases() {
  std::vector<Case> all(std::begin(rmsnorm_cases), std::end(rmsnorm_cases));
  all.insert(all.end(), {{130, 1013}, {2100, 80}});
  return all;
}
constexpr double eps = 1e-5;

/// The definition, dense, in fp64.
std::vector<double> reference_forward(const std::vector<double>& x, const std::vector<double>& weight) {
  std::size_t C = weight.size();
  std::vector<double> out(x.size());
  for (std::size_t r = 0; r < x.size() / C; ++r) {
    double squares = 0;
    for (std::size_t i = 0; i < C; ++i) squares += x[r * C + i] * x[r * C + i];
    double rstd = 1 / std::sqrt(squares / static_cast<double>(C) + static_cast<double>(static_cast<float>(eps)));
    for (std::size_t i = 0; i < C; ++i) out[r * C + i] = x[r * C + i] * rstd * weight[i];
  }
  return out;
}

struct Gradients {
  std::vector<double> d_x, d_weight;
  double largest_term = 0;  ///< of d_x: with C = 1 nearly all of it cancels
};
Gradients reference_backward(const std::vector<double>& d_out, const std::vector<double>& x, const std::vector<double>& weight) {
  std::size_t C = weight.size();
  Gradients g{.d_x = std::vector<double>(x.size()), .d_weight = std::vector<double>(C)};
  for (std::size_t r = 0; r < x.size() / C; ++r) {
    double squares = 0, along = 0;
    for (std::size_t i = 0; i < C; ++i) {
      squares += x[r * C + i] * x[r * C + i];
      along += d_out[r * C + i] * weight[i] * x[r * C + i];
    }
    double rstd = 1 / std::sqrt(squares / static_cast<double>(C) + static_cast<double>(static_cast<float>(eps)));
    for (std::size_t i = 0; i < C; ++i) {
      std::size_t at = r * C + i;
      g.d_x[at] = rstd * (d_out[at] * weight[i] - x[at] * rstd * rstd * along / static_cast<double>(C));
      g.largest_term = std::max(g.largest_term, std::abs(rstd * d_out[at] * weight[i]));
      g.d_weight[i] += d_out[at] * x[at] * rstd;
    }
  }
  return g;
}

template <class T>
struct Trial : RmsnormInputs<T> {
  using Inputs = RmsnormInputs<T>;
  using Inputs::c, Inputs::x, Inputs::weight, Inputs::d_out, Inputs::residual, Inputs::d_weight;
  std::vector<T> out, d_x;
  std::vector<float> rstd;

  explicit Trial(const Case& c) : Inputs(c), out(poisoned<T>(c.elements())), d_x(out), rstd(poisoned<float>(c.rows)) {}
  void forward() {
    RmsnormForward p = this->forward_arguments();
    p.out = out.data(), p.rstd = rstd.data(), p.eps = static_cast<float>(eps);
    rmsnorm_forward({}, p);
  }
  RmsnormBackward arguments() {
    RmsnormBackward p = this->backward_arguments(rstd);
    p.d_x = d_x.data(), p.d_weight = d_weight.data();
    return p;
  }
  void backward(const RmsnormBackward& p) {
    Workspace workspace(rmsnorm_backward_workspace_bytes(p));
    rmsnorm_backward(workspace.context(), p);
  }
};

template <class T>
void check_against_reference() {
  for (const Case& c : cases()) {
    SCOPED_TRACE(::testing::Message() << c);
    Trial<T> run(c);
    run.forward();
    EXPECT_LT(relative_error(run.out, reference_forward(doubles(run.x), doubles(run.weight))), tolerance<T>());

    Gradients expected = reference_backward(doubles(run.d_out), doubles(run.x), doubles(run.weight));
    std::vector<float> before = run.d_weight;
    for (std::size_t i = 0; i < before.size(); ++i) expected.d_weight[i] += static_cast<double>(before[i]);
    RmsnormBackward p = run.arguments();
    p.d_residual = nullptr;
    run.backward(p);
    EXPECT_LT(relative_error(run.d_x, expected.d_x, expected.largest_term), tolerance<T>());
    EXPECT_LT(relative_error(run.d_weight, expected.d_weight), 2e-6);

    // With the residual joined, into fresh memory and over each operand that may share it.
    for (std::size_t i = 0; i < run.residual.size(); ++i) expected.d_x[i] += static_cast<double>(static_cast<float>(run.residual[i]));
    run.d_x = poisoned<T>(c.rows * c.C);
    run.d_weight = before;
    run.backward(run.arguments());
    EXPECT_LT(relative_error(run.d_x, expected.d_x, expected.largest_term), tolerance<T>());
    EXPECT_LT(relative_error(run.d_weight, expected.d_weight), 2e-6);
    for (auto shared : {&Trial<T>::residual, &Trial<T>::d_out}) {
      Trial<T> in_place(c);
      in_place.forward();
      p = in_place.arguments();
      p.d_x = (in_place.*shared).data();
      in_place.backward(p);
      EXPECT_EQ(digest(in_place.*shared, in_place.d_weight).hex(), digest(run.d_x, run.d_weight).hex());
    }
  }
}
TEST(Rmsnorm, MatchesReferenceFp32) { check_against_reference<float>(); }
TEST(Rmsnorm, MatchesReferenceBf16) { check_against_reference<bf16>(); }
TEST(Rmsnorm, MatchesReferenceFp16) { check_against_reference<f16>(); }

// Scaled by 1.5 + weight, and with a residual in the forward pass: into fresh memory and over the residual.
template <class T>
void check_offset_and_residual() {
  constexpr float offset = 1.5f;
  for (const Case& c : {Case{77, 1}, Case{77, 48}, Case{9, 1013}, Case{33, 2048}, Case{130, 80}}) {
    SCOPED_TRACE(::testing::Message() << c);
    Trial<T> run(c);
    std::vector<double> factor = doubles(run.weight);
    for (double& f : factor) f += static_cast<double>(offset);
    const auto normed = reference_forward(doubles(run.x), factor), plain = reference_forward(doubles(run.x), doubles(run.weight));
    const auto check = [&](float with_offset, bool residual) {
      run.out = poisoned<T>(c.elements());
      RmsnormForward p = run.forward_arguments();
      p.out = run.out.data(), p.rstd = run.rstd.data(), p.eps = static_cast<float>(eps), p.offset = with_offset;
      p.residual = residual ? run.residual.data() : nullptr;
      rmsnorm_forward({}, p);
      std::vector<double> expected = with_offset != 0 ? normed : plain;
      const auto joined = doubles(run.residual);
      for (std::size_t i = 0; residual && i < expected.size(); ++i) expected[i] += joined[i];
      EXPECT_LT(relative_error(run.out, expected), tolerance<T>());
      if (!residual) return;
      std::vector<T> in_place = run.residual;
      p.out = in_place.data(), p.residual = in_place.data(), p.rstd = nullptr;
      rmsnorm_forward({}, p);
      EXPECT_EQ(digest(in_place).hex(), digest(run.out).hex());
    };
    check(0, true), check(offset, false), check(offset, true);

    Gradients expected = reference_backward(doubles(run.d_out), doubles(run.x), factor);
    const std::vector<double> residual = doubles(run.residual), before = doubles(run.d_weight);
    for (std::size_t i = 0; i < before.size(); ++i) expected.d_weight[i] += before[i];
    const std::vector<float> d_weight = run.d_weight;
    for (const bool joins : {false, true}) {
      RmsnormBackward p = run.arguments();
      p.offset = offset;
      if (!joins) p.d_residual = nullptr;
      run.d_weight = d_weight;
      run.backward(p);
      std::vector<double> d_x = expected.d_x;
      for (std::size_t i = 0; joins && i < d_x.size(); ++i) d_x[i] += residual[i];
      EXPECT_LT(relative_error(run.d_x, d_x, expected.largest_term), tolerance<T>());
      EXPECT_LT(relative_error(run.d_weight, expected.d_weight), 2e-6);
    }
  }
}
TEST(Rmsnorm, TakesAnOffsetAndAResidual) {
  check_offset_and_residual<float>(), check_offset_and_residual<bf16>(), check_offset_and_residual<f16>();
}

// What the norm makes is not rounded before the residual joins: only next to ties may fp32 choose the other neighbour.
TEST(Rmsnorm, RoundsOnceWithAResidual) {
  Trial<bf16> run({.rows = 60, .C = 256});
  RmsnormForward p = run.forward_arguments();
  p.out = run.out.data(), p.eps = static_cast<float>(eps), p.residual = run.residual.data();
  rmsnorm_forward({}, p);
  const auto normed = reference_forward(doubles(run.x), doubles(run.weight)), residual = doubles(run.residual);
  std::size_t others = 0;
  for (std::size_t i = 0; i < normed.size(); ++i) others += run.out[i] != bf16(static_cast<float>(normed[i] + residual[i]));
  EXPECT_LT(static_cast<double>(others), 2e-3 * static_cast<double>(normed.size()));
}

TEST(Rmsnorm, ReferenceGradientMatchesFiniteDifferences) {
  std::vector<double> x = doubles(random_values<float>(3 * 19, 1)), weight = doubles(random_values<float>(19, 2));
  std::vector<double> d_out = doubles(random_values<float>(3 * 19, 3));
  Gradients g = reference_backward(d_out, x, weight);
  auto by_x = finite_differences(x, [&](const std::vector<double>& v) { return dot(d_out, reference_forward(v, weight)); });
  auto by_weight = finite_differences(weight, [&](const std::vector<double>& v) { return dot(d_out, reference_forward(x, v)); });
  for (std::size_t i = 0; i < by_x.size(); ++i) EXPECT_NEAR(g.d_x[i], by_x[i], 1e-8);
  for (std::size_t i = 0; i < by_weight.size(); ++i) EXPECT_NEAR(g.d_weight[i], by_weight[i], 1e-8);
}

TEST(Rmsnorm, SameBitsForAnyThreadCount) {
  for (Case c : {Case{77, 1013}, Case{4099, 48}}) {
    expect_same_bits([c] {
      Trial<float> run(c);
      Trial<bf16> half(c);
      run.forward(), half.forward();
      run.backward(run.arguments()), half.backward(half.arguments());
      const Hash128 plain = digest(run.out, run.rstd, run.d_x, run.d_weight, half.out, half.d_x, half.d_weight);
      RmsnormForward p = run.forward_arguments();
      p.out = run.out.data(), p.offset = 1, p.residual = run.residual.data();
      rmsnorm_forward({}, p);
      RmsnormBackward b = half.arguments();
      b.offset = 1;
      half.backward(b);
      return hash_text(plain.hex() + digest(run.out, half.d_x, half.d_weight).hex());
    });
  }
}

// Outputs beyond the caches are written with streaming stores: the bits are the same.
TEST(Rmsnorm, LargeOutputsHaveTheBitsOfSmallOnes) {
  constexpr std::int64_t rows = 8200, C = 1024;
  auto out_memory = poisoned<float>(rows * C + 16), d_x_memory = out_memory;
  auto aligned = [](std::vector<float>& v) { return v.data() + (64 - reinterpret_cast<std::uintptr_t>(v.data()) % 64) % 64 / 4; };
  float *out = aligned(out_memory), *d_x = aligned(d_x_memory);
  Trial<float> small({.rows = 8, .C = C});
  auto x = poisoned<float>(rows * C), d_out = x, rstd = poisoned<float>(rows);
  for (std::int64_t r = 0; r < rows; ++r) {
    std::copy_n(small.x.data() + r % 8 * C, C, x.data() + r * C);
    std::copy_n(small.d_out.data() + r % 8 * C, C, d_out.data() + r * C);
  }
  small.forward();
  rmsnorm_forward({}, {.out = out, .rstd = rstd.data(), .x = x.data(), .weight = small.weight.data(), .rows = rows, .C = C});
  RmsnormBackward p = small.arguments();
  p.d_residual = nullptr;
  small.backward(p);
  p.d_x = d_x, p.d_out = d_out.data(), p.x = x.data(), p.rstd = rstd.data(), p.rows = rows;
  small.backward(p);
  const auto expect_rows_of = [&](const std::vector<float>& expected) {
    for (std::int64_t r = 0; r < rows; ++r) ASSERT_EQ(std::memcmp(out + r * C, expected.data() + r % 8 * C, C * sizeof(float)), 0) << r;
  };
  expect_rows_of(small.out);
  for (std::int64_t r = 0; r < rows; ++r) ASSERT_EQ(std::memcmp(d_x + r * C, small.d_x.data() + r % 8 * C, C * sizeof(float)), 0) << r;

  // Scaled by 1 + weight, and joined by a residual.
  RmsnormForward forward = small.forward_arguments();
  forward.out = small.out.data(), forward.residual = small.d_out.data(), forward.offset = 1;
  rmsnorm_forward({}, forward);
  forward.out = out, forward.residual = d_out.data(), forward.x = x.data(), forward.rows = rows;
  rmsnorm_forward({}, forward);
  expect_rows_of(small.out);
}

TEST(Rmsnorm, RefusesAShortWorkspace) {
  Trial<float> run({.rows = 77, .C = 48});
  EXPECT_THROW(rmsnorm_backward({}, run.arguments()), Error);
}

}  // namespace
}  // namespace tessera::kernels::testing::rmsnorm_test
