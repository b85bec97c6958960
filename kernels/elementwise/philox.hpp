// Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
#pragma once
#include <cstdint>

#include "kernels/vector.hpp"

namespace tessera::kernels {

template <class Word>
struct WideProduct {
  Word high, low;
};
TESSERA_INLINE WideProduct<std::uint32_t> multiply_wide(std::uint32_t a, std::uint32_t b) {
  std::uint64_t product = std::uint64_t{a} * b;
  return {static_cast<std::uint32_t>(product >> 32), static_cast<std::uint32_t>(product)};
}
TESSERA_INLINE WideProduct<u32x16> multiply_wide(const u32x16& a, std::uint32_t b) {
  WideProduct<u32x16> r;
#if defined(TESSERA_AVX512)
  __m512i x = std::bit_cast<__m512i>(a), m = _mm512_set1_epi32(static_cast<int>(b));
  __m512i even = _mm512_mul_epu32(x, m), odd = _mm512_mul_epu32(_mm512_srli_epi64(x, 32), m);
  r.high = std::bit_cast<u32x16>(_mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd));
  r.low = std::bit_cast<u32x16>(_mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32)));
#elif defined(TESSERA_AVX2)
  unrolled<parts>([&](auto k) __attribute__((always_inline)) {
    __m256i x = std::bit_cast<__m256i>(a.part[k]), m = _mm256_set1_epi32(static_cast<int>(b));
    __m256i even = _mm256_mul_epu32(x, m), odd = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), m);
    r.high.part[k] = std::bit_cast<u32x16::Part>(_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa));
    r.low.part[k] = std::bit_cast<u32x16::Part>(_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa));
  });
#else
  unrolled<parts>([&](auto k) {
    for (int i = 0; i < u32x16::part_size; ++i) {
      auto product = multiply_wide(a.part[k][i], b);
      r.high.part[k][i] = product.high;
      r.low.part[k][i] = product.low;
    }
  });
#endif
  return r;
}

/// Four words for a counter and a key. Word is uint32, or u32x16 for sixteen counters at once.
template <class Word>
TESSERA_INLINE void philox4x32(Word (&counter)[4], std::uint32_t key0, std::uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    WideProduct<Word> a = multiply_wide(counter[0], 0xD2511F53u), b = multiply_wide(counter[2], 0xCD9E8D57u);
    counter[0] = b.high ^ counter[1] ^ key0;
    counter[1] = b.low;
    counter[2] = a.high ^ counter[3] ^ key1;
    counter[3] = a.low;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
}

}  // namespace tessera::kernels
