// Products of bf16 by AMX, Intel's matrix registers: eight tiles of sixteen rows of sixteen words, which a thread owns while a TileScope
// lives. Intel, Architecture Instruction Set Extensions Programming Reference, chapter 3 (TDPBF16PS). A build without the instructions
// computes the same in ordinary registers, for tests.
#pragma once
#include <array>
#include <cstdint>
#include <cstring>

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__linux__)
#define TESSERA_AMX
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "kernels/vector/pairs.hpp"

namespace tessera::kernels::amx {

inline constexpr std::int64_t rows = 16, words = 16;  // of a tile

/// Whether this build has the instructions, and the processor and the system let this process use them: Linux asks for each process.
inline bool is_there() {
#ifdef TESSERA_AMX
  constexpr long ask = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  static const bool yes =
      __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-bf16") && ::syscall(SYS_arch_prctl, ask, tile_data) == 0;
  return yes;
#else
  return false;
#endif
}

/// Whether a TileScope may be opened: with the instructions, or where a build computes what they would.
inline bool can_compute() {
#ifdef TESSERA_AMX
  return is_there();
#else
  return true;
#endif
}

#ifdef TESSERA_AMX
struct alignas(64) TileShapes {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t bytes_of_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows_of_tile[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileShapes) == 64);
#else
using Tile = std::array<std::array<std::uint32_t, words>, rows>;
inline thread_local std::array<Tile, 8> tiles;
#endif

inline thread_local bool in_scope = false;

/// Tiles are this thread's, and products of pairs use them, until its end; nothing where `wanted` is false.
class TileScope {
 public:
  explicit TileScope(bool wanted) {
    in_scope = wanted;
#ifdef TESSERA_AMX
    static constexpr TileShapes shapes;
    if (wanted) asm volatile("ldtilecfg %0" ::"m"(shapes));
#endif
  }
  ~TileScope() {
#ifdef TESSERA_AMX
    if (in_scope) asm volatile("tilerelease");
#endif
    in_scope = false;
  }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;
};

/// Sixteen rows of sixteen words, which lie `stride` words apart.
template <int tile>
TESSERA_INLINE void load_tile(const void* from, std::int64_t stride) {
#ifdef TESSERA_AMX
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(4 * stride), "i"(tile) : "memory");
#else
  for (std::int64_t r = 0; r < rows; ++r)
    std::memcpy(tiles[tile][static_cast<std::size_t>(r)].data(), static_cast<const std::uint32_t*>(from) + r * stride, 4 * words);
#endif
}

template <int tile>
TESSERA_INLINE void store_tile(void* to) {
#ifdef TESSERA_AMX
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(4 * words), "i"(tile) : "memory");
#else
  std::memcpy(to, tiles[tile].data(), sizeof(Tile));
#endif
}

/// c += a b: row m of c, sixteen numbers of fp32, gets the sums over k of the products of pair k of row m of a and the pairs of row k of b.
/// Firsts and seconds are summed apart, each by multiply-adds that round to nearest even, and then together; subnormal numbers count as 0.
template <int c, int a, int b>
TESSERA_INLINE void multiply_tiles() {
#ifdef TESSERA_AMX
  asm volatile("tdpbf16ps %%tmm%c0, %%tmm%c1, %%tmm%c2" ::"i"(b), "i"(a), "i"(c));
#else
  const auto flushed = [](const f32x16& x) {
    constexpr float least = 0x1p-126f;
    return select((x > -least) & (x < least), f32x16{}, x);
  };
  const auto firsts = [&](const PairVector& x) { return flushed(bits_as<f32x16>(x << 16)); };
  const auto seconds = [&](const PairVector& x) { return flushed(bits_as<f32x16>(x & 0xffff0000u)); };
  for (std::size_t m = 0; m < static_cast<std::size_t>(rows); ++m) {
    f32x16 first{}, second{};
    for (std::size_t k = 0; k < static_cast<std::size_t>(words); ++k) {
      const PairVector of_a = PairVector{} + tiles[a][m][k], of_b = load_pairs(tiles[b][k].data());
      first = flushed(fma(firsts(of_a), firsts(of_b), first));
      second = flushed(fma(seconds(of_a), seconds(of_b), second));
    }
    auto* sum = reinterpret_cast<float*>(tiles[c][m].data());
    store(sum, flushed(flushed(load(sum)) + flushed(first + second)));
  }
#endif
}

}  // namespace tessera::kernels::amx
