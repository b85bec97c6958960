// Rows of rope_table on the host.
#pragma once
#include <algorithm>

#include "kernels/rope/rotation.hpp"
#include "kernels/vector/vector.hpp"

namespace tessera::kernels::host {

/// Sixteen pairs of neighbours in memory as two vectors.
struct Neighbours {
  f32x16 first, second;
};
template <class T, class Count>
TESSERA_INLINE Neighbours load_neighbours(const T* pairs, Count n) {
  if constexpr (is_whole<Count>) {
    f32x16 a = load(pairs), b = load(pairs + lanes);
    return {.first = every_other<0>(a, b), .second = every_other<1>(a, b)};
  } else {
    T whole[2 * lanes] = {};
    std::copy_n(pairs, 2 * n, whole);
    return load_neighbours(whole, Whole{});
  }
}
template <class T, class Count>
TESSERA_INLINE void store_neighbours(T* pairs, const f32x16& first, const f32x16& second, Count n) {
  float a[lanes], b[lanes], both[2 * lanes];
  store(a, first), store(b, second);
  for (int k = 0; k < lanes; ++k) both[2 * k] = a[k], both[2 * k + 1] = b[k];
  for_vectors(0, 2 * n, [&](std::int64_t i, auto count) { store(pairs + i, load(both + i), count); });
}

/// Sixteen pairs (cos, sin) of the table as two vectors.
struct Rotation {
  f32x16 cos, sin;
};
template <class Count>
TESSERA_INLINE Rotation load_rotation(const float* pairs, Count n) {
  const Neighbours both = load_neighbours(pairs, n);
  return {.cos = both.first, .sin = both.second};
}

}  // namespace tessera::kernels::host
