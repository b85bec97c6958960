#include "fixed_cases.hpp"

namespace tessera::kernels::testing::fixed_test {
namespace {

TEST(Fixed, AccumulateRoundsToNearestEven) {
  for (std::int64_t n : fixed_lengths) {
    const auto x = fixed_terms(n);
    std::vector<std::int64_t> sum(static_cast<std::size_t>(n), 5), expected = sum;
    for (std::size_t i = 0; i < x.size(); ++i) {
      double scaled = static_cast<double>(x[i]) * 0x1p44, below = std::floor(scaled), rest = scaled - below;
      auto whole = static_cast<std::int64_t>(below);
      expected[i] += whole + (rest > 0.5 || (rest == 0.5 && whole % 2 != 0));
    }
    std::int32_t overflow = 0;
    fixed_accumulate({}, {sum.data(), x.data(), n, &overflow, fixed_limit});
    EXPECT_EQ(sum, expected);
    EXPECT_EQ(overflow, 0);
  }
}

// Whatever the order, the split into partial sums or the place in a vector: the same integers.
TEST(Fixed, SumsDoNotDependOnOrder) {
  constexpr std::size_t terms = 40, n = 37;
  std::vector<std::vector<float>> x;
  for (unsigned k = 0; k < terms; ++k) x.push_back(random_values<float>(n, k, std::ldexp(1.0f, static_cast<int>(k % 30) - 15)));
  std::int32_t overflow = 0;
  auto total = [&](std::size_t groups) {
    std::vector<std::int64_t> sum(n, 0);
    for (std::size_t g = 0; g < groups; ++g) {
      std::vector<std::int64_t> part(n, 0);
      for (std::size_t k = g; k < terms; k += groups) fixed_accumulate({}, {part.data(), x[k].data(), n, &overflow, fixed_limit});
      fixed_add({}, sum.data(), part.data(), n, &overflow);
    }
    return sum;
  };
  auto expected = total(1);
  std::mt19937 engine(1);
  for (int trial = 0; trial < 20; ++trial) {
    std::shuffle(x.begin(), x.end(), engine);
    EXPECT_EQ(total(1 + static_cast<std::size_t>(trial) % 7), expected);
  }
  EXPECT_EQ(overflow, 0);
}

/// The faults of x over a scale that joins start, summed over each position of a vector and its remainder.
int faults_of_accumulate(std::int64_t start, float x, std::int64_t limit, const float* scale = nullptr) {
  int raised = 0;
  for (std::size_t at = 0; at < 21; ++at) {
    std::vector<float> values(21, 0.5f);
    std::vector<std::int64_t> sum(21, 0);
    values[at] = x, sum[at] = start;
    std::int32_t overflow = 0;
    fixed_accumulate({}, {sum.data(), values.data(), 21, &overflow, limit, scale});
    raised += overflow;
  }
  return raised;
}
int flags_of_add(std::int64_t start, std::int64_t x) {
  int raised = 0;
  for (std::size_t at = 0; at < 21; ++at) {
    std::vector<std::int64_t> values(21, 12), sum(21, -7);
    values[at] = x, sum[at] = start;
    std::int32_t overflow = 0;
    fixed_add({}, sum.data(), values.data(), 21, &overflow);
    raised += overflow;
  }
  return raised;
}

TEST(Fixed, OverflowIsSeenAtEveryPosition) {
  for (const std::int64_t most : {fixed_limit, fixed_limit / 3})
    for (const FixedAccumulateCase& c : fixed_accumulate_cases(most))
      EXPECT_EQ(faults_of_accumulate(c.sum, c.x, most), 21 * faults_of(c)) << c.x << " to " << c.sum << ", limit " << most;
  for (const FixedAddCase& c : fixed_add_cases()) EXPECT_EQ(flags_of_add(c.a, c.b), c.flagged ? 21 : 0) << c.a << " + " << c.b;
  // A flag that is up stays up.
  std::int32_t overflow = 1;
  std::int64_t sum = 0;
  float x = 1;
  fixed_accumulate({}, {&sum, &x, 1, &overflow, fixed_limit});
  EXPECT_EQ(overflow, 1);
}

// A loss scale is a power of two: the sum and its range are those of the values without it.
TEST(Fixed, AScaleChangesNoBitAndNoRange) {
  for (const float scale : {0x1p-3f, 1.0f, 0x1p16f, 0x1p40f}) {
    const std::vector<float> x = random_values<float>(1013, 7);
    std::vector<float> scaled;
    for (const float v : x) scaled.push_back(v * scale);
    std::vector<std::int64_t> plain(x.size(), 5), sum(x.size(), 5);
    std::int32_t faults = 0;
    fixed_accumulate({}, {plain.data(), x.data(), 1013, &faults});
    fixed_accumulate({}, {sum.data(), scaled.data(), 1013, &faults, fixed_limit, &scale});
    EXPECT_EQ(sum, plain) << scale;
    EXPECT_EQ(faults, 0);
    for (const FixedAccumulateCase& c : fixed_accumulate_cases(fixed_limit))
      if (std::isfinite(c.x * scale)) {
        EXPECT_EQ(faults_of_accumulate(c.sum, c.x * scale, fixed_limit, &scale), 21 * faults_of(c)) << c.x << " times " << scale;
      }
  }
}

TEST(Fixed, BackToFloatRoundsOnce) {
  std::vector<std::int64_t> sum = {0, 1, -1, fixed_limit - 1, (std::int64_t{1} << 44) + 1, -(std::int64_t{3} << 30) - 1};
  for (std::int64_t k = 0; k < 50; ++k) sum.push_back((std::int64_t{1} << 61) - (k << 36) - k);
  auto out = poisoned<float>(static_cast<std::int64_t>(sum.size()));
  fixed_to_float({}, out.data(), sum.data(), static_cast<std::int64_t>(sum.size()));
  for (std::size_t i = 0; i < sum.size(); ++i) EXPECT_EQ(out[i], std::ldexp(static_cast<float>(sum[i]), -44)) << sum[i];
  auto halves = poisoned<bf16>(static_cast<std::int64_t>(sum.size()));
  fixed_to_bf16({}, halves.data(), sum.data(), static_cast<std::int64_t>(sum.size()));
  for (std::size_t i = 0; i < sum.size(); ++i) EXPECT_EQ(halves[i], bf16(out[i])) << sum[i];
  // There and back is exact for values that fp32 and the resolution hold.
  std::vector<float> x = {1.5f, -0x1p-44f, 262143.97f, 0.333333343f};
  std::vector<std::int64_t> fixed(4, 0);
  std::vector<float> back = poisoned<float>(4);
  std::int32_t overflow = 0;
  fixed_accumulate({}, {fixed.data(), x.data(), 4, &overflow, fixed_limit});
  fixed_to_float({}, back.data(), fixed.data(), 4);
  EXPECT_EQ(back, x);
}

/// Whole numbers of up to 53 bits times 2^-80 .. 2^-28, as doubles and as their exact sum in units of 2^-80.
struct Values {
  std::vector<double> x;
  __int128 sum = 0;
  explicit Values(unsigned seed) {
    std::mt19937_64 engine(seed);
    for (int i = 0; i < 300; ++i) {
      std::int64_t whole = static_cast<std::int64_t>(engine()) >> (11 + engine() % 40);
      int shift = static_cast<int>(engine() % 53);
      x.push_back(std::ldexp(static_cast<double>(whole), shift - 80));
      sum += static_cast<__int128>(whole) * (static_cast<__int128>(1) << shift);
    }
  }
};

/// Nearest double of v * 2^-80, by long double (64 digits) and what is left.
double nearest(__int128 v) {
  auto high = static_cast<double>(static_cast<std::int64_t>(v >> 64)), low = static_cast<double>(static_cast<std::uint64_t>(v) >> 32);
  auto rest = static_cast<long double>(static_cast<std::uint32_t>(v));
  return static_cast<double>(
      std::ldexp(std::ldexp(static_cast<long double>(high), 64) + std::ldexp(static_cast<long double>(low), 32) + rest, -80));
}

TEST(FixedSum, IsExactInAnyOrderAndSplit) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    Values values(seed);
    std::mt19937 engine(seed);
    std::string first;
    for (std::size_t trial = 0; trial < 10; ++trial) {
      std::shuffle(values.x.begin(), values.x.end(), engine);
      std::vector<FixedSum> parts(1 + trial);
      for (std::size_t i = 0; i < values.x.size(); ++i) ASSERT_TRUE(parts[i % parts.size()].add(values.x[i]));
      FixedSum sum;
      for (const FixedSum& p : parts) sum.add(p);
      std::string bits = hash_bytes(&sum, sizeof sum).hex();
      if (trial == 0) first = bits;
      EXPECT_EQ(bits, first);
      double expected = nearest(values.sum);
      EXPECT_NEAR(sum.value(), expected, std::abs(expected) * 0x1p-52);
    }
  }
}

