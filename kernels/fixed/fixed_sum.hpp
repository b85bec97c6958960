// One exact sum of doubles, as host code and device code hold it.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>

#include "base/types.hpp"

namespace tessera::kernels {

/// A sum of doubles as 4 limbs of 32 bits held in int64 with headroom: limb i weighs 2^(32 i - 80). Adding two FixedSums, limb by limb, in
/// any order (by MPI or NCCL as int64 too) gives the same value. Range +-2^46, resolution 2^-80; up to 2^30 additions.
struct FixedSum {
  std::int64_t limb[4] = {0, 0, 0, 0};
  /// Not finite or too large: returns false and adds nothing.
  TESSERA_BOTH bool add(double x);
  TESSERA_BOTH void add(const FixedSum& other) {
    for (int i = 0; i < 4; ++i) limb[i] += other.limb[i];
  }
  TESSERA_BOTH double value() const;

 private:
  /// |x| * 2^80, exact or rounded once (to nearest even); below 2^126.
  TESSERA_BOTH static unsigned __int128 scaled_magnitude(double x);
};

TESSERA_BOTH inline unsigned __int128 FixedSum::scaled_magnitude(double x) {
  const auto bits = std::bit_cast<std::uint64_t>(x);
  const int biased = static_cast<int>(bits >> 52 & 0x7ff);
  const std::uint64_t mantissa = (bits & ((std::uint64_t{1} << 52) - 1)) | (biased ? std::uint64_t{1} << 52 : 0);
  const int shift = (biased ? biased : 1) - 1075 + 80;
  if (shift >= 0) return static_cast<unsigned __int128>(mantissa) << shift;
  if (shift < -54) return 0;
  const std::uint64_t quotient = mantissa >> -shift, rest = mantissa - (quotient << -shift), half = std::uint64_t{1} << (-shift - 1);
  return quotient + (rest > half || (rest == half && (quotient & 1)));
}

TESSERA_BOTH inline bool FixedSum::add(double x) {
  if (!(fabs(x) < 0x1p46)) return false;  // NaN too
  unsigned __int128 magnitude = scaled_magnitude(x);
  const std::int64_t sign = x < 0 ? -1 : 1;
  for (std::int64_t& l : limb) {
    l += sign * static_cast<std::int64_t>(static_cast<std::uint32_t>(magnitude));
    magnitude >>= 32;
  }
  return true;
}

TESSERA_BOTH inline double FixedSum::value() const {
  // Carries first: then (high, low) is the one two's complement number, rounded once below.
  const __int128 low_limbs = static_cast<__int128>(limb[0]) + (static_cast<__int128>(limb[1]) << 32);
  __int128 high = static_cast<__int128>(limb[2]) + (static_cast<__int128>(limb[3]) << 32) + (low_limbs >> 64);
  auto low = static_cast<std::uint64_t>(low_limbs);
  const bool negative = high < 0;
  if (negative) {
    low = ~low + 1;
    high = ~high + (low == 0);
  }
  // Beyond 126 bits the low word is far below the last digit: one sticky bit stands for it.
  const double magnitude = high >> 62 == 0 ? ldexp(static_cast<double>(static_cast<unsigned __int128>(high) << 64 | low), -80)
                                           : ldexp(static_cast<double>(high << 1 | (low != 0)), -17);
  return negative ? -magnitude : magnitude;
}

}  // namespace tessera::kernels
