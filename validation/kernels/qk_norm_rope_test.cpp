#include "qk_norm_rope_cases.hpp"

#include "base/check.hpp"

namespace tessera::kernels::testing::qk_norm_rope_test {
namespace {

using Case = QkNormRopeCase;

/// Those of both backends, and of the host alone: many rows, and a head whose cosines and sines are taken in parts.
std::vector<Case> cases() {
  std::vector<Case> all(std::begin(qk_norm_rope_cases), std::end(qk_norm_rope_cases));
  all.insert(all.end(), {{300, 100, 4, 2, 128},
                         {40, 64, 2, 2, 256},
                         {9, 5, 2, 1, 330},
                         {2100, 700, 2, 1, 48},
                         {9, 5, 2, 1, 330, 0, 290},
                         {9, 5, 2, 1, 330, 1, 270, true},
                         {300, 100, 4, 2, 128, 0, 64}});
  return all;
}
constexpr double eps = 1e-5;
constexpr double float_eps = static_cast<double>(static_cast<float>(eps));

/// Operands in fp64.
struct Operands {
  Case c;
  std::vector<double> x, q_norm, k_norm, table;
  const std::vector<double>& weight(std::int64_t h) const { return h < c.H ? q_norm : k_norm; }
  std::size_t at(std::int64_t m, std::int64_t h) const { return static_cast<std::size_t>(m * c.width() + h * c.D); }
};

double reciprocal_rms(const Operands& o, std::size_t at) {
  double squares = 0;
  for (std::int64_t i = 0; i < o.c.D; ++i) squares += o.x[at + static_cast<std::size_t>(i)] * o.x[at + static_cast<std::size_t>(i)];
  return 1 / std::sqrt(squares / static_cast<double>(o.c.D) + float_eps);
}
/// Turns the values of a head from `at` on by the angles of row m's position; direction -1 turns back.
void rotate(std::vector<double>& v, std::size_t at, const Operands& o, std::int64_t m, double direction) {
  const auto half = static_cast<std::size_t>(o.c.turned() / 2);
  for (std::size_t i = 0; i < half; ++i) {
    const std::size_t pair = 2 * (static_cast<std::size_t>(m % o.c.T) * half + i);
    const std::size_t first = at + (o.c.neighbours ? 2 * i : i), second = first + (o.c.neighbours ? 1 : half);
    const double a = v[first], b = v[second], cos = o.table[pair], sin = direction * o.table[pair + 1];
    v[first] = a * cos - b * sin;
    v[second] = b * cos + a * sin;
  }
}

/// The definition: each query and key head normed, then rotated; value heads as they are.
std::vector<double> reference_forward(const Operands& o) {
  std::vector<double> out = o.x;
  for (std::int64_t m = 0; m < o.c.M; ++m) {
    for (std::int64_t h = 0; h < o.c.heads(); ++h) {
      const std::size_t at = o.at(m, h);
      const double rstd = reciprocal_rms(o, at);
      for (std::size_t i = 0; i < static_cast<std::size_t>(o.c.D); ++i) out[at + i] *= rstd * o.weight(h)[i];
      rotate(out, at, o, m, 1);
    }
  }
  return out;
}

struct Gradients {
  std::vector<double> d_x;  ///< of value heads: d_out
  std::vector<double> d_q_norm, d_k_norm;
  double largest_term = 0;  ///< of d_x: with D = 2 much of it cancels
};
Gradients reference_backward(const Operands& o, const std::vector<double>& d_out) {
  const auto D = static_cast<std::size_t>(o.c.D);
  Gradients g{.d_x = d_out, .d_q_norm = std::vector<double>(D), .d_k_norm = std::vector<double>(D)};
  for (std::int64_t m = 0; m < o.c.M; ++m) {
    for (std::int64_t h = 0; h < o.c.heads(); ++h) {
      const std::size_t at = o.at(m, h);
      rotate(g.d_x, at, o, m, -1);
      const double rstd = reciprocal_rms(o, at);
      double along = 0;
      for (std::size_t i = 0; i < D; ++i) along += g.d_x[at + i] * o.weight(h)[i] * o.x[at + i];
      for (std::size_t i = 0; i < D; ++i) {
        double& d = g.d_x[at + i];
        (h < o.c.H ? g.d_q_norm : g.d_k_norm)[i] += d * o.x[at + i] * rstd;
        g.largest_term = std::max(g.largest_term, std::abs(rstd * d * o.weight(h)[i]));
        d = rstd * (d * o.weight(h)[i] - o.x[at + i] * rstd * rstd * along / static_cast<double>(D));
      }
    }
  }
  return g;
}

template <class T>
struct Trial : QkNormRopeInputs<T> {
  using Inputs = QkNormRopeInputs<T>;
  using Inputs::c, Inputs::x, Inputs::q_norm, Inputs::k_norm, Inputs::d_qkv, Inputs::table, Inputs::d_q_norm, Inputs::d_k_norm;
  std::vector<T> out;
  std::vector<float> rstd;

