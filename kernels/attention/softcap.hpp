// What bends scores below a cap: a tanh of one float or of sixteen lanes, the same bits on every target.
#pragma once
#include "kernels/exp.hpp"

namespace tessera::kernels {

/// tanh x within 4e-7 relative, however small x is. By 2^y - 1 for y = -2 log2(e) |x|, of which nothing cancels: a whole power of two and a
/// polynomial without a constant (minimax of degree 6, relative error 1.1e-8). NaN stays NaN.
template <class F>
TESSERA_BOTH TESSERA_INLINE F tanh_of_score(F x) {
  using A = Arithmetic<F>;
  using Unsigned = typename A::Unsigned;
  const Unsigned magnitude = A::template bits<Unsigned>(x) & 0x7fffffffu, sign = A::template bits<Unsigned>(x) & 0x80000000u;
  const F y = A::at_least(A::splat(-126.0f), A::template bits<F>(magnitude) * -2.885390082f);
  const F shifted = y + powers::round_to_whole, r = y - (shifted - powers::round_to_whole), square = r * r;
  const F high = A::fma(A::splat(1.540352312e-04f), r, A::splat(1.339073543e-03f));
  const F middle = A::fma(A::splat(9.618237461e-03f), r, A::splat(5.550357434e-02f));
  const F low = A::fma(A::splat(2.402264980e-01f), r, A::splat(6.931471879e-01f));
  const F fraction = A::fma(A::fma(high, square, middle), square, low) * r;  // 2^r - 1
  const F power = A::template bits<F>((A::template bits<Unsigned>(shifted) << 23) + 0x3f800000u);
  const F less_one = A::fma(power, fraction, power - 1.0f);  // 2^y - 1
  const Unsigned ratio = A::template bits<Unsigned>(less_one / (less_one + 2.0f));
  return A::template bits<F>((ratio & 0x7fffffffu) | sign);
}

}  // namespace tessera::kernels
