// Sixteen vectors as a square, turned in registers.
#pragma once
#include <utility>

#include "kernels/vector/memory.hpp"

namespace tessera::kernels {

/// Transposes a square of registers in place: rounds that exchange halves, quarters, ... of pairs of rows.
template <int distance = f32x16::part_size / 2>
TESSERA_INLINE void transpose_square(f32x16::Part (&v)[f32x16::part_size]) {
  constexpr int n = f32x16::part_size;
  [&]<int... lane>(std::integer_sequence<int, lane...>) {
    // The first row keeps its lanes without bit `distance` and takes the second row's; the second row gets what is left.
    const i32x16::Part low{(lane & distance ? n + lane - distance : lane)...}, high{(lane & distance ? n + lane : lane + distance)...};
    unrolled<n>([&](auto i) {
      if constexpr ((i & distance) == 0) {
        f32x16::Part a = v[i], b = v[i + distance];
        v[i] = __builtin_shuffle(a, b, low);
        v[i + distance] = __builtin_shuffle(a, b, high);
      }
    });
  }
  (std::make_integer_sequence<int, n>{});
  if constexpr (distance > 1) transpose_square<distance / 2>(v);
}

/// Transposes 16 vectors in place, square by square.
TESSERA_INLINE void transpose(f32x16 (&v)[lanes]) {
  constexpr int n = f32x16::part_size;
  unrolled<parts>([&](auto i) {
    unrolled<parts>([&](auto j) {
      if constexpr (i <= j) {
        f32x16::Part upper[n], lower[n];
        unrolled<n>([&](auto r) { upper[r] = v[i * n + r].part[j], lower[r] = v[j * n + r].part[i]; });
        transpose_square(upper);
        if constexpr (i < j) transpose_square(lower);
        unrolled<n>([&](auto r) {
          v[j * n + r].part[i] = upper[r];
          if constexpr (i < j) v[i * n + r].part[j] = lower[r];
        });
      }
    });
  });
}

}  // namespace tessera::kernels
