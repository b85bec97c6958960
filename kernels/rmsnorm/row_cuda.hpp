// How a GPU's norms hold rows, and what a block has summed of its rows.
#pragma once
#include "kernels/cuda/row_blocks.hpp"

namespace tessera::kernels::norm {

/// A thread's vectors of a row of C elements: at(0) .. at(K - 1), which it holds in registers, and the rest of a Long row.
template <int N, int K, bool Long>
struct Share {
  int group, lane;
  std::int64_t C;
  __device__ std::int64_t at(int k) const { return static_cast<std::int64_t>(k * group + lane) * N; }
  template <class F>
  __device__ void rest(F&& f) const {
    if constexpr (Long) {
      for (std::int64_t i = at(K); i < C; i += static_cast<std::int64_t>(group) * N) f(i);
    }
  }
};

/// partial[i] = what the threads of this block have summed of its rows. Rows that take several vectors a thread take the whole block, so
/// there is one sum to write. A second call comes after a barrier.
template <class Whole, int N, int K, bool Long>
__device__ void write_partial(float* partial, const float (&of_thread)[K][N], const Share<N, K, Long>& share) {
  if (static_cast<int>(blockDim.x) == share.group) {
#pragma unroll
    for (int k = 0; k < K; ++k) tessera::cuda::store<Whole>(partial, share.at(k), share.C, of_thread[k]);
    return;
  }
  tessera::cuda::sum_over_groups(of_thread[0], share.group, [&](int lane, int e, float sum) {
    const int i = lane * N + e;
    if (i < share.C) partial[i] = sum;
  });
}

inline bool rows_fit(std::int64_t rows) { return rows < std::int64_t{1} << 31; }

}  // namespace tessera::kernels::norm
