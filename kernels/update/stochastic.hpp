// Numbers rounded to bf16 up or down by chance, so that what is too small to be seen in one step is not lost over many.
#pragma once
#include "kernels/arithmetic.hpp"

namespace tessera::kernels {

/// One of the two bf16 numbers around x, as fp32: the farther away one is, the less often it is taken. The chance is drawn from x itself,
/// from what is as unlike from step to step (a gradient) and from the step, and not from where x lies: bits do not depend on a layout.
template <class F>
TESSERA_BOTH TESSERA_INLINE F stochastic_bf16(F x, F unlike, std::uint32_t step) {
  using A = Arithmetic<F>;
  using Unsigned = typename A::Unsigned;
  const Unsigned bits = A::template bits<Unsigned>(x);
  // The two rounds of lowbias32 (C. Wellons, hash-prospector).
  Unsigned h = bits ^ A::template bits<Unsigned>(unlike) * 0x9e3779b1u ^ Unsigned(step);
  h = (h ^ (h >> 16)) * 0x7feb352du;
  h = (h ^ (h >> 15)) * 0x846ca68bu;
  h = h ^ (h >> 16);
  return A::template bits<F>((bits + (h & 0xffffu)) & 0xffff0000u);
}

}  // namespace tessera::kernels
