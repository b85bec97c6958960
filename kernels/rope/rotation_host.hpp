// Rows of rope_table on the host.
#pragma once
#include <algorithm>

#include "kernels/rope/rotation.hpp"
#include "kernels/vector/vector.hpp"

namespace tessera::kernels::host {

/// Sixteen pairs (cos, sin) of the table as two vectors.
struct Rotation {
  f32x16 cos, sin;
};
template <class Count>
TESSERA_INLINE Rotation load_rotation(const float* pairs, Count n) {
  if constexpr (is_whole<Count>) {
    f32x16 a = load(pairs), b = load(pairs + lanes);
    return {.cos = every_other<0>(a, b), .sin = every_other<1>(a, b)};
  } else {
    float whole[2 * lanes] = {};
    std::copy_n(pairs, 2 * n, whole);
    return load_rotation(whole, Whole{});
  }
}

}  // namespace tessera::kernels::host
