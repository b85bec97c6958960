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

/// The row of a table of rotations that row m of sequences of T has: its position, counted from the begin of the sequence, or of the
/// document that begins at document_starts[m] of it.
TESSERA_BOTH TESSERA_INLINE std::int64_t position_of(std::int64_t m, std::int64_t T, const std::int32_t* document_starts) {
  return m % T - (document_starts ? document_starts[m] : 0);
}

/// Features of a head that are turned, of the shape of an op.
template <class P>
TESSERA_BOTH TESSERA_INLINE std::int64_t turned_features(const P& p) {
  return p.rotated == 0 ? p.D : p.rotated;
}
/// A head may have so many of them.
template <class P>
bool can_turn(const P& p) {
  return p.D > 0 && p.D % 2 == 0 && p.rotated >= 0 && p.rotated % 2 == 0 && p.rotated <= p.D;
}

}  // namespace tessera::kernels
