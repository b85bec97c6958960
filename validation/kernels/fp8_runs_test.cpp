// What travels as codes against the codes of a product that reads it.
#include "fp8_runs_cases.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/fp8/fp8.hpp"
#include "kernels/fp8/scale.hpp"

namespace tessera::kernels::testing::fp8_runs_test {
namespace {

std::vector<std::byte> encoded(const std::vector<bf16>& x, float& multiplier, float& largest) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(bytes_of_runs()));
  for (const Fp8Run& run : some_runs())
    host::encode_fp8_run({}, {.bytes = bytes.data(), .x = x.data(), .run = run, .multiplier = &multiplier, .largest = &largest});
  return bytes;
}
std::uint8_t code_of(bf16 x, float multiplier) { return e4m3(static_cast<float>(x) * multiplier).bits; }

TEST(Fp8Runs, AProductMakesTheCodesThatCame) {
  const std::vector<bf16> x = values_of_runs();
  float multiplier = run_multiplier, largest = 0, most = 0;
  const std::vector<std::byte> bytes = encoded(x, multiplier, largest);
  std::vector<bf16> y(x.size(), bf16(-77.f));
  const std::vector<Fp8Run> runs = some_runs();
  host::decode_fp8_runs({}, {.x = y.data(), .bytes = bytes.data(), .runs = runs});
  std::vector<bool> covered(x.size());
  for (const Fp8Run& run : runs)
    for (std::int64_t i = 0; i < run.elements; ++i) {
      const auto at = static_cast<std::size_t>(run.element + i);
      covered[at] = true;
      if (!run.coded) {
        ASSERT_EQ(y[at], x[at]);
        continue;
      }
      most = std::max(most, std::abs(static_cast<float>(x[at])));
      e4m3 code;
      code.bits = static_cast<std::uint8_t>(bytes[static_cast<std::size_t>(run.byte + i)]);
      ASSERT_EQ(code.bits, code_of(x[at], multiplier)) << static_cast<float>(x[at]);
      ASSERT_EQ(y[at], bf16(static_cast<float>(code) * (1.f / multiplier)));
      ASSERT_EQ(code_of(y[at], multiplier), code.bits) << static_cast<float>(x[at]);
    }
  EXPECT_EQ(largest, most);
  for (std::size_t i = 0; i < y.size(); ++i) EXPECT_TRUE(covered[i] || y[i] == bf16(-77.f)) << i;
}

// Every code, with scales whose roundings go either way.
TEST(Fp8Runs, EveryCodeComesBack) {
  for (const float magnitude : {1e-13f, 3e-7f, 0.017f, 0.9999f, 1.f, 448.f, 33333.f, 1e30f}) {
    const float multiplier = fp8_scale(magnitude, e4m3::largest(), false).multiplier, scale = 1.f / multiplier;
    for (int bits = 0; bits < 256; ++bits) {
      e4m3 code;
      code.bits = static_cast<std::uint8_t>(bits);
      if ((bits & 0x7f) == 0x7f) continue;
      EXPECT_EQ(code_of(bf16(static_cast<float>(code) * scale), multiplier), code.bits) << magnitude;
    }
  }
}

TEST(Fp8Runs, MagnitudesOfPartsBecomeTheMultiplierOfTheWhole) {
  std::vector<bf16> x = values_of_runs();
  x[777] = bf16(-300.f);
  std::vector<float> found(2);
  for (std::size_t at = 0; at < x.size(); at += 10'000) host::find_magnitude({}, found.data(), x.data() + at, 10'000);
  EXPECT_EQ(found[0], 300.f);
  found[1] = std::numeric_limits<float>::infinity();
  host::fp8_multipliers({}, found.data(), 2);
  EXPECT_EQ(found[0], static_cast<float>(448.0 / 300));
  EXPECT_TRUE(std::isnan(found[1]));
}

}  // namespace
}  // namespace tessera::kernels::testing::fp8_runs_test
