// Fixed point: lengths, values, and sums at the edge of what fits.
#pragma once
#include "kernels/fixed/fixed.hpp"
#include "same_bits.hpp"

namespace tessera::kernels::testing {

/// Less than a vector, whole ones, remainders, several blocks of threads.
inline const std::int64_t fixed_lengths[] = {1, 2, 7, 8, 77, 1013, 2048, 4096, 8193};

/// Sums with more digits than fp32 has.
inline std::vector<std::int64_t> fixed_values(std::int64_t n, unsigned seed) {
  std::vector<std::int64_t> v;
  for (float x : random_values<float>(n, seed, 1000)) v.push_back(std::llrint(static_cast<double>(x) * 0x1p40) * 16 + 5);
  return v;
}

/// Small values. Every eighth is a tie between two multiples of 2^-44; every ninth has a size of its own.
inline std::vector<float> fixed_terms(std::int64_t n) {
  auto x = random_values<float>(n, 1, 1e-6f);
  for (std::int64_t i = 0; i < n; ++i) {
    float& value = x[static_cast<std::size_t>(i)];
    if (i % 8 == 0) value = static_cast<float>(i - 20) * 0x1p-44f + 0x1p-45f;
    if (i % 9 == 0) value = std::ldexp(value, static_cast<int>(i % 60) - 30);
  }
  return x;
}

/// A term, the sum that it is added to, and whether that must raise the flag at a limit.
struct FixedAccumulateCase {
  float x;
  std::int64_t sum;
  bool flagged;
};
/// The bits that it must raise.
inline std::int32_t faults_of(const FixedAccumulateCase& c) {
  return !c.flagged ? 0 : std::isfinite(c.x) ? fixed_out_of_range : fixed_not_finite;
}
inline std::vector<FixedAccumulateCase> fixed_accumulate_cases(std::int64_t limit) {
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const float largest = std::nextafter(0x1p18f, 0.0f);
  const bool too_large = static_cast<double>(largest) * 0x1p44 >= static_cast<double>(limit);
  std::vector<FixedAccumulateCase> cases = {
      {infinity, 0, true}, {-infinity, 0, true}, {nan, 0, true},          {0x1p18f, 0, true},
      {-0x1p18f, 0, true}, {1e30f, 0, true},     {largest, 0, too_large}, {-largest, 0, too_large},
      {0x1p16f, 0, false}, {0, 0, false},        {1e-40f, 0, false},      {0x1p17f, std::numeric_limits<std::int64_t>::max(), true}};
  for (std::int64_t sign : {1, -1}) {
    const float unit = static_cast<float>(sign) * 0x1p-44f;
    cases.push_back({0, sign * (limit - 1), false});
    cases.push_back({0, sign * limit, true});
    cases.push_back({unit, sign * (limit - 2), false});
    cases.push_back({unit, sign * (limit - 1), true});
  }
  return cases;
}

/// Two sums, and whether theirs must raise the flag at fixed_limit. Some wrap.
struct FixedAddCase {
  std::int64_t a, b;
  bool flagged;
};
inline std::vector<FixedAddCase> fixed_add_cases() {
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max(), least = std::numeric_limits<std::int64_t>::min();
  std::vector<FixedAddCase> cases = {{1, 2, false},     {most, most, true}, {least, least, true},  {most, least, false},
                                     {least, -1, true}, {least, 0, true},   {0, fixed_limit, true}};
  for (std::int64_t sign : {1, -1}) {
    cases.push_back({sign * (fixed_limit - 1), 0, false});
    cases.push_back({sign * (fixed_limit - 2), sign, false});
    cases.push_back({sign * (fixed_limit - 1), sign, true});
    cases.push_back({sign * (fixed_limit - 1), sign * (fixed_limit - 1), true});
    cases.push_back({sign * (fixed_limit + 5), sign * (fixed_limit + 5), true});
  }
  return cases;
}

}  // namespace tessera::kernels::testing
