// Sums of squares of a tensor's numbers that no split of them changes, at nearly the speed of plain ones. Each square, exact in fp64, is
// rounded to a multiple of 2^-80 as FixedSum::add rounds it; of up to 256 squares below 32 the sum of what is above 2^-40 and the sum of
// what is below are exact in fp64 each, in any order.
#pragma once
#include "kernels/fixed/fixed_sum.hpp"

namespace tessera::kernels {

/// Squares from here on are added one by one.
inline constexpr double large_square = 32;
inline constexpr int squares_at_once = 256;

/// x on the grids of both sums; F is double, or lanes of them.
template <class F>
struct SplitSquare {
  F high, low;
};
template <class F>
TESSERA_BOTH inline SplitSquare<F> split_square(F x) {
  const F high = (x + 0x1.8p12) - 0x1.8p12;
  return {high, ((x - high) + 0x1.8p-28) - 0x1.8p-28};
}

/// The sum of what is above, in units of 2^-40, and below, in units of 2^-80.
inline FixedSum sum_of_parts(__int128 high, __int128 low) {
  const __int128 sum = (high << 40) + low;
  const bool negative = sum < 0;
  auto magnitude = static_cast<unsigned __int128>(negative ? -sum : sum);
  FixedSum parts;
  for (std::int64_t& limb : parts.limb) {
    limb = static_cast<std::int64_t>(static_cast<std::uint32_t>(magnitude)) * (negative ? -1 : 1);
    magnitude >>= 32;
  }
  return parts;
}

}  // namespace tessera::kernels
