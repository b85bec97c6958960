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

/// What a norm scales by.
template <class T>
std::vector<double> factors(const RmsnormInputs<T>& inputs) {
  std::vector<double> all = doubles(inputs.weight);
  for (double& one : all) one += static_cast<double>(inputs.c.offset);
  return all;
}

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
  void forward(bool with_residual = false, bool over = false) {
    RmsnormForward p = this->forward_arguments();
    p.out = out.data(), p.rstd = rstd.data(), p.eps = static_cast<float>(eps);
    if (with_residual) p.residual = over ? out.data() : residual.data();
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

/// Onto a residual, into fresh memory and over it.
template <class T>
void check_residual(const Trial<T>& run, std::vector<double> normed) {
  Trial<T> onto = run;
  onto.out = poisoned<T>(run.c.elements());
  onto.forward(true);
  for (std::size_t i = 0; i < normed.size(); ++i) normed[i] += static_cast<double>(static_cast<float>(run.residual[i]));
  EXPECT_LT(relative_error(onto.out, normed), tolerance<T>());
  Trial<T> over = run;
  over.out = over.residual;
  over.forward(true, true);
  EXPECT_EQ(digest(over.out, over.rstd).hex(), digest(onto.out, onto.rstd).hex());
}

template <class T>
void check_against_reference() {
  for (const Case& c : cases()) {
    SCOPED_TRACE(::testing::Message() << c);
    Trial<T> run(c);
    run.forward();
    std::vector<double> normed = reference_forward(doubles(run.x), factors(run));
    EXPECT_LT(relative_error(run.out, normed), tolerance<T>());
    check_residual(run, normed);

    Gradients expected = reference_backward(doubles(run.d_out), doubles(run.x), factors(run));
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
  for (Case c : {Case{77, 1013}, Case{4099, 48}, Case{77, 1013, 1}}) {
    expect_same_bits([c] {
      Trial<float> run(c);
      Trial<bf16> half(c);
      run.forward(c.offset != 0), half.forward(c.offset != 0);
      run.backward(run.arguments()), half.backward(half.arguments());
      return digest(run.out, run.rstd, run.d_x, run.d_weight, half.out, half.d_x, half.d_weight);
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
  for (std::int64_t r = 0; r < rows; ++r) {
    ASSERT_EQ(std::memcmp(out + r * C, small.out.data() + r % 8 * C, C * sizeof(float)), 0) << r;
    ASSERT_EQ(std::memcmp(d_x + r * C, small.d_x.data() + r % 8 * C, C * sizeof(float)), 0) << r;
  }
}

TEST(Rmsnorm, RefusesAShortWorkspace) {
  Trial<float> run({.rows = 77, .C = 48});
  EXPECT_THROW(rmsnorm_backward({}, run.arguments()), Error);
}

}  // namespace
}  // namespace tessera::kernels::testing::rmsnorm_test
