// Pairs of bf16, whose products are summed in fp32. A pair is a word: its first number in the lower half.
#pragma once
#include <array>

#include "kernels/vector/memory.hpp"

namespace tessera::kernels {

using Pair = std::uint32_t;
using PairVector = u32x16;

/// Sixteen pairs, or the first `count` of them and zeros, from memory of pairs or of pairs of bf16.
template <class Count = Whole>
TESSERA_INLINE PairVector load_pairs(const void* p, Count count = {}) {
  return bits_as<PairVector>(load(static_cast<const float*>(p), count));
}
TESSERA_INLINE void store_pairs(void* p, const PairVector& x) { store(static_cast<float*>(p), bits_as<f32x16>(x)); }

/// sum + a.second * b.second + a.first * b.first in each lane, both additions rounded to nearest even: what VDPBF16PS computes, which is
/// used where it is there. Bits are the same on every target but for subnormal numbers, which that takes for zero and makes zero.
TESSERA_INLINE f32x16 dot_pairs(const PairVector& a, const PairVector& b, const f32x16& sum) {
#if defined(TESSERA_AVX512) && defined(__AVX512BF16__)
  f32x16 r;
  r.part[0] = static_cast<f32x16::Part>(_mm512_dpbf16_ps(sum.part[0], std::bit_cast<__m512bh>(a), std::bit_cast<__m512bh>(b)));
  return r;
#else
  const auto first = [](const PairVector& x) { return bits_as<f32x16>(x << 16); };
  const auto second = [](const PairVector& x) { return bits_as<f32x16>(x & 0xffff0000u); };
  return fma(first(a), first(b), fma(second(a), second(b), sum));
#endif
}

#ifdef TESSERA_AVX512
/// Places of 0, 16, 1, 17, ...: what interleaves the two halves of a vector of bf16, or of two vectors of which each has one half.
template <int second>
inline constexpr auto interleaved = [] {
  std::array<std::uint16_t, 2 * lanes> r{};
  for (std::size_t i = 0; i < r.size(); ++i) r[i] = static_cast<std::uint16_t>(i / 2 + i % 2 * second);
  return std::bit_cast<std::array<std::int64_t, 8>>(r);
}();
template <int second>
TESSERA_INLINE __m512i interleaving() {
  return _mm512_loadu_si512(interleaved<second>.data());
}
#endif

/// Lane by lane (first, second), rounded to nearest even; numbers that are subnormal may become zero.
TESSERA_INLINE PairVector pairs_of(const f32x16& first, const f32x16& second) {
#if defined(TESSERA_AVX512) && defined(__AVX512BF16__)
  const auto halves = std::bit_cast<__m512i>(_mm512_cvtne2ps_pbh(second.part[0], first.part[0]));
  return std::bit_cast<PairVector>(_mm512_permutexvar_epi16(interleaving<lanes>(), halves));
#else
  return (round_to_bf16(first) >> 16) | (round_to_bf16(second) & 0xffff0000u);
#endif
}

/// Lane by lane (first, second) of rows of bf16, of `count` numbers each.
template <class Count = Whole>
TESSERA_INLINE PairVector load_rows_as_pairs(const bf16* first, const bf16* second, Count count = {}) {
#ifdef TESSERA_AVX512
  const auto half = [&](const bf16* p) {
    if constexpr (is_whole<Count>) return _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    if constexpr (!is_whole<Count>) return _mm512_castsi256_si512(_mm256_maskz_loadu_epi16(first_lanes(count), p));
  };
  return std::bit_cast<PairVector>(_mm512_permutex2var_epi16(half(first), interleaving<2 * lanes>(), half(second)));
#else
  const auto bits = [&](const bf16* p) { return bits_as<PairVector>(load(p, count)); };
  return (bits(first) >> 16) | bits(second);
#endif
}

/// Whether products of pairs are faster than those of the same numbers in fp32, on the processor that runs this: a build without the
/// instruction says no on all of them. AMD's take as many in a cycle as fp32 multiply-adds; Intel's a quarter, half the products.
inline bool pairs_are_faster() {
#ifdef __AVX512BF16__
  return !__builtin_cpu_is("intel");
#else
  return false;
#endif
}

}  // namespace tessera::kernels