TEST(FixedSum, SmallTermsSurviveLargeOnes) {
  FixedSum sum;
  for (double x : {0x1p45, 0x1p-80, -0x1p45, 0x1p-79}) ASSERT_TRUE(sum.add(x));
  EXPECT_EQ(sum.value(), 3 * 0x1p-80);
  sum = {};
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(sum.add(-0.001953125));
  EXPECT_EQ(sum.value(), -1.953125);
}

TEST(FixedSum, HoldsEachSingleValueExactly) {
  for (double x :
       {0.0, 1.0, -1.0, 0x1p-80, -0x1.8p-79, 0x1.fffffffffffffp45, -0x1.fffffffffffffp45, 3.141592653589793, 1e-10, -123456789.125}) {
    FixedSum sum;
    ASSERT_TRUE(sum.add(x));
    double resolution = std::nearbyint(x * 0x1p80) * 0x1p-80;  // itself where all 53 digits lie above 2^-80
    EXPECT_EQ(sum.value(), resolution) << x;
  }
}

TEST(FixedSum, RoundsBelowItsResolutionToNearestEven) {
  auto units = [](double x) {
    FixedSum sum;
    EXPECT_TRUE(sum.add(x));
    return sum.value() * 0x1p80;
  };
  EXPECT_EQ(units(0x1p-81), 0);
  EXPECT_EQ(units(0x1.0000000000001p-81), 1);
  EXPECT_EQ(units(1.5 * 0x1p-80), 2);
  EXPECT_EQ(units(-2.5 * 0x1p-80), -2);
  EXPECT_EQ(units(0x1.fp-82), 0);
  EXPECT_EQ(units(1e-300), 0);
  EXPECT_EQ(units(std::numeric_limits<double>::denorm_min()), 0);
}

