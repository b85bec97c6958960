#include "grouped_gemm_cases.hpp"

namespace tessera::kernels::testing::grouped_gemm_test {
namespace {

using Case = GroupedGemmCase;

/// Those of both backends, and of the host alone: more than a group of rows, pieces of columns and depth.
std::vector<Case> cases() {
  std::vector<Case> all = grouped_gemm_cases(), large = large_grouped_gemm_cases();
  all.insert(all.end(), large.begin(), large.end());
  all.insert(all.end(), {{{300, 20}, 0, 400, 24}, {{16, 31, 2}, 3, 50, 1030}});
  return all;
}

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

template <class T>
struct Trial : GroupedGemmInputs<T> {
  using Inputs = GroupedGemmInputs<T>;
  using Inputs::c, Inputs::offsets, Inputs::x, Inputs::w, Inputs::d_y;
  std::vector<T> y, d_x;
  std::vector<float> d_w;
  explicit Trial(const Case& c)
      : Inputs(c), y(poisoned<T>(c.rows() * c.N)), d_x(poisoned<T>(c.rows() * c.K)), d_w(poisoned<float>(c.E() * c.N * c.K)) {}
  GroupedGemm forward_shape() {
    return {.c = y.data(),
            .a = x.data(),
            .b = w.data(),
            .offsets = offsets.data(),
            .rows = c.rows(),
            .E = c.E(),
            .N = c.N,
            .K = c.K,
            .b_transposed = true,
            .dtype = dtype_of<T>()};
  }
  void forward() { run(forward_shape()); }
  void input_gradient() { input_gradient(d_y.data(), 0); }
  void input_gradient(const T* from, std::int64_t stride) {
    run({.c = d_x.data(),
         .a = from,
         .b = w.data(),
         .offsets = offsets.data(),
         .rows = c.rows(),
         .E = c.E(),
         .N = c.K,
         .K = c.N,
         .a_stride = stride,
         .dtype = dtype_of<T>()});
  }
  void weight_gradient(bool accumulate) { weight_gradient(accumulate, d_y.data(), 0); }
  void weight_gradient(bool accumulate, const T* from, std::int64_t stride) {
    const GroupedWeightGradient p{.d_w = d_w.data(),
                                  .d_y = from,
                                  .x = x.data(),
                                  .offsets = offsets.data(),
                                  .rows = c.rows(),
                                  .E = c.E(),
                                  .N = c.N,
                                  .K = c.K,
                                  .d_y_stride = stride,
                                  .accumulate = accumulate,
                                  .dtype = dtype_of<T>()};
    Workspace workspace(grouped_weight_gradient_workspace_bytes(p));
    grouped_weight_gradient(workspace.context(), p);
    EXPECT_TRUE(workspace.intact());
  }
  std::vector<double> expected_y() const {
    return for_each_row(c.N, [&](std::int64_t e, std::int64_t r, std::int64_t n) {
      double sum = 0;
      for (std::int64_t k = 0; k < c.K; ++k) sum += value(x, r * c.K + k) * value(w, (e * c.N + n) * c.K + k);
      return sum;
    });
  }
  std::vector<double> expected_d_x() const {
    return for_each_row(c.K, [&](std::int64_t e, std::int64_t r, std::int64_t k) {
      double sum = 0;
      for (std::int64_t n = 0; n < c.N; ++n) sum += value(d_y, r * c.N + n) * value(w, (e * c.N + n) * c.K + k);
      return sum;
    });
  }
  std::vector<double> expected_d_w() const {
    std::vector<double> d(d_w.size(), 0.0);
    for (std::int64_t e = 0; e < c.E(); ++e)
      for (std::int64_t r = offsets[size(e)]; r < offsets[size(e + 1)]; ++r)
        for (std::int64_t n = 0; n < c.N; ++n)
          for (std::int64_t k = 0; k < c.K; ++k) d[size((e * c.N + n) * c.K + k)] += value(d_y, r * c.N + n) * value(x, r * c.K + k);
    return d;
  }

  static void run(const GroupedGemm& p) {
    Workspace workspace(grouped_gemm_workspace_bytes(p));
    grouped_gemm(workspace.context(), p);
    EXPECT_TRUE(workspace.intact());
  }

