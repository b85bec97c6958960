// The row pass over logits, a block a row. Bound by memory: 4 bytes read and sizeof(T) written a logit. The first pass finds maximum and
// sum together; it keeps the first 40,960 logits of the row in shared memory, and the second pass reads the others again, last ones first,
// since those are the likeliest to be in the second-level cache still. GPUs with less shared memory keep 24,576. Not yet measured.
#include <algorithm>
#include <limits>

#include "kernels/cross_entropy/logit_map_device.hpp"
#include "kernels/cuda/devices.hpp"
#include "kernels/cuda/reduce.hpp"
#include "kernels/cuda/vector.hpp"

namespace tessera::kernels::cuda {
namespace {

using namespace tessera::cuda;

constexpr int N = vector_elements<float>, row_threads = 512, unroll = 8;
constexpr int tile = row_threads * N * unroll;
constexpr int most_kept = 40960;         // 160 KiB: an SM of an A100 has 163 KiB for a block
constexpr int most_kept_by_few = 24576;  // 96 KiB, where a block may have no more than 99: RTX 4090, L40S, A6000

/// Finite, so that lowest - lowest is 0 for a thread that has no logits; e^(lowest - x) is 0.
constexpr float lowest = -std::numeric_limits<float>::max();

/// Sum of e^(x - most) over what has been seen. A tile's terms are summed in fp32, tiles in fp64.
struct RunningSum {
  float most = lowest;
  double sum = 0;

  __device__ void add(const Vector<float, N> (&x)[unroll]) {
    float now = most, terms = 0;
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
#pragma unroll
      for (int k = 0; k < N; ++k) now = fmaxf(now, x[u].value[k]);
    }
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
#pragma unroll
      for (int k = 0; k < N; ++k) terms += __expf(x[u].value[k] - now);
    }
    sum = sum * static_cast<double>(__expf(most - now)) + static_cast<double>(terms);
    most = now;
  }
};

/// What a row's second pass needs, found by one thread for all.
struct RowResult {
  float factor, d_target;
};

/// loss = log(sum) + most - logit of the target; d_logit = e^(logit - most) grad_scale / sum, and at the target (probability - 1)
/// grad_scale, formed before it is rounded to T; each times the row's weight.
__device__ RowResult finish_row(const SoftmaxLossRows& s, std::int64_t r, double target_logit, float most, double sum) {
  const double above = target_logit - static_cast<double>(most), weight = static_cast<double>(s.weights[r]);
  s.losses[r] = static_cast<float>(weight * (log(sum) - above));
  const double scale = s.d_logits ? weight * static_cast<double>(*s.grad_scale) : 0;
  return {.factor = static_cast<float>(scale / sum), .d_target = static_cast<float>((exp(above) / sum - 1) * scale)};
}

/// Where d_logits are the logits, a thread has read what it writes.
template <bool gradient, class T, class Whole>
__device__ void row_without_loss(const SoftmaxLossRows& s, std::int64_t r) {
  if (threadIdx.x == 0) s.losses[r] = 0;
  if constexpr (gradient) {
    const int V = static_cast<int>(s.V);
    const float zero[N] = {};
    for (int i = static_cast<int>(threadIdx.x) * N; i < V; i += row_threads * N)
      store<Whole>(static_cast<T*>(s.d_logits) + r * s.V, i, V, zero);
  }
}

