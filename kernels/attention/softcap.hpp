// What bends scores below a cap: a tanh of one float or of sixteen lanes, the same bits on every target.
#pragma once
#include "kernels/exp.hpp"

namespace tessera::kernels {

/// tanh x within 4e-7 relative, however small x is. By 2^y - 1 for y = -2 log2(e) |x|, of which nothing cancels. NaN stays NaN.
template <class F>
TESSERA_BOTH TESSERA_INLINE F tanh_of_score(F x) {
  using A = Arithmetic<F>;
  using Unsigned = typename A::Unsigned;
  const Unsigned magnitude = A::template bits<Unsigned>(x) & 0x7fffffffu, sign = A::template bits<Unsigned>(x) & 0x80000000u;
  const F less_one = exp2_less_one<F>(A::template bits<F>(magnitude) * -2.885390082f);
  const Unsigned ratio = A::template bits<Unsigned>(less_one / (less_one + 2.0f));
  return A::template bits<F>((ratio & 0x7fffffffu) | sign);
}

}  // namespace tessera::kernels
