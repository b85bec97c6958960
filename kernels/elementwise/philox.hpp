// Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
#pragma once
#include <cstdint>

#include "kernels/arithmetic.hpp"

namespace tessera::kernels {

/// Four words for a counter and a key. Word is uint32, or a vector of them that multiply_wide knows, for many counters at once.
template <class Word>
TESSERA_BOTH TESSERA_INLINE void philox4x32(Word (&counter)[4], std::uint32_t key0, std::uint32_t key1) {
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
