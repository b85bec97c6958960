#include "base/check.hpp"
#include "sums_cases.hpp"

namespace tessera::kernels::testing::sums_test {
namespace {

template <class T>
SumsResult sum_of(const T* x, std::int64_t n) {
  SumsResult r;
  sum_of_squares({}, {.sum = &r.sum, .not_finite = &r.not_finite, .x = x, .n = n, .dtype = dtype_of<T>()});
  return r;
}
std::string bits(const FixedSum& s) { return hash_bytes(&s, sizeof s).hex(); }

TEST(Sums, MatchesReference) {
  for (std::int64_t blocks : sums_cases) {
    const std::int64_t n = blocks * sum_block;
    auto x = random_values<float>(n, 1, 0.3f);
    long double exact = 0;
    for (float v : x) exact += static_cast<long double>(v) * static_cast<long double>(v);
    auto expected = static_cast<double>(exact);
    // What bf16 holds is summed as its fp32 value is: the same bits.
    const std::vector<bf16> halves(x.begin(), x.end());
    const std::vector<float> same(halves.begin(), halves.end());
    EXPECT_EQ(bits(sum_of(halves.data(), n).sum), bits(sum_of(same.data(), n).sum));
    SumsResult r = sum_of(x.data(), n), fixed = sum_of(to_fixed(x).data(), n);
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
  SumsResult whole = sum_of(x.data(), blocks * sum_block), whole_fixed = sum_of(fixed.data(), blocks * sum_block);
  for (std::int64_t ranks : {2, 7, 90}) {
    SumsResult joined;
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
  for (const BadSumsCase& c : bad_sums_cases()) {
    const auto x = c.values();
    EXPECT_EQ(sum_of(x.data(), std::ssize(x)).not_finite, 1) << c.value << " at " << c.at;
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
