// Normal numbers from a counter, sixteen counters at a time.
#include <algorithm>

#include "kernels/elementwise/box_muller.hpp"
#include "kernels/elementwise/elementwise.hpp"
#include "kernels/elementwise/philox.hpp"
#include "kernels/parallel.hpp"
#include "kernels/vector/vector.hpp"

namespace tessera::kernels {

namespace host {
namespace {

TESSERA_INLINE f32x16::Part zip(f32x16::Part a, f32x16::Part b, auto upper) {
  constexpr int n = f32x16::part_size, from = upper * n / 2;
  return [&]<int... i>(std::integer_sequence<int, i...>) __attribute__((always_inline)) {
    return __builtin_shuffle(a, b, i32x16::Part{(from + i / 2 + i % 2 * n)...});
  }
  (std::make_integer_sequence<int, n>{});
}

/// a[0] b[0] c[0] d[0] a[1] ...
TESSERA_INLINE void store_interleaved(float* out, const f32x16& a, const f32x16& b, const f32x16& c, const f32x16& d) {
  unrolled<parts>([&](auto k) {
    unrolled<4>([&](auto quarter) {
      std::integral_constant<int, quarter / 2> outer;
      std::integral_constant<int, quarter % 2> inner;
      f32x16::Part v = zip(zip(a.part[k], c.part[k], outer), zip(b.part[k], d.part[k], outer), inner);
      std::memcpy(out + (4 * k + quarter) * f32x16::part_size, &v, sizeof v);
    });
  });
}

/// The normals of sixteen counters, in the order of the stream: elements 4 first .. 4 first + 63.
void normals_of_counters(float* out, std::uint64_t first, float std, std::uint64_t seed, std::uint64_t stream) {
  u32x16 low = bits_as<u32x16>(lane_indexes()) + static_cast<std::uint32_t>(first);
  u32x16 carry = bits_as<u32x16>(low < static_cast<std::uint32_t>(first));  // all ones, that is -1, where the low word wrapped
  u32x16 counter[4] = {low, static_cast<std::uint32_t>(first >> 32) - carry, static_cast<std::uint32_t>(stream),
                       static_cast<std::uint32_t>(stream >> 32)};
  philox4x32(counter, static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32));
  auto a = box_muller<f32x16>(counter[0], counter[1], std), b = box_muller<f32x16>(counter[2], counter[3], std);
  store_interleaved(out, a.first, a.second, b.first, b.second);
}

}  // namespace

void normal(const Context&, float* out, std::int64_t n, float std, std::uint64_t seed, std::uint64_t stream, std::uint64_t first) {
  parallel_ranges(n, 4096, [&](std::int64_t begin, std::int64_t end) {
    std::uint64_t element = first + static_cast<std::uint64_t>(begin), last = first + static_cast<std::uint64_t>(end);
    float* next = out + begin;
    while (element < last) {
      std::uint64_t counter = element / 4, skip = element % 4, count = std::min<std::uint64_t>(last - element, 4 * lanes - skip);
      if (count == 4 * lanes) {
        normals_of_counters(next, counter, std, seed, stream);
      } else {
        float value[4 * lanes];
        normals_of_counters(value, counter, std, seed, stream);
        std::copy_n(value + skip, count, next);
      }
      next += count;
      element += count;
    }
  });
}

}  // namespace host

std::uint64_t counter_random(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  // Another key than normal(), so that the two never draw the same words.
  seed ^= 0x6a09e667f3bcc908u;
  std::uint32_t counter[4] = {static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
                              static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)};
  philox4x32(counter, static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32));
  return static_cast<std::uint64_t>(counter[1]) << 32 | counter[0];
}

}  // namespace tessera::kernels
