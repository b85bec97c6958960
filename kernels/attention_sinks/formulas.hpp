// How a sink joins a query's keys, for one float and for sixteen lanes: the same bits on a host and on a GPU.
#pragma once
#include <limits>

#include "kernels/exp.hpp"

namespace tessera::kernels::sinks {

/// e^x for x <= 0; 0 where that is below all normal numbers. NaN stays NaN.
template <class F>
TESSERA_BOTH TESSERA_INLINE F share_of(F x) {
  using A = Arithmetic<F>;
  return A::select(x < A::splat(lowest_exponent), A::splat(0.0f), exp_nonpositive<F>(x));
}

template <class F>
struct Joined {
  F lse, keys;  ///< over all, and the share of the keys
};
/// The logarithm and the division are those of 1 + e^-d, between 1 and 2: e^(lse - new) would lose what `new` has rounded off. Infinities
/// have no difference: what is subtracted is a number.
template <class F>
TESSERA_BOTH TESSERA_INLINE Joined<F> join(F lse, F sink) {
  using A = Arithmetic<F>;
  const auto larger = lse > sink;
  const F most = A::select(larger, lse, sink), least = A::select(larger, sink, lse);
  const F e = share_of<F>(least - A::at_least(A::splat(std::numeric_limits<float>::lowest()), most)), sum = e + 1.0f;
  return {most + log_of_normal<F>(sum), A::select(larger, A::splat(1.0f), e) / sum};
}

/// The share of the sink, of the lse that join gave.
template <class F>
TESSERA_BOTH TESSERA_INLINE F of_sink(F lse, F sink) {
  using A = Arithmetic<F>;
  const F x = sink - A::at_least(A::splat(std::numeric_limits<float>::lowest()), lse);
  return share_of<F>(A::select(x > A::splat(0.0f), A::splat(0.0f), x));
}

}  // namespace tessera::kernels::sinks
