// Bound by memory: a row is read once into registers, its statistic is summed by the group of threads that holds it, and the row is
// written. Forward moves two elements of T a value, backward three (four with a residual). Not yet measured.
#include "kernels/rmsnorm/rmsnorm.hpp"

#include "kernels/cuda/reduce.hpp"
#include "kernels/rmsnorm/formulas.hpp"
#include "kernels/rmsnorm/rmsnorm_sizes.hpp"
#include "kernels/rmsnorm/row_cuda.hpp"

namespace tessera::kernels::cuda {
namespace {

using namespace tessera::cuda;
using namespace rmsnorm_sizes;

template <class Whole, int N, class T>
__device__ void scale_vector(T* out, std::int64_t i, std::int64_t C, const Vector<T, N>& x, const Vector<T, N>& weight, float rstd,
                             float offset, const T* residual) {
  float value[N];
  if (residual) {
    const Vector<T, N> onto = load<Whole, N>(residual, i, C);
#pragma unroll
    for (int e = 0; e < N; ++e)
      value[e] = norm::add_scaled(to_float(x.value[e]), to_float(weight.value[e]) + offset, rstd, to_float(onto.value[e]));
  } else {
#pragma unroll
    for (int e = 0; e < N; ++e) value[e] = norm::scaled(to_float(x.value[e]), to_float(weight.value[e]) + offset, rstd);
  }
  store<Whole>(out, i, C, value);
}

template <class T, int K, bool Long, class Whole>
__global__ void __launch_bounds__(most_threads) forward_kernel(RmsnormForward p, int group) {
  constexpr int N = vector_elements<T>;
  const int lane = static_cast<int>(threadIdx.x) % group, in_block = static_cast<int>(threadIdx.x) / group;
  const std::int64_t r = static_cast<std::int64_t>(blockIdx.x) * (static_cast<int>(blockDim.x) / group) + in_block;
  const norm::Share<N, K, Long> share{group, lane, r < p.rows ? p.C : 0};  // a group without a row takes part in barriers
  const T *x = static_cast<const T*>(p.x) + r * p.C, *weight = static_cast<const T*>(p.weight);
  T* out = static_cast<T*>(p.out) + r * p.C;
  const T* residual = p.residual ? static_cast<const T*>(p.residual) + r * p.C : nullptr;

  Vector<T, N> row[K], w[K];
#pragma unroll
  for (int k = 0; k < K; ++k) row[k] = load<Whole, N>(x, share.at(k), share.C);
#pragma unroll
  for (int k = 0; k < K; ++k) w[k] = load<Whole, N>(weight, share.at(k), share.C);
  float squares = 0;
  const auto add_squares = [&](const Vector<T, N>& v) {
#pragma unroll
    for (int e = 0; e < N; ++e) squares = fmaf(to_float(v.value[e]), to_float(v.value[e]), squares);
  };
#pragma unroll
  for (int k = 0; k < K; ++k) add_squares(row[k]);
  share.rest([&](std::int64_t i) { add_squares(load<Whole, N>(x, i, share.C)); });
  const float rstd = norm::reciprocal_rms(group_sum(squares, group), p.C, p.eps);
  if (p.rstd && lane == 0 && r < p.rows) p.rstd[r] = rstd;

#pragma unroll
  for (int k = 0; k < K; ++k)
    keep_packed(row[k]), scale_vector<Whole, N>(out, share.at(k), share.C, row[k], w[k], rstd, p.offset, residual);
  share.rest([&](std::int64_t i) {
    scale_vector<Whole, N>(out, i, share.C, load<Whole, N>(x, i, share.C), load<Whole, N>(weight, i, share.C), rstd, p.offset, residual);
  });
}

/// What one vector of a row needs for its part of the backward pass.
template <class T, int N>
struct BackwardVector {
  Vector<T, N> d_out, x, weight;
  float offset;  ///< of weights
  /// sum + d_out weight x
  __device__ float dot(float sum) const {
#pragma unroll
    for (int e = 0; e < N; ++e)
      sum = norm::add_dot(to_float(d_out.value[e]), to_float(weight.value[e]) + offset, to_float(x.value[e]), sum);
    return sum;
  }
  /// d_weight += d_out x rstd; d_x = rstd d_out weight + along_x x + residual (zeros where there is none).
  __device__ void finish(float (&d_weight)[N], float (&d_x)[N], const Vector<T, N>& residual, float rstd, float along_x) const {
#pragma unroll
    for (int e = 0; e < N; ++e) {
      const float g = to_float(d_out.value[e]), v = to_float(x.value[e]);
      d_weight[e] = norm::add_weight_gradient(g, v, rstd, d_weight[e]);
      d_x[e] = norm::gradient(g, to_float(weight.value[e]) + offset, rstd, fmaf(v, along_x, to_float(residual.value[e])));
    }
  }
};

/// A block has one of the row blocks: its groups take the rows in turn, and sum d_weight in registers.
/// d_x may be d_out or d_residual: a thread has read what it writes.
template <class T, int K, bool Long, class Whole>
__global__ void __launch_bounds__(most_threads) backward_kernel(RmsnormBackward p, float* partial, RowBlocks blocks, int group) {
  constexpr int N = vector_elements<T>;
  const int lane = static_cast<int>(threadIdx.x) % group, groups = static_cast<int>(blockDim.x) / group;
  const T* weight = static_cast<const T*>(p.weight);
  const norm::Share<N, K, Long> columns{group, lane, p.C};
  partial += blockIdx.x * p.C;
  float d_weight[K][N] = {};
  columns.rest([&](std::int64_t i) { store<Whole>(partial, i, p.C, d_weight[0]); });
  BackwardVector<T, N> held[K];
#pragma unroll
  for (int k = 0; k < K; ++k) held[k].weight = load<Whole, N>(weight, columns.at(k), p.C), held[k].offset = p.offset;

  const std::int64_t end = blocks.end(blockIdx.x);
  for (std::int64_t first = blocks.begin(blockIdx.x); first < end; first += groups) {
    const std::int64_t r = first + static_cast<int>(threadIdx.x) / group;
    const norm::Share<N, K, Long> share{group, lane, r < end ? p.C : 0};
    const T *d_out = static_cast<const T*>(p.d_out) + r * p.C, *x = static_cast<const T*>(p.x) + r * p.C;
    const T* d_residual = p.d_residual ? static_cast<const T*>(p.d_residual) + r * p.C : nullptr;
    T* d_x = static_cast<T*>(p.d_x) + r * p.C;
    const float rstd = r < end ? p.rstd[r] : 0;
    const auto residual_at = [&](std::int64_t i) { return d_residual ? load<Whole, N>(d_residual, i, share.C) : Vector<T, N>{}; };

    Vector<T, N> residual[K];
#pragma unroll
    for (int k = 0; k < K; ++k) {
      held[k].d_out = load<Whole, N>(d_out, share.at(k), share.C), held[k].x = load<Whole, N>(x, share.at(k), share.C);
      residual[k] = residual_at(share.at(k));
    }
    const auto read_again = [&](std::int64_t i) {
      return BackwardVector<T, N>{load<Whole, N>(d_out, i, share.C), load<Whole, N>(x, i, share.C), load<Whole, N>(weight, i, share.C),
                                  p.offset};
    };
    float dot = 0;
#pragma unroll
    for (int k = 0; k < K; ++k) dot = held[k].dot(dot);
    share.rest([&](std::int64_t i) { dot = read_again(i).dot(dot); });
    const float along_x = norm::along_x(group_sum(dot, group), p.C, rstd);

    float value[N];
#pragma unroll
    for (int k = 0; k < K; ++k) {
      keep_packed(held[k].d_out), keep_packed(held[k].x), keep_packed(held[k].weight);
      held[k].finish(d_weight[k], value, residual[k], rstd, along_x);
      store<Whole>(d_x, share.at(k), share.C, value);
    }
    share.rest([&](std::int64_t i) {
      float sum[N];
      load<Whole>(sum, partial, i, share.C);
      read_again(i).finish(sum, value, residual_at(i), rstd, along_x);
      store<Whole>(d_x, i, share.C, value), store<Whole>(partial, i, share.C, sum);
    });
  }
  norm::write_partial<Whole>(partial, d_weight, columns);
}

template <class T>
void forward(const Context& context, const RmsnormForward& p) {
  constexpr int N = vector_elements<T>;
  const Grouping g(p.C, N, forward_vectors);
  with_whole(on_sixteen_bytes(p.out, p.x, p.weight, p.residual) && whole_vectors(N, {p.C}), [&](auto whole) {
    using W = decltype(whole);
    auto* kernel = g.held() < p.C   ? forward_kernel<T, forward_vectors, true, W>
                   : g.vectors == 1 ? forward_kernel<T, 1, false, W>
                   : g.vectors == 2 ? forward_kernel<T, 2, false, W>
                                    : forward_kernel<T, forward_vectors, false, W>;
    launch(stream_of(context), static_cast<unsigned>(ceil_div(p.rows, g.rows())), static_cast<unsigned>(g.threads), 0, kernel, p, g.group);
  });
}

template <class T>
void backward(const Context& context, const RmsnormBackward& p) {
  constexpr int N = vector_elements<T>;
  const Grouping g(p.C, N, backward_vectors);
  const RowBlocks blocks = backward_blocks(p.rows, p.C, p.dtype);
  const bool on_sixteen = on_sixteen_bytes(p.d_x, p.d_out, p.d_residual, p.x, p.weight);
  auto* partial = reinterpret_cast<float*>(context.workspace.data());  // (blocks,C)
  with_whole(on_sixteen && whole_vectors(N, {p.C}), [&](auto whole) {
    using W = decltype(whole);
    auto* kernel = g.held() < p.C   ? backward_kernel<T, 1, true, W>
                   : g.vectors == 1 ? backward_kernel<T, 1, false, W>
                                    : backward_kernel<T, backward_vectors, false, W>;
    launch(stream_of(context), static_cast<unsigned>(blocks.count), static_cast<unsigned>(g.threads), 0, kernel, p, partial, blocks,
           g.group);
  });
  add_partial_sums(stream_of(context), p.d_weight, partial, blocks.count, p.C);
}

}  // namespace

void rmsnorm_forward(const Context& context, const RmsnormForward& p) {
  if (p.rows == 0 || p.C == 0) return;
  TESSERA_CUDA_REQUIRE(norm::rows_fit(p.rows));
  with_float_type(p.dtype, [&](auto type) { forward<decltype(type)>(context, p); });
}

void rmsnorm_backward(const Context& context, const RmsnormBackward& p) {
  if (p.rows == 0 || p.C == 0) return;
  TESSERA_CUDA_REQUIRE(norm::rows_fit(p.rows));
  TESSERA_CUDA_REQUIRE(context.workspace.size() >= cuda::rmsnorm_backward_workspace_bytes(p));
  with_float_type(p.dtype, [&](auto type) { backward<decltype(type)>(context, p); });
}
}  // namespace tessera::kernels::cuda