TEST(FixedSum, RefusesWhatDoesNotFitAndAddsNothing) {
  double infinity = std::numeric_limits<double>::infinity();
  for (double x : {infinity, -infinity, std::numeric_limits<double>::quiet_NaN(), 0x1p46, -0x1p46, 1e300}) {
    FixedSum sum;
    ASSERT_TRUE(sum.add(2.5));
    EXPECT_FALSE(sum.add(x));
    EXPECT_EQ(sum.value(), 2.5);
  }
}

// Doubling stands for many additions: far beyond the range of one term the value is still right.
TEST(FixedSum, ManyLargeTermsKeepTheirSum) {
  for (double sign : {1.0, -1.0}) {
    FixedSum sum;
    ASSERT_TRUE(sum.add(sign * 0x1.fffffffffffffp45));
    for (int doubling = 1; doubling <= 30; ++doubling) {
      sum.add(FixedSum(sum));
      EXPECT_EQ(sum.value(), std::ldexp(sign * 0x1.fffffffffffffp45, doubling));
    }
  }
}

TEST(Fixed, SameBitsForAnyThreadCount) {
  expect_same_bits([] {
    constexpr std::int64_t n = 100003;
    auto x = random_values<float>(n, 1, 100.0f);
    std::vector<std::int64_t> sum(n, 3);
    auto out = poisoned<float>(n);
    std::vector<std::int32_t> overflow(2, 0);
    fixed_accumulate({}, {sum.data(), x.data(), n, overflow.data(), fixed_limit});
    x[70001] = 1e10f;
    fixed_accumulate({}, {sum.data(), x.data(), n, overflow.data() + 1, fixed_limit});
    fixed_add({}, sum.data(), std::vector<std::int64_t>(sum).data(), n, overflow.data());
    fixed_to_float({}, out.data(), sum.data(), n);
    return digest(sum, out, overflow);
  });
}

}  // namespace
}  // namespace tessera::kernels::testing::fixed_test