 private:
  static double value(const std::vector<T>& v, std::int64_t i) { return static_cast<double>(static_cast<float>(v[size(i)])); }
  template <class F>
  std::vector<double> for_each_row(std::int64_t columns, F f) const {
    std::vector<double> out(size(c.rows() * columns), 0.0);
    for (std::int64_t e = 0; e < c.E(); ++e)
      for (std::int64_t r = offsets[size(e)]; r < offsets[size(e + 1)]; ++r)
        for (std::int64_t i = 0; i < columns; ++i) out[size(r * columns + i)] = f(e, r, i);
    return out;
  }
};

template <class T>
void check_against_reference() {
  for (const Case& c : cases()) {
    SCOPED_TRACE(::testing::Message() << c);
    Trial<T> run(c);
    run.forward(), run.input_gradient(), run.weight_gradient(false);
    EXPECT_LT(relative_error(run.y, run.expected_y()), tolerance<T>());
    EXPECT_LT(relative_error(run.d_x, run.expected_d_x()), tolerance<T>());
    EXPECT_LT(relative_error(run.d_w, run.expected_d_w()), 2e-6);
    auto twice = run.expected_d_w();
    for (double& x : twice) x *= 2;
    run.weight_gradient(true);
    EXPECT_LT(relative_error(run.d_w, twice), 4e-6);
  }
}
TEST(GroupedGemm, MatchesReferenceFp32) { check_against_reference<float>(); }
TEST(GroupedGemm, MatchesReferenceBf16) { check_against_reference<bf16>(); }
TEST(GroupedGemm, MatchesReferenceFp16) { check_against_reference<f16>(); }

/// Results and operands that are columns of wider matrices, scaled, and added to what is there: what products of adapters ask for.
template <class T>
void check_columns() {
  constexpr std::int64_t first = 3, more = 8;
  for (const Case& c : cases()) {
    SCOPED_TRACE(::testing::Message() << c);
    Trial<T> run(c);
    run.input_gradient(), run.weight_gradient(false);
    const std::int64_t width = c.N + more;
    const auto column = [&](std::int64_t i) { return i / c.N * width + first + i % c.N; };
    for (const auto& [accumulate, one_by_one] : {std::pair(false, false), std::pair(true, false), std::pair(true, true)}) {
      const auto before = random_values<T>(c.rows() * width, 4);
      auto wide = before;
      GroupedGemm p = run.forward_shape();
      p.c = wide.data() + first, p.c_stride = width, p.scale = 0.5f, p.accumulate = accumulate, p.one_by_one = one_by_one;
      Trial<T>::run(p);
      std::vector<double> expected = doubles(before);
      const std::vector<double> y = run.expected_y();
      for (std::int64_t i = 0; i < c.rows() * c.N; ++i)
        expected[size(column(i))] = (accumulate ? expected[size(column(i))] : 0) + 0.5 * y[size(i)];
      EXPECT_LT(relative_error(wide, expected), tolerance<T>());
      for (std::int64_t row = 0; row < c.rows(); ++row)
        for (const std::int64_t beside : {row * width, row * width + first - 1, row * width + first + c.N, (row + 1) * width - 1})
          EXPECT_EQ(static_cast<float>(wide[size(beside)]), static_cast<float>(before[size(beside)])) << "beside its columns";
    }
    auto wide = random_values<T>(c.rows() * width, 5);
    for (std::int64_t i = 0; i < c.rows() * c.N; ++i) wide[size(column(i))] = run.d_y[size(i)];
    Trial<T> strided(c);
    strided.input_gradient(wide.data() + first, width), strided.weight_gradient(false, wide.data() + first, width);
    EXPECT_EQ(digest(strided.d_x, strided.d_w), digest(run.d_x, run.d_w)) << "where rows lie changes no bit";
  }
}
TEST(GroupedGemm, ColumnsOfWiderMatricesFp32) { check_columns<float>(); }
TEST(GroupedGemm, ColumnsOfWiderMatricesBf16) { check_columns<bf16>(); }
TEST(GroupedGemm, ColumnsOfWiderMatricesFp16) { check_columns<f16>(); }

// A product is linear in each operand: finite differences are exact up to rounding.
TEST(GroupedGemm, GradientsAreThoseOfTheForwardPass) {
  Trial<float> run({{2, 0, 3}, 1, 4, 5});
  run.input_gradient(), run.weight_gradient(false);
  const auto loss = [&](const std::vector<double>& x, const std::vector<double>& w) {
    double sum = 0;
    for (std::int64_t e = 0; e < 3; ++e)
      for (std::int64_t r = run.offsets[size(e)]; r < run.offsets[size(e + 1)]; ++r)
        for (std::int64_t n = 0; n < 4; ++n)
          for (std::int64_t k = 0; k < 5; ++k)
            sum += static_cast<double>(run.d_y[size(r * 4 + n)]) * x[size(r * 5 + k)] * w[size((e * 4 + n) * 5 + k)];
    return sum;
  };
  const auto x = doubles(run.x), w = doubles(run.w);
  EXPECT_LT(relative_error(run.d_x, finite_differences(x, [&](const auto& v) { return loss(v, w); })), 1e-6);
  EXPECT_LT(relative_error(run.d_w, finite_differences(w, [&](const auto& v) { return loss(x, v); })), 1e-6);
}

// The same row of the same expert among few rows and among many.
template <class T>
void check_that_rows_do_not_depend_on_others() {
  const Case many{{40, 61, 27}, 0, 70, 96};
  Trial<T> run(many);
  run.forward();
  for (const std::int32_t alone : {1, 7, 60}) {
    Trial<T> few({{0, alone, 0}, many.rows() - alone, 70, 96});
    few.w = run.w;
    std::copy_n(run.x.begin() + 40 * 96, alone * 96, few.x.begin());
    few.forward();
    EXPECT_TRUE(std::equal(few.y.begin(), few.y.begin() + alone * 70, run.y.begin() + 40 * 70)) << alone << " rows";
  }
}
TEST(GroupedGemm, ARowsBitsDoNotDependOnTheRowsBesideItFp32) { check_that_rows_do_not_depend_on_others<float>(); }
TEST(GroupedGemm, ARowsBitsDoNotDependOnTheRowsBesideItBf16) { check_that_rows_do_not_depend_on_others<bf16>(); }
TEST(GroupedGemm, ARowsBitsDoNotDependOnTheRowsBesideItFp16) { check_that_rows_do_not_depend_on_others<f16>(); }

TEST(GroupedGemm, SameBitsForAnyThreadCount) {
  expect_same_bits([] {
    Trial<float> run({{300, 0, 90}, 2, 400, 24});
    Trial<bf16> half({{16, 31, 2}, 3, 50, 530});
    run.forward(), run.input_gradient(), run.weight_gradient(false);
    half.forward(), half.input_gradient(), half.weight_gradient(false);
    return digest(run.y, run.d_x, run.d_w, half.y, half.d_x, half.d_w);
  });
}

}  // namespace
}  // namespace tessera::kernels::testing::grouped_gemm_test
