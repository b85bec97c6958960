// Normal numbers from a counter. Logarithm, sine and cosine are our own fixed sequences of fp32 operations, so that initial weights have
// the same bits with every compiler, C library and vector width.
#include "kernels/elementwise/elementwise.hpp"
#include "kernels/elementwise/philox.hpp"
#include "kernels/exp.hpp"
#include "kernels/parallel.hpp"

namespace tessera::kernels {
namespace host {
namespace {

using Words = std::array<std::uint32_t, lanes>;

struct SinCos {
  f32x16 sin, cos;
};

/// Sine and cosine of 2 pi u / 2^32. Quarter turns come off exactly in integers; what is left is at most an eighth of a turn.
SinCos sin_cos_of_turns(u32x16 u) {
  u32x16 quarter = (u + 0x20000000u) >> 30;
  i32x16 rest = std::bit_cast<i32x16>(u - (quarter << 30));
  f32x16 t = __builtin_convertvector(rest, f32x16) * 0x1.921fb6p-30f, z = t * t;  // pi / 2^31
  f32x16 s = fma(fma(splat(-1.958763909873762e-4f), z, splat(8.33274710466453e-3f)), z, splat(-1.6666664656312208e-1f));
  f32x16 sin = fma(s * z, t, t);
  f32x16 c = fma(fma(splat(2.454768977246003e-5f), z, splat(-1.388830186756237e-3f)), z, splat(4.166666465348879e-2f));
  f32x16 cos = fma(c * z, z, fma(z, splat(-0.5f), splat(1.0f)));
  f32x16 turned_sin = (quarter & 1u) != 0u ? cos : sin, turned_cos = (quarter & 1u) != 0u ? sin : cos;
  return {.sin = (quarter & 2u) != 0u ? -turned_sin : turned_sin, .cos = ((quarter + 1u) & 2u) != 0u ? -turned_cos : turned_cos};
}

/// Box and Muller (1958): two uniform words to two normals.
void box_muller(float* first, float* second, const Words& radius_words, const Words& angle_words, float std) {
  u32x16 a = std::bit_cast<u32x16>(radius_words);
  f32x16 uniform = fma(__builtin_convertvector(a, f32x16), splat(0x1p-32f), splat(0x1p-33f));  // in (0, 1]
  f32x16 radius = sqrt(log_of_normal(uniform) * -2.0f) * std;
  SinCos angle = sin_cos_of_turns(std::bit_cast<u32x16>(angle_words));
  store(first, radius * angle.cos, Whole{});
  store(second, radius * angle.sin, Whole{});
}

/// The normals of sixteen counters: element 4 c + k of the stream is value[k][c - first].
void normals_of_counters(float (&value)[4][lanes], std::uint64_t first, float std, std::uint64_t seed, std::uint64_t stream) {
  Words counter[4];
  for (int i = 0; i < lanes; ++i) {
    std::uint64_t c = first + static_cast<std::uint64_t>(i);
    counter[0][i] = static_cast<std::uint32_t>(c);
    counter[1][i] = static_cast<std::uint32_t>(c >> 32);
    counter[2][i] = static_cast<std::uint32_t>(stream);
    counter[3][i] = static_cast<std::uint32_t>(stream >> 32);
  }
  philox4x32<lanes>(counter, static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32));
  box_muller(value[0], value[1], counter[0], counter[1], std);
  box_muller(value[2], value[3], counter[2], counter[3], std);
}

}  // namespace

void normal(const Context&, float* out, std::int64_t n, float std, std::uint64_t seed, std::uint64_t stream, std::uint64_t first) {
  parallel_ranges(n, 4096, [&](std::int64_t begin, std::int64_t end) {
    std::uint64_t element = first + static_cast<std::uint64_t>(begin), last = first + static_cast<std::uint64_t>(end);
    float value[4][lanes];
    float* next = out + begin;
    while (element < last) {
      std::uint64_t counter = element / 4, stop = std::min(last, (counter + lanes) * 4);
      normals_of_counters(value, counter, std, seed, stream);
      for (; element < stop; ++element) *next++ = value[element % 4][element / 4 - counter];
    }
  });
}

}  // namespace host

std::uint64_t counter_random(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  // Another key than normal(), so that the two never draw the same words.
  seed ^= 0x6a09e667f3bcc908u;
  std::array<std::uint32_t, 1> counter[4] = {{static_cast<std::uint32_t>(index)},
                                             {static_cast<std::uint32_t>(index >> 32)},
                                             {static_cast<std::uint32_t>(stream)},
                                             {static_cast<std::uint32_t>(stream >> 32)}};
  philox4x32<1>(counter, static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32));
  return static_cast<std::uint64_t>(counter[1][0]) << 32 | counter[0][0];
}

}  // namespace tessera::kernels
