#include "kernels/sums/sums.hpp"

#include "base/check.hpp"
#include "same_bits.hpp"

namespace tessera::kernels::testing::sums_test {
namespace {

struct Result {
  FixedSum sum;
  std::int32_t not_finite = 0;
};

template <class T>
Result sum_of(const T* x, std::int64_t n) {
  Result r;
  sum_of_squares({}, {.sum = &r.sum, .not_finite = &r.not_finite, .x = x, .n = n, .dtype = dtype_of<T>()});
  return r;
}
std::string bits(const FixedSum& s) { return hash_bytes(&s, sizeof s).hex(); }

std::vector<std::int64_t> to_fixed(const std::vector<float>& x) {
  std::vector<std::int64_t> f;
  for (float v : x) f.push_back(std::llrint(std::ldexp(static_cast<double>(v), 44)));
  return f;
}

TEST(Sums, MatchesReference) {
  for (std::int64_t n : {0, 256, 77 * 256, 1013 * 256}) {
    auto x = random_values<float>(n, 1, 0.3f);
    long double exact = 0;
    for (float v : x) exact += static_cast<long double>(v) * static_cast<long double>(v);
    auto expected = static_cast<double>(exact);
    // What bf16 holds is summed as its fp32 value is: the same bits.
    const std::vector<bf16> halves(x.begin(), x.end());
    const std::vector<float> same(halves.begin(), halves.end());
    EXPECT_EQ(bits(sum_of(halves.data(), n).sum), bits(sum_of(same.data(), n).sum));
    Result r = sum_of(x.data(), n), fixed = sum_of(to_fixed(x).data(), n);
    EXPECT_NEAR(r.sum.value(), expected, 1e-13 * expected);
    EXPECT_NEAR(fixed.sum.value(), expected, 1e-10 * expected);
    EXPECT_EQ(r.not_finite | fixed.not_finite, 0);
  }
}

// Shards are cut on whole blocks: however they are, the limbs are the same, and a sum is added to what is there.
TEST(Sums, DoNotDependOnWhoOwnsWhichBlocks) {
  constexpr std::int64_t blocks = 90;
  auto x = random_values<float>(blocks * sum_block, 2);
  std::vector<std::int64_t> fixed = to_fixed(x);
  Result whole = sum_of(x.data(), blocks * sum_block), whole_fixed = sum_of(fixed.data(), blocks * sum_block);
  for (std::int64_t ranks : {2, 7, 90}) {
    Result joined;
    FixedSum joined_fixed;
    for (std::int64_t r = ranks - 1; r >= 0; --r) {
      std::int64_t begin = blocks * r / ranks * sum_block, n = blocks * (r + 1) / ranks * sum_block - begin;
      sum_of_squares({}, {.sum = &joined.sum, .not_finite = &joined.not_finite, .x = x.data() + begin, .n = n});
      joined_fixed.add(sum_of(fixed.data() + begin, n).sum);
    }
    EXPECT_EQ(bits(joined.sum), bits(whole.sum));
    EXPECT_EQ(bits(joined_fixed), bits(whole_fixed.sum));
  }
}

TEST(Sums, FlagsWhatIsNotFiniteOrDoesNotFit) {
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 1e30f, 0x1p23f}) {
    for (std::size_t at : {0, 255, 256, 700}) {
      auto x = random_values<float>(3 * sum_block, 3);
      x[at] = bad;
      EXPECT_EQ(sum_of(x.data(), 3 * sum_block).not_finite, 1) << bad;
    }
  }
  float one = 1;
  EXPECT_THROW(sum_of(&one, 1), Error) << "a part of a block";
}

TEST(Sums, SameBitsForAnyThreadCount) {
  expect_same_bits([] {
    constexpr std::int64_t n = 3001 * sum_block;
    auto x = random_values<float>(n, 4);
    return hash_text(bits(sum_of(x.data(), n).sum) + bits(sum_of(to_fixed(x).data(), n).sum));
  });
}

}  // namespace
}  // namespace tessera::kernels::testing::sums_test