template <bool mapped, bool gradient, class T, class Whole>
__global__ void __launch_bounds__(row_threads) row_kernel(SoftmaxLossRows s, int kept) {
  auto* keep = dynamic_shared<float>();  // (kept)
  const std::int64_t r = blockIdx.x;
  const int V = static_cast<int>(s.V), target = s.targets[r], mine = static_cast<int>(threadIdx.x) * N;
  if (s.weights[r] == 0) return row_without_loss<gradient, T, Whole>(s, r);
  require(target >= 0 && target < V);
  const float* row = s.logits + r * s.V;
  const logit_map::Constants map(s.map);
  const float target_as_given = row[target];
  const double target_logit = static_cast<double>(mapped ? logit_map::mapped_on_device(target_as_given, map).value : target_as_given);

  RunningSum running;
  Vector<float, N> x[unroll];
  for (int begin = mine; begin < V; begin += tile) {
#pragma unroll
    for (int u = 0; u < unroll; ++u) x[u] = load<Whole, N>(row, begin + u * row_threads * N, V, lowest);
#pragma unroll
    for (int u = 0; u < unroll; ++u) store_shared(keep, begin + u * row_threads * N, kept, x[u]);
    if constexpr (mapped) {  // what is kept is not: the gradient needs the logits as they are given
#pragma unroll
      for (int u = 0; u < unroll; ++u) {
#pragma unroll
        for (int k = 0; k < N; ++k) {
          if (begin + u * row_threads * N + k < V) x[u].value[k] = logit_map::mapped_on_device(x[u].value[k], map).value;
        }
      }
    }
    running.add(x);
  }
  const float most = block_max(running.most);
  const double sum = block_sum(running.sum * static_cast<double>(__expf(running.most - most)));
  __shared__ RowResult of_row;
  if (threadIdx.x == 0) of_row = finish_row(s, r, target_logit, most, sum);
  if constexpr (gradient) {
    __syncthreads();
    const RowResult result = of_row;
    T* out = static_cast<T*>(s.d_logits) + r * s.V;
    for (int begin = mine + (V - 1) / tile * tile; begin >= 0; begin -= tile) {
#pragma unroll
      for (int u = 0; u < unroll; ++u) {
        const int i = begin + u * row_threads * N;
        x[u] = i < kept ? load<std::true_type, N>(keep, i, kept) : load<Whole, N>(row, i, V);
      }
#pragma unroll
      for (int u = 0; u < unroll; ++u) {
        const int i = begin + u * row_threads * N, at = target - i;
        float d[N];
#pragma unroll
        for (int k = 0; k < N; ++k) {
          // No subnormal results: they slow a host down that reads them, and both backends agree on where zero begins.
          if constexpr (mapped) {
            const logit_map::Mapped<float> logit = logit_map::mapped_on_device(x[u].value[k], map);
            const float value = __expf(logit.value - most) * (logit.slope * result.factor);
            d[k] = k == at ? result.d_target * logit.slope : fabsf(value) >= std::numeric_limits<float>::min() ? value : 0;
          } else {
            const float value = __expf(x[u].value[k] - most) * result.factor;
            d[k] = k == at ? result.d_target : value >= std::numeric_limits<float>::min() ? value : 0;
          }
        }
        store<Whole>(out, i, V, d);
      }
    }
  }
}

template <bool gradient, class T>
void run(const Context& context, const SoftmaxLossRows& s) {
  const int most = shared_memory_limit() > most_kept * sizeof(float) ? most_kept : most_kept_by_few;
  const int kept = gradient ? static_cast<int>(std::min<std::int64_t>(round_up(s.V, N), most)) : 0;
  with_whole(on_sixteen_bytes(s.logits, s.d_logits) && whole_vectors(vector_elements<T>, {s.V}), [&](auto whole) {
    using W = decltype(whole);
    auto* kernel = s.map != LogitMap{} ? row_kernel<true, gradient, T, W> : row_kernel<false, gradient, T, W>;
    launch(stream_of(context), static_cast<unsigned>(s.rows), row_threads, static_cast<std::size_t>(kept) * sizeof(float), kernel, s, kept);
  });
}

}  // namespace

void softmax_loss_rows(const Context& context, const SoftmaxLossRows& s) {
  if (s.rows == 0) return;
  TESSERA_CUDA_REQUIRE(s.V > 0 && s.V < std::int64_t{1} << 30 && s.rows < std::int64_t{1} << 31);
  if (!s.d_logits) return run<false, float>(context, s);
  with_float_type(s.dtype, [&](auto type) { run<true, decltype(type)>(context, s); });
}

}  // namespace tessera::kernels::cuda
