#include "kernels/argmax/argmax.hpp"

#include <cmath>

#include "device_array.hpp"

namespace tessera::kernels::testing::argmax_cuda_test {
namespace {

class ArgmaxCuda : public OnDevice {};

std::int32_t on_host(const std::vector<float>& x) {
  std::int32_t index = -1;
  host::argmax({}, {.index = &index, .x = x.data(), .n = static_cast<std::int64_t>(x.size())});
  return index;
}
std::int32_t on_device(const std::vector<float>& x, std::int64_t shift = 0) {
  DeviceArray<float> there(x, shift);
  DeviceArray<std::int32_t> index(1);
  cuda::argmax({}, {.index = index.data(), .x = there.data(), .n = there.size()});
  return index.host()[0];
}

TEST_F(ArgmaxCuda, IsTheHosts) {
  for (std::int64_t n : {1, 2, 31, 33, 1023, 1025, 8191, 8193, 50257}) {
    auto x = random_values<float>(n, 4);
    EXPECT_EQ(on_device(x, n % 4), on_host(x)) << n;
    for (std::int64_t at : {std::int64_t{0}, n / 2, n - 1}) {
      const float before = std::exchange(x[static_cast<std::size_t>(at)], 100.0f);
      EXPECT_EQ(on_device(x), at) << n;
      x[static_cast<std::size_t>(at)] = before;
    }
  }
}

// Of a thread, of a warp, of two warps, and of two rounds.
TEST_F(ArgmaxCuda, TheFirstOfEquals) {
  std::vector<float> x(20000, -3.0f);
  EXPECT_EQ(on_device(x), 0);
  for (std::size_t at : {19999u, 9000u, 8500u, 5000u, 4001u, 4000u, 900u, 3u}) {
    x[at] = 7;
    EXPECT_EQ(on_device(x), static_cast<std::int32_t>(at));
  }
}

TEST_F(ArgmaxCuda, NoneWhereAnyIsNanOrAllAreMinusInfinity) {
  for (float value : {std::nanf(""), -std::nanf(""), -INFINITY}) EXPECT_EQ(on_device(std::vector<float>(3000, value)), -1) << value;
  for (float other : {-3.0f, INFINITY})
    for (std::size_t at : {0u, 31u, 1024u, 9000u, 19999u}) {  // before and after the largest of its thread and of its warp
      std::vector<float> x(20000, -4.0f);
      x[1025] = x[40] = other;
      x[at] = std::nanf("");
      EXPECT_EQ(on_device(x), -1) << at;
      EXPECT_EQ(on_host(x), -1) << at;
    }
}

TEST_F(ArgmaxCuda, DoesNotDependOnTheOrderOfThreads) {
  std::vector<float> x(9000);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * 7919 % 50);
  expect_same_bits_on_device([&] {
    const std::int32_t index = on_device(x);
    return hash_bytes(&index, sizeof index);
  });
}

}  // namespace
}  // namespace tessera::kernels::testing::argmax_cuda_test
