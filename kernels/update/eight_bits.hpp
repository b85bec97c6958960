// The dynamic 8-bit code of bitsandbytes (Dettmers et al., arXiv:2110.02861): numbers from -1 to 1 as 7 decades, each cut twice as finely
// as the one below it. A code is the nearest of 256 values, the lower one of two that are as near.
#pragma once
#include <array>
#include <cstdint>

#include "kernels/arithmetic.hpp"
#include "kernels/update/state_type.hpp"

namespace tessera::kernels {

/// The values of a code in ascending order: 0, 1, and for decade i the middles of 2^i cells (unsigned: 2^(i+1)) of [0.1, 1] x 10^(i-6),
/// with both signs where it has signs.
struct EightBitMap {
  std::array<float, 256> value{};
  int zero = 0;  ///< code of 0
};
constexpr EightBitMap eight_bit_map(bool has_signs) {
  EightBitMap map;
  map.zero = has_signs ? 127 : 0;
  int code = map.zero;
  double power = 1e-6;
  for (int i = 0; i < 7; ++i, power *= 10) {
    const int cells = 1 << (has_signs ? i : i + 1);
    for (int j = 0; j < cells; ++j) {
      const auto x = static_cast<float>(power * (0.1 + 0.9 * (j + 0.5) / cells));
      ++code;
      map.value[static_cast<std::size_t>(code)] = x;
      if (has_signs) map.value[static_cast<std::size_t>(2 * map.zero - code)] = -x;
    }
  }
  map.value[255] = 1;
  return map;
}

/// Finds the nearest value of a number from 0 to 1 by its first 16 bits: no two borders between values lie in one such bucket. A row has
/// the code of the values below the bucket's border, and the last 16 bits of that, or more than 16 bits hold where it has none.
struct EightBitSearch {
  static constexpr std::uint32_t first = 0x3400, last = 0x3f80;  ///< 2^-23, below which all is 0, and 1
  static constexpr std::uint32_t none = 0x1ffff;
  std::array<std::uint32_t, last - first + 1> row{};
};
constexpr EightBitSearch eight_bit_search(const EightBitMap& map) {
  EightBitSearch search;
  int code = map.zero;
  for (std::uint32_t bucket = EightBitSearch::first; bucket <= EightBitSearch::last; ++bucket) {
    std::uint32_t& row = search.row[bucket - EightBitSearch::first];
    row = static_cast<std::uint32_t>(code) << 17 | EightBitSearch::none;
    if (code == 255) continue;
    // Between neighbours, as the largest fp32 number that is nearer to the lower one, or as near.
    const double low = static_cast<double>(map.value[static_cast<std::size_t>(code)]),
                 high = static_cast<double>(map.value[static_cast<std::size_t>(code) + 1]);
    const double border = (low + high) / 2;
    auto nearest = static_cast<float>(border);
    std::uint32_t bits = std::bit_cast<std::uint32_t>(nearest);
    if (static_cast<double>(nearest) > border) --bits;
    if (bits >> 16 != bucket) continue;
    row = static_cast<std::uint32_t>(code) << 17 | (bits & 0xffff);
    ++code;
  }
  return search;
}

/// Of a block: what its numbers are divided by, the one of the largest magnitude with its sign, so that it is kept whole. Of blocks without
/// numbers 0.
TESSERA_BOTH TESSERA_INLINE float block_scale(float least, float most) { return most >= -least ? most : least; }

TESSERA_BOTH TESSERA_INLINE std::uint32_t encode_eight_bits(const std::uint32_t* rows, int zero, float x, float scale) {
  const float ratio = scale == 0 ? 0.0f : x / scale;
  const auto bits = std::bit_cast<std::uint32_t>(ratio), magnitude = bits & 0x7fffffffu;
  const std::uint32_t bucket = magnitude >> 16;
  if (bucket < EightBitSearch::first) return static_cast<std::uint32_t>(zero);
  const std::uint32_t row = rows[(bucket > EightBitSearch::last ? EightBitSearch::last : bucket) - EightBitSearch::first];
  const std::uint32_t code = (row >> 17) + ((magnitude & 0xffffu) > (row & 0x1ffffu));
  // Below 0 there is no -1: the last value stands for it.
  return bits >> 31 ? (code == 255 ? 0u : static_cast<std::uint32_t>(2 * zero) - code) : code;
}
/// Adding 0 makes 0 of -0.
TESSERA_BOTH TESSERA_INLINE float decode_eight_bits(const float* values, std::uint32_t code, float scale) {
  return values[code] * scale + 0.0f;
}

inline constexpr EightBitMap signed_eight_bits = eight_bit_map(true), unsigned_eight_bits = eight_bit_map(false);
inline constexpr EightBitSearch signed_search = eight_bit_search(signed_eight_bits),
                                unsigned_search = eight_bit_search(unsigned_eight_bits);

}  // namespace tessera::kernels
