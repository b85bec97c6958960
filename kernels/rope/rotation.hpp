// The rotation of one pair, for one float and for sixteen lanes, on host and GPU.
#pragma once
#include "kernels/arithmetic.hpp"

namespace tessera::kernels {

/// (a, b) turned by the angle of cos and sin; with -sin, turned back.
template <class F>
TESSERA_BOTH TESSERA_INLINE void rotate_pair(F& a, F& b, const F& cos, const F& sin) {
  using A = Arithmetic<F>;
  const F x = a, y = b;
  a = A::fma(x, cos, -(y * sin));
  b = A::fma(y, cos, x * sin);
}

}  // namespace tessera::kernels
