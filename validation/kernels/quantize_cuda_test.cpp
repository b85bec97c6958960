#include "device_array.hpp"
#include "quantize_cases.hpp"

namespace tessera::kernels::testing::quantize_cuda_test {
namespace {

class QuantizeCuda : public OnDevice {};

/// NaN is NaN, whatever its bits.
template <class T>
bool same_values(const std::vector<T>& a, const std::vector<T>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](T x, T y) {
    const float u = static_cast<float>(x), v = static_cast<float>(y);
    return u == v || (std::isnan(u) && std::isnan(v));
  });
}

/// The blocks of x on the device, after they were compared with the host's.
template <class T>
std::vector<std::byte> encoded(const std::vector<T>& x, Wire wire) {
  const auto n = static_cast<std::int64_t>(x.size());
  auto expected = poisoned<std::byte>(wire_bytes(wire, n));
  host::encode_blocks({}, {.blocks = expected.data(), .x = x.data(), .dtype = dtype_of<T>(), .n = n, .wire = wire});
  DeviceArray<T> dx(x);
  DeviceArray<std::byte> blocks(wire_bytes(wire, n), 4);
  cuda::encode_blocks({}, {.blocks = blocks.data(), .x = dx.data(), .dtype = dtype_of<T>(), .n = n, .wire = wire});
  EXPECT_EQ(digest(blocks.host()), digest(expected)) << n;
  return expected;
}

template <class T>
void check_blocks(const std::vector<T>& x) {
  const auto n = static_cast<std::int64_t>(x.size());
  for (const Wire wire : block_wires) {
    const auto blocks = encoded(x, wire);
    auto expected = poisoned<T>(n);
    host::decode_blocks({}, {.x = expected.data(), .blocks = blocks.data(), .dtype = dtype_of<T>(), .n = n, .wire = wire});
    DeviceArray<std::byte> from(blocks, 4);
    DeviceArray<T> to(n);
    cuda::decode_blocks({}, {.x = to.data(), .blocks = from.data(), .dtype = dtype_of<T>(), .n = n, .wire = wire});
    EXPECT_TRUE(same_values(to.host(), expected)) << n;
  }
}

TEST_F(QuantizeCuda, BlocksHaveTheBitsOfTheHost) {
  for (const std::int64_t n : quantized_lengths) {
    if (watches_races() && n > 8 * wire_block) continue;
    check_blocks(block_values<float>(n, 1));
    check_blocks(block_values<bf16>(n, 2));
    check_blocks(block_values<f16>(n, 3));
  }
}

TEST_F(QuantizeCuda, WhatIsNotFiniteIsNaNAsOnTheHost) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float wild : {infinity, -infinity, std::numeric_limits<float>::quiet_NaN()})
    for (const std::size_t at : {0u, 130u, 255u}) check_blocks(block_with(wild, at));
}

TEST_F(QuantizeCuda, ErrorsHaveTheBitsOfTheHost) {
  for (const Wire wire : block_wires)
    for (const ErrorCase& c : error_cases)
      for (const std::int64_t n : quantized_lengths) {
        if (watches_races() && n > 8 * wire_block) continue;
        EncodeWithError p = error_call(c);
        auto x = block_values<float>(n, 7);
        if (n > 3 * wire_block) x[4 * 256 + 19] = std::numeric_limits<float>::infinity();
        auto error = encoded(random_values<float>(n, 8), Wire::int8_blocks), blocks = poisoned<std::byte>(wire_bytes(wire, n));
        DeviceArray<float> dx(x);
        DeviceArray<std::byte> device_error(error, 4), device_blocks(wire_bytes(wire, n), 4);
        DeviceArray<std::int64_t> updates(std::vector<std::int64_t>{c.updates});
        DeviceArray<float> loss_scale(std::vector<float>{c.loss_scale});
        p.n = n, p.wire = wire;
        p.x = x.data(), p.blocks = blocks.data(), p.error = error.data();
        host::encode_with_error({}, p);
        p.x = dx.data(), p.blocks = device_blocks.data(), p.error = device_error.data();
        if (p.updates) p.updates = updates.data();
        if (p.loss_scale) p.loss_scale = loss_scale.data();
        cuda::encode_with_error({}, p);
        EXPECT_EQ(digest(device_error.host()), digest(error)) << n;
        const auto sent = device_blocks.host();
        ASSERT_EQ(sent.size(), blocks.size());
        EXPECT_EQ(digest(sent), digest(blocks)) << n;
      }
}

TEST_F(QuantizeCuda, SumsHaveTheBitsOfTheHost) {
  for (const Wire wire : block_wires)
    for (const int members : {1, 4})
      for (const bool accumulate : {false, true}) {
        const std::int64_t n = 20 * wire_block;
        const auto blocks = encoded(random_values<float>(members * n, 5), wire);
        auto expected = random_values<float>(n, 6);
        DeviceArray<float> sum(expected);
        DeviceArray<std::byte> from(blocks, 4);
        SumBlocks p{.sum = expected.data(), .blocks = blocks.data(), .n = n, .members = members, .accumulate = accumulate, .wire = wire};
        host::sum_blocks({}, p);
        p.sum = sum.data(), p.blocks = from.data();
        cuda::sum_blocks({}, p);
        EXPECT_EQ(digest(sum.host()), digest(expected)) << members;
      }
}

}  // namespace
}  // namespace tessera::kernels::testing::quantize_cuda_test
