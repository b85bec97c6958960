// A block a row. Bound by memory: 4 bytes read a logit for the sums, and 4 read and sizeof(T) written for the gradient. Not yet measured.
#include <limits>

#include "kernels/cross_entropy/logit_map_device.hpp"
#include "kernels/cross_entropy/softmax_slice_code.hpp"
#include "kernels/cuda/reduce.hpp"
#include "kernels/cuda/vector.hpp"

namespace tessera::kernels::cuda {
namespace {

using namespace tessera::cuda;

constexpr int N = vector_elements<float>, row_threads = 512;

/// Finite, so that lowest - lowest is 0 for a thread that has no logits; e^(lowest - x) is 0.
constexpr float lowest = -std::numeric_limits<float>::max();

/// Maps logits i .. i + N - 1 of a row; those from V on stay `lowest`.
__device__ void map_vector(Vector<float, N>& x, int i, int V, const logit_map::Constants& map) {
#pragma unroll
  for (int k = 0; k < N; ++k) {
    if (i + k < V) x.value[k] = logit_map::mapped_on_device(x.value[k], map).value;
  }
}

template <bool mapped, class Whole>
__global__ void __launch_bounds__(row_threads) sums_kernel(SoftmaxSliceSums s) {
  const logit_map::Constants map(s.map);
  const std::int64_t r = blockIdx.x;
  const int V = static_cast<int>(s.V);
  const float* row = s.logits + r * s.V;
  float most = lowest;
  for (int i = static_cast<int>(threadIdx.x) * N; i < V; i += row_threads * N) {
    Vector<float, N> x = load<Whole, N>(row, i, V, lowest);
    if constexpr (mapped) map_vector(x, i, V, map);
#pragma unroll
    for (int k = 0; k < N; ++k) most = fmaxf(most, x.value[k]);
  }
  most = block_max(most);
  // Terms of a thread are summed in fp64: it has few of them, and they need no tiles.
  double sum = 0;
  for (int i = static_cast<int>(threadIdx.x) * N; i < V; i += row_threads * N) {
    Vector<float, N> x = load<Whole, N>(row, i, V, lowest);
    if constexpr (mapped) map_vector(x, i, V, map);
    float terms = 0;
#pragma unroll
    for (int k = 0; k < N; ++k) terms += __expf(x.value[k] - most);
    sum += static_cast<double>(terms);
  }
  sum = block_sum(sum);
  if (threadIdx.x > 0) return;
  const std::int64_t target = s.targets[r] - s.first;
  double* sums = s.sums + 3 * r;
  sums[0] = static_cast<double>(most), sums[1] = sum;
  sums[2] = 0;
  if (target >= 0 && target < s.V)
    sums[2] = static_cast<double>(mapped ? logit_map::mapped_on_device(row[target], map).value : row[target]);
}

/// Where d_logits are the logits, a thread has read what it writes.
template <bool mapped, bool gradient, class T, class Whole>
__global__ void __launch_bounds__(row_threads) loss_kernel(SoftmaxSliceLoss s) {
  __shared__ softmax_slice::Row of_row;
  const std::int64_t r = blockIdx.x;
  if (threadIdx.x == 0) {
    of_row = softmax_slice::row_of(s, r);
    if (s.losses) s.losses[r] = of_row.loss;
  }
  if constexpr (gradient) {
    __syncthreads();
    const softmax_slice::Row row = of_row;
    const int V = static_cast<int>(s.V);
    const bool counts = s.weights[r] != 0;
    const std::int64_t target = counts ? s.targets[r] - s.first : -1;
    const float most = static_cast<float>(row.most);
    const logit_map::Constants map(s.map);
    T* out = static_cast<T*>(s.d_logits) + r * s.V;
    for (int i = static_cast<int>(threadIdx.x) * N; i < V; i += row_threads * N) {
      const Vector<float, N> x = load<Whole, N>(s.logits + r * s.V, i, V);
      float d[N];
#pragma unroll
      for (int k = 0; k < N; ++k) {
        // No subnormal results: they slow a host down that reads them, and both backends agree on where zero begins.
        if constexpr (mapped) {
          const logit_map::Mapped<float> at = logit_map::mapped_on_device(x.value[k], map);
          const float value = counts ? __expf(at.value - most) * (at.slope * row.factor) : 0;
          d[k] = i + k == target ? row.d_target * at.slope : fabsf(value) >= std::numeric_limits<float>::min() ? value : 0;
        } else {
          const float value = counts ? __expf(x.value[k] - most) * row.factor : 0;
          d[k] = i + k == target ? row.d_target : fabsf(value) >= std::numeric_limits<float>::min() ? value : 0;
        }
      }
      store<Whole>(out, i, V, d);
    }
  }
}

template <bool gradient, class T>
void run(const Context& context, const SoftmaxSliceLoss& s) {
  with_whole(on_sixteen_bytes(s.logits, s.d_logits) && whole_vectors(vector_elements<T>, {s.V}), [&](auto whole) {
    using W = decltype(whole);
    auto* kernel = gradient && s.map != LogitMap{} ? loss_kernel<true, gradient, T, W> : loss_kernel<false, gradient, T, W>;
    launch(stream_of(context), static_cast<unsigned>(s.rows), row_threads, 0, kernel, s);
  });
}

}  // namespace

void softmax_slice_sums(const Context& context, const SoftmaxSliceSums& s) {
  if (s.rows == 0) return;
  TESSERA_CUDA_REQUIRE(s.V > 0 && s.V < std::int64_t{1} << 30 && s.rows < std::int64_t{1} << 31);
  with_whole(on_sixteen_bytes(s.logits) && whole_vectors(N, {s.V}), [&](auto whole) {
    auto* kernel = s.map != LogitMap{} ? sums_kernel<true, decltype(whole)> : sums_kernel<false, decltype(whole)>;
    launch(stream_of(context), static_cast<unsigned>(s.rows), row_threads, 0, kernel, s);
  });
}

void softmax_slice_loss(const Context& context, const SoftmaxSliceLoss& s) {
  if (s.rows == 0) return;
  TESSERA_CUDA_REQUIRE(s.V > 0 && s.V < std::int64_t{1} << 30 && s.rows < std::int64_t{1} << 31);
  if (!s.d_logits) return run<false, float>(context, s);
  with_float_type(s.dtype, [&](auto type) { run<true, decltype(type)>(context, s); });
}

}  // namespace tessera::kernels::cuda
