#include "expert_bias_cases.hpp"

namespace tessera::kernels::testing::expert_bias_test {
namespace {

using Case = ExpertBiasCase;

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

/// The ops by their definitions, in fp64.
struct Reference {
  std::vector<double> y, d_bias, written, unweighed, d_weights;
  template <class T>
  explicit Reference(const ExpertBiasInputs<T>& in)
      : y(doubles(in.y)), d_bias(doubles(in.d_bias)), written(d_bias.size()), unweighed(d_bias.size()), d_weights(doubles(in.d_weights)) {
    const auto bias = doubles(in.bias), d_y = doubles(in.d_y), weights = doubles(in.weights);
    const std::int64_t N = in.c.N, k = in.c.k;
    for (std::size_t e = 0; e < in.c.counts.size(); ++e)
      for (std::int64_t r = in.offsets[e]; r < in.offsets[e + 1]; ++r) {
        const std::size_t slot = size(in.sources[size(r)] / k * (k + 1) + in.sources[size(r)] % k);
        for (std::int64_t i = 0; i < N; ++i) {
          const std::size_t of_row = size(r * N + i), of_expert = e * size(N) + size(i);
          y[of_row] += bias[of_expert];
          written[of_expert] += weights[slot] * d_y[of_row], unweighed[of_expert] += d_y[of_row];
          d_weights[slot] += d_y[of_row] * bias[of_expert];
        }
      }
    for (std::size_t i = 0; i < d_bias.size(); ++i) d_bias[i] += written[i];
  }
};

template <class T>
void check() {
  for (const Case& c : expert_bias_cases) {
    SCOPED_TRACE(::testing::Message() << c);
    const ExpertBiasInputs<T> in(c);
    const Reference expected(in);
    const ExpertBiasResults<T> r = expert_bias_on_host<T>(c);
    EXPECT_LT(relative_error(r.y, expected.y), tolerance<T>());
    EXPECT_TRUE(std::equal(r.y.begin() + c.owned() * c.N, r.y.end(), in.y.begin() + c.owned() * c.N)) << "rows that are nobody's";
    EXPECT_LT(relative_error(r.d_bias, expected.d_bias, 1), 1e-6);
    EXPECT_LT(relative_error(r.written, expected.written, 1), 1e-6);
    EXPECT_LT(relative_error(r.unweighed, expected.unweighed, 1), 1e-6);
    EXPECT_LT(relative_error(r.d_weights, expected.d_weights, 1), 1e-6);
    for (std::size_t e = 0; e < c.counts.size(); ++e) EXPECT_TRUE(c.counts[e] > 0 || r.written[e * size(c.N)] == 0);
  }
}
TEST(ExpertBias, MatchesReferenceFp32) { check<float>(); }
TEST(ExpertBias, MatchesReferenceBf16) { check<bf16>(); }
TEST(ExpertBias, MatchesReferenceFp16) { check<f16>(); }

// The same rows of an expert, between others and alone.
TEST(ExpertBias, GradientsDependOnTheExpertsOwnRows) {
  constexpr std::int64_t N = 37, count = 301;
  const Case among{{3, 0, count, 70}, N, 4};
  const ExpertBiasInputs<bf16> in(among);
  const std::vector<float> whole = expert_bias_on_host<bf16>(among).written;
  const std::vector<std::int32_t> alone{0, count};
  auto d_bias = poisoned<float>(N);
  expert_bias_gradient({}, {.d_bias = d_bias.data(),
                            .d_y = in.d_y.data() + 3 * N,
                            .weights = in.weights.data(),
                            .sources = in.sources.data() + 3,
                            .offsets = alone.data(),
                            .k = among.k,
                            .slots = among.slots(),
                            .rows = count,
                            .E = 1,
                            .N = N,
                            .dtype = DType::bf16});
  EXPECT_TRUE(std::equal(d_bias.begin(), d_bias.end(), whole.begin() + 2 * N));
}

TEST(ExpertBias, SameBitsForAnyThreadCount) {
  expect_same_bits([] {
    const Case c{{300, 1, 0, 700}, 533, 11, 3};
    return hash_text(digest(expert_bias_on_host<bf16>(c)).hex() + digest(expert_bias_on_host<float>(c)).hex());
  });
}

}  // namespace
}  // namespace tessera::kernels::testing::expert_bias_test