  explicit Trial(const Case& c) : Inputs(c), out(poisoned<T>(c.M * c.width())), rstd(poisoned<float>(c.M * c.heads())) {}
  /// Weights with the offset that they are taken with.
  Operands operands() const {
    Operands o{c, doubles(x), doubles(q_norm), doubles(k_norm), doubles(table)};
    for (auto* weights : {&o.q_norm, &o.k_norm})
      for (double& one : *weights) one += static_cast<double>(c.offset);
    return o;
  }
  QkNormRopeForward forward_arguments() {
    QkNormRopeForward p = Inputs::forward_arguments();
    p.out = out.data(), p.rstd = rstd.data(), p.eps = static_cast<float>(eps);
    return p;
  }
  QkNormRopeBackward backward_arguments() {
    QkNormRopeBackward p = Inputs::backward_arguments();
    p.d_qkv = d_qkv.data(), p.d_q_norm = d_q_norm.data(), p.d_k_norm = d_k_norm.data(), p.rstd = rstd.data();
    return p;
  }
  void forward() { qk_norm_rope_forward({}, forward_arguments()); }
  void backward() {
    Workspace workspace(qk_norm_rope_backward_workspace_bytes(backward_arguments()));
    qk_norm_rope_backward(workspace.context(), backward_arguments());
    EXPECT_TRUE(workspace.intact());
  }
};

template <class T>
void check_forward() {
  for (const Case& c : cases()) {
    SCOPED_TRACE(::testing::Message() << c);
    Trial<T> run(c);
    const Operands o = run.operands();
    run.forward();
    EXPECT_LT(relative_error(turned_heads(run.out, c), turned_heads(reference_forward(o), c)), tolerance<T>());
    EXPECT_EQ(digest(value_heads(run.out, c)), digest(value_heads(run.x, c)));
    std::vector<double> rstd;
    for (std::int64_t m = 0; m < c.M; ++m)
      for (std::int64_t h = 0; h < c.heads(); ++h) rstd.push_back(reciprocal_rms(o, o.at(m, h)));
    EXPECT_LT(relative_error(run.rstd, rstd), 1e-6);

    // In place, and without statistics.
    QkNormRopeForward p = run.forward_arguments();
    p.out = run.x.data(), p.rstd = nullptr;
    qk_norm_rope_forward({}, p);
    EXPECT_EQ(digest(run.x), digest(run.out));
  }
}
TEST(QkNormRope, MatchesReferenceFp32) { check_forward<float>(); }
TEST(QkNormRope, MatchesReferenceBf16) { check_forward<bf16>(); }
TEST(QkNormRope, MatchesReferenceFp16) { check_forward<f16>(); }

template <class T>
void check_backward() {
  for (const Case& c : cases()) {
    SCOPED_TRACE(::testing::Message() << c);
    Trial<T> run(c);
    run.forward();
    Gradients expected = reference_backward(run.operands(), doubles(run.d_qkv));
    for (std::size_t i = 0; i < run.d_q_norm.size(); ++i) {
      expected.d_q_norm[i] += static_cast<double>(run.d_q_norm[i]);
      expected.d_k_norm[i] += static_cast<double>(run.d_k_norm[i]);
    }
    run.poison_value_heads();
    run.backward();
    EXPECT_LT(relative_error(turned_heads(run.d_qkv, c), turned_heads(expected.d_x, c), expected.largest_term), tolerance<T>());
    EXPECT_EQ(digest(value_heads(run.d_qkv, c)), digest(poisoned<T>(c.M * c.G * c.D)));
    EXPECT_LT(relative_error(run.d_q_norm, expected.d_q_norm), 2e-6);
    EXPECT_LT(relative_error(run.d_k_norm, expected.d_k_norm), 2e-6);
  }
}
TEST(QkNormRope, GradientMatchesReferenceFp32) { check_backward<float>(); }
TEST(QkNormRope, GradientMatchesReferenceBf16) { check_backward<bf16>(); }
TEST(QkNormRope, GradientMatchesReferenceFp16) { check_backward<f16>(); }

// Positions restart with documents: the bits, and so those of the weights' gradients, are those of a table that has a row for each token.
template <class T>
void check_documents() {
  std::vector<Case> all(std::begin(qk_norm_rope_document_cases), std::end(qk_norm_rope_document_cases));
  all.insert(all.end(), {{300, 100, 4, 2, 128}, {10, 5, 2, 1, 330}, {10, 5, 2, 1, 330, 0, 270, true}});
  for (const Case& c : all) {
    SCOPED_TRACE(::testing::Message() << c);
    Trial<T> run(c), by_token(c);
    const auto starts = run.starts();
    by_token.table = rotations_of(run.table, starts, c.T, c.turned()), by_token.c.T = c.M;
    QkNormRopeForward forward = run.forward_arguments();
    forward.document_starts = starts.data();
    qk_norm_rope_forward({}, forward);
    QkNormRopeBackward backward = run.backward_arguments();
    backward.document_starts = starts.data();
    Workspace workspace(qk_norm_rope_backward_workspace_bytes(backward));
    qk_norm_rope_backward(workspace.context(), backward);
    by_token.forward(), by_token.backward();
    EXPECT_EQ(digest(run.out, run.rstd, run.d_qkv, run.d_q_norm, run.d_k_norm),
              digest(by_token.out, by_token.rstd, by_token.d_qkv, by_token.d_q_norm, by_token.d_k_norm));
  }
}
TEST(QkNormRope, PositionsRestartWithDocuments) { check_documents<float>(), check_documents<bf16>(), check_documents<f16>(); }

TEST(QkNormRope, ReferenceGradientMatchesFiniteDifferences) {
  for (const Case& c : {Case{5, 3, 2, 1, 10}, Case{5, 3, 2, 1, 10, 0, 6}, Case{5, 3, 2, 1, 10, 0, 6, true}}) {
    Operands o = Trial<float>(c).operands();
    const std::vector<double> d_out = doubles(random_values<float>(c.M * c.width(), 9));
    const Gradients g = reference_backward(o, d_out);
    const auto check = [&](std::vector<double> Operands::*operand, const std::vector<double>& gradient) {
      const auto by_differences = finite_differences(o.*operand, [&](const std::vector<double>& v) {
        Operands moved = o;
        moved.*operand = v;
        return dot(d_out, reference_forward(moved));
      });
      ASSERT_EQ(by_differences.size(), gradient.size());
      for (std::size_t i = 0; i < gradient.size(); ++i) EXPECT_NEAR(gradient[i], by_differences[i], 1e-8) << i;
    };
    check(&Operands::x, g.d_x), check(&Operands::q_norm, g.d_q_norm), check(&Operands::k_norm, g.d_k_norm);
  }
}

// A result in bf16 is the exact one, rounded once: only next to ties may fp32 choose the other neighbour. Two roundings would differ often.
TEST(QkNormRope, RoundsOnceInBf16) {
  for (const Case& c : {Case{60, 60, 4, 2, 64}, Case{60, 60, 4, 2, 64, 0, 32}, Case{60, 60, 4, 2, 64, 0, 32, true}}) {
    Trial<bf16> run(c);
    const Operands o = run.operands();
    const std::vector<double> out = reference_forward(o), d_x = reference_backward(o, doubles(run.d_qkv)).d_x;
    run.forward(), run.backward();
    const auto share_of_others = [](const std::vector<bf16>& values, const std::vector<double>& exact) {
      std::size_t others = 0;
      for (std::size_t i = 0; i < values.size(); ++i) others += values[i] != bf16(static_cast<float>(exact[i]));
      return static_cast<double>(others) / static_cast<double>(values.size());
    };
    EXPECT_LT(share_of_others(run.out, out), 1e-3) << c;
    EXPECT_LT(share_of_others(run.d_qkv, d_x), 1e-3) << c;
  }
}

TEST(QkNormRope, SameBitsForAnyThreadCount) {
  for (const Case& c :
       {Case{1500, 500, 3, 1, 48}, Case{77, 20, 2, 2, 30}, Case{700, 500, 3, 1, 48, 0, 10}, Case{77, 20, 2, 2, 30, 0, 10, true}}) {
    expect_same_bits([c] {
      Trial<float> run(c);
      Trial<bf16> half(c);
      run.forward(), half.forward();
      run.backward(), half.backward();
      return digest(run.out, run.rstd, run.d_qkv, run.d_q_norm, run.d_k_norm, half.out, half.d_qkv, half.d_q_norm, half.d_k_norm);
    });
  }
}

// Outputs beyond the caches are written with streaming stores: the bits are the same.
template <class T>
void check_large_output(std::int64_t M, std::int64_t rotated = 0) {
  Trial<T> small({8, 8, 4, 2, 64, 0, rotated}), large({M, 8, 4, 2, 64, 0, rotated});
  const std::int64_t row = small.c.width(), rows = 8 * row;
  auto memory = poisoned<T>(M * row + 32);
  T* out = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64 / sizeof(T);
  for (std::int64_t m = 0; m < M; ++m) std::copy_n(small.x.data() + m % 8 * row, row, large.x.data() + m * row);
  small.forward();
  QkNormRopeForward p = large.forward_arguments();
  p.out = out;
  qk_norm_rope_forward({}, p);
  for (std::int64_t m = 0; m < M; m += 8)
    ASSERT_EQ(std::memcmp(out + m * row, small.out.data(), static_cast<std::size_t>(rows) * sizeof(T)), 0) << m;
}
TEST(QkNormRope, LargeOutputsHaveTheBitsOfSmallOnes) {
  check_large_output<float>(16800);
  check_large_output<bf16>(33600);
  check_large_output<bf16>(33600, 32);
}

TEST(QkNormRope, RefusesWhatItCannotDo) {
  Trial<float> run({77, 7, 2, 1, 48});
  EXPECT_THROW(qk_norm_rope_backward({}, run.backward_arguments()), Error) << "no workspace";
  QkNormRopeForward odd = run.forward_arguments();
  odd.D = 47;
  EXPECT_THROW(qk_norm_rope_forward({}, odd), Error);
  for (const std::int64_t rotated : {-2, 3, 50}) {
    QkNormRopeForward part = run.forward_arguments();
    part.rotated = rotated;
    EXPECT_THROW(qk_norm_rope_forward({}, part), Error) << rotated;
  }
}

}  // namespace
}  // namespace tessera::kernels::testing::qk_norm_rope_test
