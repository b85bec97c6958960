// Dropout against a loop that draws each element by itself.
#include "kernels/dropout/dropout.hpp"

#include "base/check.hpp"
#include "dropout_cases.hpp"
#include "same_bits.hpp"

namespace tessera::kernels::testing::dropout_test {
namespace {

/// The word of one feature, by Philox as its authors write it.
std::uint32_t word_of(const Dropout& p, std::int64_t token, std::int64_t feature) {
  std::uint32_t counter[4] = {static_cast<std::uint32_t>(feature / 4), p.stream, static_cast<std::uint32_t>(token),
                              static_cast<std::uint32_t>(token >> 32)};
  philox4x32(counter, static_cast<std::uint32_t>(p.seed), static_cast<std::uint32_t>(p.seed >> 32) ^ 0xa54ff53au);
  return counter[feature % 4];
}

std::vector<double> factors_of(const Dropout& p) {
  std::vector<double> factors;
  for (std::int64_t m = 0; m < p.M; ++m)
    for (std::int64_t n = 0; n < p.N; ++n) {
      const bool drops = p.tokens[m] >= 0 && static_cast<double>(word_of(p, p.tokens[m], p.first + n)) < std::floor(p.rate * 0x1p32);
      factors.push_back(p.tokens[m] < 0 ? 1 : drops ? 0 : 1 / (1 - p.rate));
    }
  return factors;
}

template <class T>
void check() {
  for (const DropoutCase& c : dropout_cases)
    for (const bool accumulate : {false, true}) {
      const auto x = random_values<T>(c.M * c.N, 1), before = random_values<T>(c.M * c.N, 2);
      auto y = accumulate ? before : poisoned<T>(c.M * c.N);
      const std::vector<std::int64_t> tokens = dropout_tokens(c.M);
      const Dropout p = dropout_of(c, y.data(), x.data(), tokens.data(), dtype_of<T>(), accumulate);
      dropout({}, p);
      std::vector<double> expected = doubles(x);
      const std::vector<double> factors = factors_of(p), added = doubles(before);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        expected[i] = expected[i] * factors[i] + (accumulate ? added[i] : 0);
        if (!accumulate && factors[i] == 0) {
          EXPECT_EQ(static_cast<float>(y[i]), 0) << c << ", element " << i;
        }
      }
      EXPECT_LE(relative_error(y, expected), tolerance<T>()) << c;
      auto in_place = x;
      if (accumulate) continue;
      dropout({}, dropout_of(c, in_place.data(), in_place.data(), tokens.data(), dtype_of<T>(), false));
      EXPECT_EQ(digest(in_place).hex(), digest(y).hex()) << c << " in place";
    }
}
TEST(Dropout, DropsWhatALoopDrops) {
  check<float>();
  check<bf16>();
  check<f16>();
}

TEST(Dropout, DropsTheShareItIsTold) {
  constexpr std::int64_t M = 400, N = 256;
  std::vector<std::int64_t> tokens(M);
  for (std::int64_t m = 0; m < M; ++m) tokens[static_cast<std::size_t>(m)] = m;
  const std::vector<float> x(M * N, 1.0f);
  for (const double rate : {0.05, 0.5, 0.9}) {
    std::vector<float> y(x.size());
    dropout({}, {.y = y.data(), .x = x.data(), .tokens = tokens.data(), .M = M, .N = N, .seed = test_seed(), .rate = rate});
    const auto dropped = static_cast<double>(std::ranges::count(y, 0.0f)), n = static_cast<double>(M * N);
    EXPECT_NEAR(dropped / n, rate, 5 * std::sqrt(rate * (1 - rate) / n)) << "five standard deviations";
  }
}

/// Columns and rows that ranks or micro-batches have are those of the whole.
TEST(Dropout, APartHasTheMaskOfTheWhole) {
  constexpr std::int64_t M = 12, N = 90;
  const std::vector<std::int64_t> tokens = dropout_tokens(M);
  const auto x = random_values<float>(M * N, 3);
  std::vector<float> whole(x.size());
  const DropoutCase all{M, N, 0, 0.4};
  dropout({}, dropout_of(all, whole.data(), x.data(), tokens.data(), DType::f32, false));
  for (const std::int64_t first : {0, 7, 30, 64}) {
    const std::int64_t rows = 5, columns = N - first - 3;
    std::vector<float> part, y(static_cast<std::size_t>(rows * columns));
    for (std::int64_t m = 0; m < rows; ++m)
      for (std::int64_t n = 0; n < columns; ++n) part.push_back(x[static_cast<std::size_t>((m + 4) * N + first + n)]);
    dropout({}, dropout_of({rows, columns, first, 0.4}, y.data(), part.data(), tokens.data() + 4, DType::f32, false));
    for (std::int64_t i = 0; i < rows * columns; ++i)
      EXPECT_EQ(y[static_cast<std::size_t>(i)], whole[static_cast<std::size_t>((i / columns + 4) * N + first + i % columns)]);
  }
}

TEST(Dropout, HasTheSameBitsOnAnyNumberOfThreads) {
  expect_same_bits([] {
    const auto x = random_values<bf16>(300 * 130, 4);
    std::vector<bf16> y(x.size());
    const std::vector<std::int64_t> tokens = dropout_tokens(300);
    dropout({}, dropout_of({300, 130, 2, 0.2}, y.data(), x.data(), tokens.data(), DType::bf16, false));
    return digest(y);
  });
}

TEST(Dropout, RefusesToDropAll) {
  float x = 1;
  const std::int64_t token = 0;
  EXPECT_THROW(dropout({}, {.y = &x, .x = &x, .tokens = &token, .M = 1, .N = 1, .rate = 1}), Error);
}

}  // namespace
}  // namespace tessera::kernels::testing::dropout_test
