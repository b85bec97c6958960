// Rows of rope_table on a GPU.
#pragma once
#include "kernels/cuda/vector.hpp"
#include "kernels/rope/rotation.hpp"

namespace tessera::kernels::cuda {

/// Cosines and sines of N pairs, in turn.
template <int N>
struct Rotation {
  float pair[2 * N];
};
/// Of the pairs i .. i + N - 1 of a token's row of the table, which has `half` pairs; those from `half` on are 0.
template <class Whole, int N>
__device__ Rotation<N> load_rotation(const float* row, std::int64_t i, std::int64_t half) {
  Rotation<N> r;
#pragma unroll
  for (int k = 0; k < 2 * N; k += 4) {
    float part[4];
    tessera::cuda::load<Whole>(part, row, 2 * i + k, 2 * half);
#pragma unroll
    for (int e = 0; e < 4; ++e) r.pair[k + e] = part[e];
  }
  return r;
}
/// a and b: N elements of a head's first half and the N that lie D / 2 further on.
template <int N>
__device__ void rotate_pairs(float (&a)[N], float (&b)[N], const Rotation<N>& r, bool inverse) {
#pragma unroll
  for (int k = 0; k < N; ++k) rotate_pair(a[k], b[k], r.pair[2 * k], inverse ? -r.pair[2 * k + 1] : r.pair[2 * k + 1]);
}

}  // namespace tessera::kernels::cuda
