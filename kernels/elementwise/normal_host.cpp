// Normal numbers from a counter, sixteen counters at a time.
#include "kernels/elementwise/box_muller.hpp"
#include "kernels/elementwise/elementwise.hpp"
#include "kernels/elementwise/philox.hpp"
#include "kernels/parallel.hpp"
#include "kernels/vector.hpp"

namespace tessera::kernels {
namespace host {
namespace {

using Words = std::array<std::uint32_t, lanes>;

/// The pairs of sixteen counters.
void store_normals(float* first, float* second, const Words& radius_words, const Words& angle_words, float std) {
  auto normals = box_muller<f32x16>(std::bit_cast<u32x16>(radius_words), std::bit_cast<u32x16>(angle_words), std);
  store(first, normals.first, Whole{});
  store(second, normals.second, Whole{});
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
  store_normals(value[0], value[1], counter[0], counter[1], std);
  store_normals(value[2], value[3], counter[2], counter[3], std);
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
