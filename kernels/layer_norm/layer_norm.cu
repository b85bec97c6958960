// Bound by memory: a row is read once into registers, its mean and then its variance are summed by the group of threads that holds it, and
// the row is written. Forward moves two elements of T a value, backward three (each one more with a residual). Not yet measured.
#include "kernels/layer_norm/layer_norm.hpp"

#include "kernels/cuda/reduce.hpp"
#include "kernels/layer_norm/formulas.hpp"
#include "kernels/rmsnorm/rmsnorm_sizes.hpp"
#include "kernels/rmsnorm/row_cuda.hpp"

namespace tessera::kernels::cuda {
namespace {

using namespace tessera::cuda;
using namespace rmsnorm_sizes;

/// Zeros where there is no such operand.
template <class Whole, int N, class T>
__device__ Vector<T, N> load_any(const T* p, std::int64_t i, std::int64_t C) {
  return p ? load<Whole, N>(p, i, C) : Vector<T, N>{};
}

template <class T, int K, bool Long, class Whole>
__global__ void __launch_bounds__(most_threads) forward_kernel(LayerNormForward p, int group) {
  constexpr int N = vector_elements<T>;
  const int lane = static_cast<int>(threadIdx.x) % group, in_block = static_cast<int>(threadIdx.x) / group;
  const std::int64_t r = static_cast<std::int64_t>(blockIdx.x) * (static_cast<int>(blockDim.x) / group) + in_block;
  const norm::Share<N, K, Long> share{group, lane, r < p.rows ? p.C : 0};  // a group without a row takes part in barriers
  const T *x = static_cast<const T*>(p.x) + r * p.C, *weight = static_cast<const T*>(p.weight), *bias = static_cast<const T*>(p.bias);
  const T* residual = p.residual ? static_cast<const T*>(p.residual) + r * p.C : nullptr;
  T* out = static_cast<T*>(p.out) + r * p.C;

  Vector<T, N> row[K], w[K], b[K];
#pragma unroll
  for (int k = 0; k < K; ++k) row[k] = load<Whole, N>(x, share.at(k), share.C);
#pragma unroll
  for (int k = 0; k < K; ++k) w[k] = load<Whole, N>(weight, share.at(k), share.C), b[k] = load_any<Whole, N>(bias, share.at(k), share.C);
  float sum = 0;
  const auto add = [&](const Vector<T, N>& v) {
#pragma unroll
    for (int e = 0; e < N; ++e) sum += to_float(v.value[e]);
  };
#pragma unroll
  for (int k = 0; k < K; ++k) add(row[k]);
  share.rest([&](std::int64_t i) { add(load<Whole, N>(x, i, share.C)); });
  const float mean = group_sum(sum, group) / static_cast<float>(p.C);

  float squares = 0;
  const auto add_squares = [&](std::int64_t i, const Vector<T, N>& v) {
    if (Whole::value && i >= share.C) return;  // zeros beyond the row lie off the mean too
#pragma unroll
    for (int e = 0; e < N; ++e) {
      const float d = Whole::value || i + e < share.C ? to_float(v.value[e]) - mean : 0.0f;
      squares = fmaf(d, d, squares);
    }
  };
#pragma unroll
  for (int k = 0; k < K; ++k) keep_packed(row[k]), add_squares(share.at(k), row[k]);
  share.rest([&](std::int64_t i) { add_squares(i, load<Whole, N>(x, i, share.C)); });
  const float rstd = norm::reciprocal_rms(group_sum(squares, group), p.C, p.eps);
  if (p.mean && lane == 0 && r < p.rows) p.mean[r] = mean;
  if (p.rstd && lane == 0 && r < p.rows) p.rstd[r] = rstd;

  const auto write = [&](std::int64_t i, const Vector<T, N>& v, const Vector<T, N>& factor, const Vector<T, N>& shift) {
    const Vector<T, N> joined = load_any<Whole, N>(residual, i, share.C);
    float value[N];
#pragma unroll
    for (int e = 0; e < N; ++e)
      value[e] = norm::add_scaled(to_float(v.value[e]) - mean, to_float(factor.value[e]), rstd,
                                  to_float(shift.value[e]) + to_float(joined.value[e]));
    store<Whole>(out, i, share.C, value);
  };
#pragma unroll
  for (int k = 0; k < K; ++k) keep_packed(row[k]), write(share.at(k), row[k], w[k], b[k]);
  share.rest([&](std::int64_t i) {
    write(i, load<Whole, N>(x, i, share.C), load<Whole, N>(weight, i, share.C), load_any<Whole, N>(bias, i, share.C));
  });
}

/// group_sum of two sums at once.
struct TwoSums {
  float first = 0, second = 0;
};
__device__ TwoSums group_sums(TwoSums x, int size) {
  x = {warp_sum(x.first, size < warp_lanes ? size : warp_lanes), warp_sum(x.second, size < warp_lanes ? size : warp_lanes)};
  if (size <= warp_lanes) return x;
  __shared__ TwoSums of_warp[32];
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes, warp = static_cast<int>(threadIdx.x) / warp_lanes;
  const int warps = size / warp_lanes, first = warp / warps * warps;
  __syncthreads();  // an earlier call's results have been read
  if (lane == 0) of_warp[warp] = x;
  __syncthreads();
  x = lane < warps ? of_warp[first + lane] : TwoSums{};
  return {warp_sum(x.first), warp_sum(x.second)};
}

/// A row's statistics, and what of d_x they lead to.
struct RowFactors {
  float mean, rstd, along_x, level;
};

/// What one vector of a row needs for its part of the backward pass.
template <class T, int N>
struct BackwardVector {
  Vector<T, N> d_out, x, weight;
  /// sums + those of d_out weight (x - mean), and of d_out weight.
  __device__ TwoSums add_sums(TwoSums sums, float mean) const {
#pragma unroll
    for (int e = 0; e < N; ++e) {
      const float y = to_float(d_out.value[e]) * to_float(weight.value[e]);
      sums = {fmaf(y, to_float(x.value[e]) - mean, sums.first), sums.second + y};
    }
    return sums;
  }
  __device__ void finish(float (&d_weight)[N], float (&d_bias)[N], float (&d_x)[N], const Vector<T, N>& residual,
                         const RowFactors& of) const {
#pragma unroll
    for (int e = 0; e < N; ++e) {
      const float g = to_float(d_out.value[e]), v = to_float(x.value[e]) - of.mean;
      d_weight[e] = norm::add_weight_gradient(g, v, of.rstd, d_weight[e]);
      d_bias[e] += g;
      d_x[e] = norm::gradient(g, to_float(weight.value[e]), of.rstd, fmaf(v, of.along_x, of.level) + to_float(residual.value[e]));
    }
  }
};

/// Blocks of an SM at once: four small ones, as backward_blocks counts on.
template <int K, bool Long, class Whole>
constexpr int least_blocks = K == 1 && !Long && Whole::value ? 4 : 1;

/// A block has one of the row blocks: its groups take the rows in turn, and sum d_weight and d_bias (which costs nothing where nobody
/// writes it) in registers. d_x may be d_out or d_residual: a thread has read what it writes.
template <class T, int K, bool Long, class Whole, bool Bias>
__global__ void __launch_bounds__(K == 1 && !Long ? block_threads : most_threads, least_blocks<K, Long, Whole>)
    backward_kernel(LayerNormBackward p, float* weights, RowBlocks blocks, int group) {
  constexpr int N = vector_elements<T>;
  const int lane = static_cast<int>(threadIdx.x) % group, groups = static_cast<int>(blockDim.x) / group;
  const T* weight = static_cast<const T*>(p.weight);
  const norm::Share<N, K, Long> columns{group, lane, p.C};
  weights += blockIdx.x * p.C;
  float* biases = weights + blocks.count * p.C;
  float d_weight[K][N] = {}, d_bias[K][N] = {};
  columns.rest([&](std::int64_t i) {
    store<Whole>(weights, i, p.C, d_weight[0]);
    if (Bias) store<Whole>(biases, i, p.C, d_weight[0]);
  });
  BackwardVector<T, N> held[K];
#pragma unroll
  for (int k = 0; k < K; ++k) held[k].weight = load<Whole, N>(weight, columns.at(k), p.C);

  const std::int64_t end = blocks.end(blockIdx.x);
  for (std::int64_t first = blocks.begin(blockIdx.x); first < end; first += groups) {
    const std::int64_t r = first + static_cast<int>(threadIdx.x) / group;
    const norm::Share<N, K, Long> share{group, lane, r < end ? p.C : 0};
    const T *d_out = static_cast<const T*>(p.d_out) + r * p.C, *x = static_cast<const T*>(p.x) + r * p.C;
    const T* d_residual = p.d_residual ? static_cast<const T*>(p.d_residual) + r * p.C : nullptr;
    T* d_x = static_cast<T*>(p.d_x) + r * p.C;
    RowFactors of{r < end ? p.mean[r] : 0, r < end ? p.rstd[r] : 0, 0, 0};

    Vector<T, N> residual[K];
#pragma unroll
    for (int k = 0; k < K; ++k) {
      held[k].d_out = load<Whole, N>(d_out, share.at(k), share.C), held[k].x = load<Whole, N>(x, share.at(k), share.C);
      residual[k] = load_any<Whole, N>(d_residual, share.at(k), share.C);
    }
    const auto read_again = [&](std::int64_t i) {
      return BackwardVector<T, N>{load<Whole, N>(d_out, i, share.C), load<Whole, N>(x, i, share.C), load<Whole, N>(weight, i, share.C)};
    };
    TwoSums sums;
#pragma unroll
    for (int k = 0; k < K; ++k) sums = held[k].add_sums(sums, of.mean);
    share.rest([&](std::int64_t i) { sums = read_again(i).add_sums(sums, of.mean); });
    sums = group_sums(sums, group);
    of.along_x = norm::along_x(sums.first, p.C, of.rstd), of.level = norm::level(sums.second, p.C, of.rstd);

    float value[N];
#pragma unroll
    for (int k = 0; k < K; ++k) {
      keep_packed(held[k].d_out), keep_packed(held[k].x), keep_packed(held[k].weight);
      held[k].finish(d_weight[k], d_bias[k], value, residual[k], of);
      store<Whole>(d_x, share.at(k), share.C, value);
    }
    share.rest([&](std::int64_t i) {
      float sum[N], bias_sum[N] = {};
      load<Whole>(sum, weights, i, share.C);
      if (Bias) load<Whole>(bias_sum, biases, i, share.C);
      read_again(i).finish(sum, bias_sum, value, load_any<Whole, N>(d_residual, i, share.C), of);
      store<Whole>(d_x, i, share.C, value), store<Whole>(weights, i, share.C, sum);
      if (Bias) store<Whole>(biases, i, share.C, bias_sum);
    });
  }
  norm::write_partial<Whole>(weights, d_weight, columns);
  if (Bias) {
    __syncthreads();
    norm::write_partial<Whole>(biases, d_bias, columns);
  }
}

template <class T>
void forward(const Context& context, const LayerNormForward& p) {
  constexpr int N = vector_elements<T>;
  const Grouping g(p.C, N, forward_vectors);
  with_whole(on_sixteen_bytes(p.out, p.x, p.weight, p.bias, p.residual) && whole_vectors(N, {p.C}), [&](auto whole) {
    using W = decltype(whole);
    auto* kernel = g.held() < p.C   ? forward_kernel<T, forward_vectors, true, W>
                   : g.vectors == 1 ? forward_kernel<T, 1, false, W>
                   : g.vectors == 2 ? forward_kernel<T, 2, false, W>
                                    : forward_kernel<T, forward_vectors, false, W>;
    launch(stream_of(context), static_cast<unsigned>(ceil_div(p.rows, g.rows())), static_cast<unsigned>(g.threads), 0, kernel, p, g.group);
  });
}

template <class T, class W, bool Bias>
auto* backward_kernel_for(const Grouping& g, std::int64_t C) {
  return g.held() < C     ? backward_kernel<T, 1, true, W, Bias>
         : g.vectors == 1 ? backward_kernel<T, 1, false, W, Bias>
                          : backward_kernel<T, backward_vectors, false, W, Bias>;
}

template <class T>
void backward(const Context& context, const LayerNormBackward& p) {
  constexpr int N = vector_elements<T>;
  const Grouping g(p.C, N, backward_vectors);
  const RowBlocks blocks = backward_blocks(p.rows, p.C, p.dtype);
  const bool on_sixteen = on_sixteen_bytes(p.d_x, p.d_out, p.d_residual, p.x, p.weight);
  auto* weights = reinterpret_cast<float*>(context.workspace.data());  // (blocks,C), and after it the same of biases
  with_whole(on_sixteen && whole_vectors(N, {p.C}), [&](auto whole) {
    using W = decltype(whole);
    auto* kernel = p.d_bias ? backward_kernel_for<T, W, true>(g, p.C) : backward_kernel_for<T, W, false>(g, p.C);
    launch(stream_of(context), static_cast<unsigned>(blocks.count), static_cast<unsigned>(g.threads), 0, kernel, p, weights, blocks,
           g.group);
  });
  add_partial_sums(stream_of(context), p.d_weight, weights, blocks.count, p.C);
  if (p.d_bias) add_partial_sums(stream_of(context), p.d_bias, weights + blocks.count * p.C, blocks.count, p.C);
}

}  // namespace

void layer_norm_forward(const Context& context, const LayerNormForward& p) {
  if (p.rows == 0 || p.C == 0) return;
  TESSERA_CUDA_REQUIRE(norm::rows_fit(p.rows));
  with_float_type(p.dtype, [&](auto type) { forward<decltype(type)>(context, p); });
}

void layer_norm_backward(const Context& context, const LayerNormBackward& p) {
  if (p.rows == 0 || p.C == 0) return;
  TESSERA_CUDA_REQUIRE(norm::rows_fit(p.rows));
  TESSERA_CUDA_REQUIRE(context.workspace.size() >= cuda::layer_norm_backward_workspace_bytes(p));
  with_float_type(p.dtype, [&](auto type) { backward<decltype(type)>(context, p); });
}

}  // namespace tessera::kernels::cuda
