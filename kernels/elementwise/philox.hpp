// Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
#pragma once
#include <array>
#include <cstdint>

#include "base/types.hpp"

namespace tessera::kernels {

/// Four words for a counter and a key. Lanes computes that many counters at once: word w of counter i is counter[w][i].
template <int Lanes>
TESSERA_BOTH inline void philox4x32(std::array<std::uint32_t, Lanes> (&counter)[4], std::uint32_t key0, std::uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < Lanes; ++i) {
      std::uint64_t a = std::uint64_t{0xD2511F53u} * counter[0][i], b = std::uint64_t{0xCD9E8D57u} * counter[2][i];
      counter[0][i] = static_cast<std::uint32_t>(b >> 32) ^ counter[1][i] ^ key0;
      counter[1][i] = static_cast<std::uint32_t>(b);
      counter[2][i] = static_cast<std::uint32_t>(a >> 32) ^ counter[3][i] ^ key1;
      counter[3][i] = static_cast<std::uint32_t>(a);
    }
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
}

}  // namespace tessera::kernels
