// The statistic of RMSNorm on the host.
#pragma once
#include "kernels/rmsnorm/formulas.hpp"
#include "kernels/vector/vector.hpp"

namespace tessera::kernels::host {

/// 1 / sqrt(mean(x^2) + eps) of a row x of C elements. Meanwhile the first half of `next`, a row that is needed later, is asked for.
template <class T>
TESSERA_INLINE float row_reciprocal_rms(const T* x, const T* next, std::int64_t C, float eps) {
  const float squares = fold<T>(C, [&](std::int64_t i, auto n, f32x16& sum) {
    prefetch(next + i / 2);
    f32x16 a = load_any(x + i, n);
    sum = fma(a, a, sum);
  });
  return norm::reciprocal_rms(squares, C, eps);
}

}  // namespace tessera::kernels::host
