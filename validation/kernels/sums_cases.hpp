// Sums of squares: what both backends add up, and what they must say of it.
#pragma once
#include "kernels/sums/sums.hpp"
#include "same_bits.hpp"

namespace tessera::kernels::testing {

/// Blocks of values: none, about what a warp and a block of threads take at once, more.
inline const std::int64_t sums_cases[] = {0, 1, 7, 8, 9, 63, 64, 65, 77, 300, 1013};

/// Values that no sum may take, and where they are among 20 blocks.
struct BadSumsCase {
  float value;
  std::size_t at;
  std::vector<float> values() const {
    auto x = random_values<float>(20 * sum_block, 2);
    x[at] = value;
    return x;
  }
};
inline std::vector<BadSumsCase> bad_sums_cases() {
  std::vector<BadSumsCase> cases;
  for (float value : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 1e30f, 0x1p23f})
    for (std::size_t at : {0u, 255u, 256u, 700u, 5000u}) cases.push_back({value, at});
  return cases;
}

struct SumsResult {
  FixedSum sum;
  std::int32_t not_finite = 0;
  std::string bits() const { return hash_bytes(&sum, sizeof sum).hex() + std::to_string(not_finite); }
};

/// In fixed point, `factor` times as much: with more digits than fp32 has where that is odd.
inline std::vector<std::int64_t> to_fixed(const std::vector<float>& x, std::int64_t factor = 1) {
  std::vector<std::int64_t> f;
  for (float v : x) f.push_back(std::llrint(std::ldexp(static_cast<double>(v), 44)) * factor + factor / 2);
  return f;
}

}  // namespace tessera::kernels::testing
