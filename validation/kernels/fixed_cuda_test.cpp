#include "device_array.hpp"
#include "fixed_cases.hpp"

namespace tessera::kernels::testing::fixed_cuda_test {
namespace {

class FixedCuda : public OnDevice {};

struct Result {
  std::vector<std::int64_t> sum;
  std::int32_t overflow = 0;
  friend bool operator==(const Result&, const Result&) = default;
};

Result accumulate_on_host(std::vector<std::int64_t> sum, const std::vector<float>& x, std::int64_t limit) {
  Result r{std::move(sum)};
  host::fixed_accumulate({}, {r.sum.data(), x.data(), static_cast<std::int64_t>(x.size()), &r.overflow, limit});
  return r;
}
Result accumulate_on_device(const std::vector<std::int64_t>& sum, const std::vector<float>& x, std::int64_t limit, std::int64_t shift = 0) {
  DeviceArray<std::int64_t> s(sum, shift);
  DeviceArray<float> dx(x, shift);
  DeviceArray<std::int32_t> overflow(std::vector<std::int32_t>{0});
  cuda::fixed_accumulate({}, {s.data(), dx.data(), s.size(), overflow.data(), limit});
  return {s.host(), overflow.host()[0]};
}

TEST_F(FixedCuda, AccumulateHasTheBitsOfTheHost) {
  for (std::int64_t n : fixed_lengths)
    for (const auto& x : {random_values<float>(n, 2), fixed_terms(n)}) {
      const auto sum = fixed_values(n, 1);
      EXPECT_TRUE(accumulate_on_device(sum, x, fixed_limit) == accumulate_on_host(sum, x, fixed_limit)) << n;
      EXPECT_TRUE(accumulate_on_device(sum, x, fixed_limit, 1) == accumulate_on_host(sum, x, fixed_limit)) << n;
      EXPECT_EQ(accumulate_on_device(sum, x, fixed_limit).overflow, 0);
    }
}

TEST_F(FixedCuda, AccumulateFlagsWhatDoesNotFit) {
  for (const std::int64_t limit : {fixed_limit, fixed_limit / 3})
    for (const FixedAccumulateCase& c : fixed_accumulate_cases(limit))
      for (std::size_t at : {0u, 300u, 1012u}) {
        std::vector<std::int64_t> sum(1013, 0);
        std::vector<float> x(1013, 1.0f);
        sum[at] = c.sum, x[at] = c.x;
        const Result r = accumulate_on_device(sum, x, limit);
        EXPECT_EQ(r.overflow, faults_of(c)) << c.x << " to " << c.sum << " at " << at << ", limit " << limit;
        EXPECT_TRUE(r == accumulate_on_host(sum, x, limit));
      }
}

TEST_F(FixedCuda, AddHasTheBitsAndTheFlagOfTheHost) {
  for (std::int64_t n : {1, 77, 2048, 5001}) {
    for (const FixedAddCase& c : fixed_add_cases()) {
      auto sum = fixed_values(n, 1), x = fixed_values(n, 2);
      sum.back() = c.a, x.back() = c.b;
      Result expected{sum};
      host::fixed_add({}, expected.sum.data(), x.data(), n, &expected.overflow);
      DeviceArray<std::int64_t> s(sum), dx(x);
      DeviceArray<std::int32_t> overflow(std::vector<std::int32_t>{0});
      cuda::fixed_add({}, s.data(), dx.data(), n, overflow.data());
      const Result r{s.host(), overflow.host()[0]};
      EXPECT_EQ(r.overflow, c.flagged) << c.a << " + " << c.b << ", " << n << " values";
      EXPECT_TRUE(r == expected) << c.a << " + " << c.b << ", " << n << " values";
    }
  }
}

TEST_F(FixedCuda, AFlagStaysUp) {
  DeviceArray<std::int64_t> sum(std::vector<std::int64_t>(16, 1));
  DeviceArray<float> x(std::vector<float>(16, 1.0f));
  DeviceArray<std::int32_t> overflow(std::vector<std::int32_t>{1});
  cuda::fixed_accumulate({}, {sum.data(), x.data(), 16, overflow.data(), fixed_limit});
  cuda::fixed_add({}, sum.data(), sum.data(), 16, overflow.data());
  EXPECT_EQ(overflow.host()[0], 1);
}

TEST_F(FixedCuda, ToFloatHasTheBitsOfTheHost) {
  for (std::int64_t n : fixed_lengths) {
    auto sum = fixed_values(n, 1);
    sum[0] = std::numeric_limits<std::int64_t>::min();
    std::vector<float> expected = poisoned<float>(n);
    host::fixed_to_float({}, expected.data(), sum.data(), n);
    DeviceArray<std::int64_t> s(sum);
    DeviceArray<float> out(n);
    cuda::fixed_to_float({}, out.data(), s.data(), n);
    EXPECT_EQ(digest(out.host()), digest(expected));
    std::vector<bf16> halves = poisoned<bf16>(n);
    host::fixed_to_bf16({}, halves.data(), sum.data(), n);
    for (std::int64_t shift : {0, 1}) {
      DeviceArray<bf16> rounded(n, shift);
      cuda::fixed_to_bf16({}, rounded.data(), s.data(), n);
      EXPECT_EQ(digest(rounded.host()), digest(halves));
    }
  }
}

}  // namespace
}  // namespace tessera::kernels::testing::fixed_cuda_test
