#include "wide_qk_norm_cases.hpp"

#include "base/check.hpp"

namespace tessera::kernels::testing::wide_qk_norm_test {
namespace {

using Case = WideQkCase;

constexpr double eps = static_cast<double>(1e-5f);

/// The features of all parts side by side, in fp64: (M,C), and a factor each.
struct Section {
  std::size_t C;
  std::vector<double> x{}, d{}, factor{};
};
template <class T>
Section section_of(const WideQkInputs<T>& in, bool of_query) {
  const WideQkCase& c = in.c;
  const std::int64_t own = of_query ? c.Q : c.K, first = of_query ? 0 : c.Q;
  Section s{.C = static_cast<std::size_t>(own * c.parts)};
  const auto append = [&](std::vector<double>& to, const std::vector<T>& from, std::int64_t at) {
    for (std::int64_t i = at; i < at + own; ++i) to.push_back(static_cast<double>(static_cast<float>(from[static_cast<std::size_t>(i)])));
  };
  for (std::int64_t m = 0; m < c.M; ++m)
    for (const auto& part : in.parts) append(s.x, part.x, m * c.stride + first), append(s.d, part.d, m * c.stride + first);
  for (const auto& part : in.parts) append(s.factor, of_query ? part.q_norm : part.k_norm, 0);
  for (double& f : s.factor) f += static_cast<double>(c.offset);
  return s;
}

/// The definition over the whole width.
struct Reference {
  std::vector<double> out, d_x, d_weight;
  double largest_term = 0;  ///< of d_x: with few features nearly all of it cancels
};
Reference reference(const Section& s) {
  Reference r{.out = s.x, .d_x = s.x, .d_weight = std::vector<double>(s.C)};
  const auto C = static_cast<double>(s.C);
  for (std::size_t row = 0; row < s.x.size(); row += s.C) {
    double squares = 0, along = 0;
    for (std::size_t i = 0; i < s.C; ++i) {
      squares += s.x[row + i] * s.x[row + i];
      along += s.d[row + i] * s.factor[i] * s.x[row + i];
    }
    const double rstd = 1 / std::sqrt(squares / C + eps);
    for (std::size_t i = 0; i < s.C; ++i) {
      r.out[row + i] = s.x[row + i] * rstd * s.factor[i];
      r.d_x[row + i] = rstd * (s.d[row + i] * s.factor[i] - s.x[row + i] * rstd * rstd * along / C);
      r.d_weight[i] += s.d[row + i] * s.x[row + i] * rstd;
      r.largest_term = std::max(r.largest_term, std::abs(rstd * s.d[row + i] * s.factor[i]));
    }
  }
  return r;
}

template <class T>
void check_section(const WideQkInputs<T>& in, const WideQkResults<T>& results, bool of_query) {
  // What was computed becomes inputs of section_of, which gathers the parts.
  WideQkInputs<T> gathered = in;
  std::vector<float> d_weight;
  std::vector<double> before;
  for (std::size_t i = 0; i < in.parts.size(); ++i) {
    gathered.parts[i].x = results.parts[i].out, gathered.parts[i].d = results.parts[i].d;
    const auto &sum = of_query ? results.parts[i].d_q_norm : results.parts[i].d_k_norm,
               &there = of_query ? in.parts[i].d_q_norm : in.parts[i].d_k_norm;
    d_weight.insert(d_weight.end(), sum.begin(), sum.end()), before.insert(before.end(), there.begin(), there.end());
  }
  const Section results_of = section_of(gathered, of_query);
  Reference expected = reference(section_of(in, of_query));
  for (std::size_t i = 0; i < before.size(); ++i) expected.d_weight[i] += before[i];
  EXPECT_LT(relative_error(results_of.x, expected.out), tolerance<T>());
  EXPECT_LT(relative_error(results_of.d, expected.d_x, expected.largest_term), tolerance<T>());
  EXPECT_LT(relative_error(d_weight, expected.d_weight), 2e-6);
}

template <class T>
std::vector<T> others(const std::vector<T>& v, const Case& c) {
  std::vector<T> out;
  for (std::int64_t m = 0; m < c.M; ++m) out.insert(out.end(), v.begin() + m * c.stride + c.Q + c.K, v.begin() + (m + 1) * c.stride);
  return out;
}

template <class T>
void check_against_reference() {
  for (const Case& c : wide_qk_cases) {
    SCOPED_TRACE(::testing::Message() << c);
    const WideQkInputs<T> in(c);
    const WideQkResults<T> results = wide_qk_on_host(in);
    for (const bool of_query : {true, false}) check_section(in, results, of_query);
    for (std::size_t i = 0; i < in.parts.size(); ++i) {
      EXPECT_EQ(digest(others(results.parts[i].out, c)), digest(others(in.parts[i].x, c)));
      EXPECT_EQ(digest(others(results.parts[i].d, c)), digest(others(in.parts[i].d, c)));
    }
    EXPECT_EQ(wide_qk_on_host(in, true).hash().hex(), results.hash().hex()) << "in place";
  }
}
TEST(WideQkNorm, MatchesReferenceFp32) { check_against_reference<float>(); }
TEST(WideQkNorm, MatchesReferenceBf16) { check_against_reference<bf16>(); }
TEST(WideQkNorm, MatchesReferenceFp16) { check_against_reference<f16>(); }

TEST(WideQkNorm, ReferenceGradientMatchesFiniteDifferences) {
  const Section s = section_of(WideQkInputs<float>({3, 7, 2, 10, 2, 1.0f}), true);
  const Reference r = reference(s);
  const auto by_x = finite_differences(s.x, [&](const std::vector<double>& v) {
    Section moved = s;
    moved.x = v;
    return dot(s.d, reference(moved).out);
  });
  const auto by_weight = finite_differences(s.factor, [&](const std::vector<double>& v) {
    Section moved = s;
    moved.factor = v;
    return dot(s.d, reference(moved).out);
  });
  for (std::size_t i = 0; i < by_x.size(); ++i) EXPECT_NEAR(r.d_x[i], by_x[i], 1e-8);
  for (std::size_t i = 0; i < by_weight.size(); ++i) EXPECT_NEAR(r.d_weight[i], by_weight[i], 1e-8);
}

TEST(WideQkNorm, SameBitsForAnyThreadCount) {
  for (const Case& c : {Case{330, 200, 40, 280, 2, 1.0f}, Case{100, 47, 13, 61}}) {
    expect_same_bits([c] {
      return hash_text(wide_qk_on_host(WideQkInputs<float>(c)).hash().hex() + wide_qk_on_host(WideQkInputs<bf16>(c)).hash().hex());
    });
  }
}

// Outputs beyond the caches are written with streaming stores: the bits are the same.
template <class T>
void check_large_output(std::int64_t M) {
  const Case c{8, 256, 48, 384};
  const WideQkInputs<T> small(c);
  const WideQkPart<T>& part = small.parts[0];
  const WideQkResults<T> expected = wide_qk_on_host(small);
  const std::int64_t eight = 8 * c.stride;
  auto memory = poisoned<T>(M * c.stride + 32), x = poisoned<T>(M * c.stride);
  auto sums = poisoned<float>(2 * M);
  T* out = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64 / sizeof(T);
  for (std::int64_t m = 0; m < M; m += 8) {
    std::copy(part.x.begin(), part.x.end(), x.begin() + m * c.stride);
    std::copy(expected.sums.begin(), expected.sums.end(), sums.begin() + 2 * m);
  }
  WideQkShape shape = small.shape();
  shape.M = M;
  wide_qk_norm(
      {}, {.out = out, .x = x.data(), .sums = sums.data(), .q_norm = part.q_norm.data(), .k_norm = part.k_norm.data(), .shape = shape});
  for (std::int64_t m = 0; m < M; m += 8)
    ASSERT_EQ(std::memcmp(out + m * c.stride, expected.parts[0].out.data(), static_cast<std::size_t>(eight) * sizeof(T)), 0) << m;
}
TEST(WideQkNorm, LargeOutputsHaveTheBitsOfSmallOnes) { check_large_output<float>(22400), check_large_output<bf16>(44800); }

TEST(WideQkNorm, RefusesWhatItCannotDo) {
  EXPECT_THROW(wide_qk_norm_backward({}, {.shape = {.M = 77, .Q = 48, .K = 16, .stride = 64}}), Error) << "no workspace";
  EXPECT_THROW(wide_qk_sums({}, {.shape = {.M = 77, .Q = 48, .K = 16, .stride = 63}}), Error);
}

}  // namespace
}  // namespace tessera::kernels::testing::wide_qk_norm_test
