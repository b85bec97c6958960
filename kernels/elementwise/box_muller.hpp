// Two uniform words to two normal numbers, for one float or sixteen lanes. Logarithm, sine and cosine are our own fixed sequences of fp32
// operations, so that initial weights have the same bits with every compiler, C library, vector width and backend.
#pragma once
#include "kernels/exp.hpp"

namespace tessera::kernels {

template <class F>
struct SinCos {
  F sin, cos;
};

/// Sine and cosine of 2 pi u / 2^32. Quarter turns come off exactly in integers; what is left is at most an eighth of a turn.
template <class F>
TESSERA_BOTH TESSERA_INLINE SinCos<F> sin_cos_of_turns(typename Arithmetic<F>::Unsigned u) {
  using A = Arithmetic<F>;
  typename A::Unsigned quarter = (u + 0x20000000u) >> 30;
  F t = A::to_float(A::template bits<typename A::Int>(u - (quarter << 30))) * 0x1.921fb6p-30f, z = t * t;  // pi / 2^31
  F s = A::fma(A::fma(A::splat(-1.958763909873762e-4f), z, A::splat(8.33274710466453e-3f)), z, A::splat(-1.6666664656312208e-1f));
  F sin = A::fma(s * z, t, t);
  F c = A::fma(A::fma(A::splat(2.454768977246003e-5f), z, A::splat(-1.388830186756237e-3f)), z, A::splat(4.166666465348879e-2f));
  F cos = A::fma(c * z, z, A::fma(z, A::splat(-0.5f), A::splat(1.0f)));
  auto odd = (quarter & 1u) != 0u;
  F turned_sin = A::select(odd, cos, sin), turned_cos = A::select(odd, sin, cos);
  return {.sin = A::select((quarter & 2u) != 0u, -turned_sin, turned_sin),
          .cos = A::select(((quarter + 1u) & 2u) != 0u, -turned_cos, turned_cos)};
}

template <class F>
struct TwoNormals {
  F first, second;
};

/// Box and Muller (1958).
template <class F>
TESSERA_BOTH TESSERA_INLINE TwoNormals<F> box_muller(typename Arithmetic<F>::Unsigned radius_word,
                                                     typename Arithmetic<F>::Unsigned angle_word, float std) {
  using A = Arithmetic<F>;
  F uniform = A::fma(A::to_float(radius_word), A::splat(0x1p-32f), A::splat(0x1p-33f));  // in (0, 1]
  F radius = A::sqrt(log_of_normal(uniform) * -2.0f) * std;
  SinCos<F> angle = sin_cos_of_turns<F>(angle_word);
  return {.first = radius * angle.cos, .second = radius * angle.sin};
}

}  // namespace tessera::kernels
