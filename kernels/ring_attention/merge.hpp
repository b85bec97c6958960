// How two log-sum-exp are merged, for one float and for sixteen lanes: the same bits on a host and on a GPU.
#pragma once
#include "kernels/exp.hpp"
#include "kernels/ring_attention/ring_attention.hpp"

namespace tessera::kernels::ring_attention {

/// The shares add up to 1. The logarithm and the division are those of 1 + e^-d, between 1 and 2: e^(a - lse) would lose what lse, with its
/// many digits before the point, has rounded off.
template <class F>
struct Merged {
  F lse, share_of_first, share_of_second;
};
template <class F>
TESSERA_BOTH TESSERA_INLINE Merged<F> merge(F first, F second) {
  using A = Arithmetic<F>;
  const auto larger = first > second;
  const F most = A::select(larger, first, second), least = A::select(larger, second, first);
  const F e = exp_nonpositive<F>(least - most), sum = e + 1.0f;
  const F large_share = A::splat(1.0f) / sum, small_share = e / sum;
  return {most + log_of_normal<F>(sum), A::select(larger, large_share, small_share), A::select(larger, small_share, large_share)};
}

inline bool makes_sense(const AttentionRows& rows, std::int64_t T) {
  return rows.first >= 0 && rows.count >= 0 && rows.first + rows.count <= T;
}

}  // namespace tessera::kernels::ring_attention
