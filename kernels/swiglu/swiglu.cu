// Bound by memory: forward reads two elements and writes one, backward reads three and writes two. In fp32 the exponential and the
// division are the host's, and so are the bits; in bf16 the hardware's approximations (2^-21 or so) leave arithmetic well below the time
// that memory takes. Not yet measured.
#include "kernels/swiglu/swiglu.hpp"

#include "kernels/cuda/rows.hpp"
#include "kernels/exp.hpp"

namespace tessera::kernels::cuda {
namespace {

using namespace tessera::cuda;

template <class T>
__device__ float exponential(float x) {
  return sizeof(T) == 4 ? kernels::exp(x) : __expf(x);
}
template <class T>
__device__ float quotient(float x, float y) {
  return sizeof(T) == 4 ? x / y : __fdividef(x, y);
}

template <class T, class Whole>
__global__ void __launch_bounds__(block_threads) forward_kernel(SwigluForward p, RowVectors vectors) {
  constexpr int N = vector_elements<T>;
  const auto [row, vector] = vectors.place();
  if (row >= vectors.rows) return;
  const std::int64_t i = static_cast<std::int64_t>(vector) * N;
  const T* gate = static_cast<const T*>(p.gate_up) + 2 * row * p.F;
  float g[N], u[N];
  load<Whole>(g, gate, i, p.F), load<Whole>(u, gate + p.F, i, p.F);
#pragma unroll
  for (int k = 0; k < N; ++k) g[k] = quotient<T>(g[k], exponential<T>(-g[k]) + 1.0f) * u[k];
  store<Whole>(static_cast<T*>(p.out) + row * p.F, i, p.F, g);
}

/// With s = sigmoid(g): d_gate = d_out * up * s * (1 + g (1 - s)), d_up = d_out * g * s. Where s is near 1, 1 - s would lose its digits,
/// and e^-g s has them. A thread writes what it alone has read, so d_gate_up may be gate_up.
template <class T, class Whole>
__global__ void __launch_bounds__(block_threads) backward_kernel(SwigluBackward p, RowVectors vectors) {
  constexpr int N = vector_elements<T>;
  const auto [row, vector] = vectors.place();
  if (row >= vectors.rows) return;
  const std::int64_t i = static_cast<std::int64_t>(vector) * N;
  const T* gate = static_cast<const T*>(p.gate_up) + 2 * row * p.F;
  float g[N], u[N], d[N];
  load<Whole>(g, gate, i, p.F), load<Whole>(u, gate + p.F, i, p.F);
  load<Whole>(d, static_cast<const T*>(p.d_out) + row * p.F, i, p.F);
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const float e = exponential<T>(-g[k]), s = quotient<T>(1.0f, e + 1.0f), ds = d[k] * s;
    const float complement = e > 1.0f ? 1.0f - s : e * s;
    d[k] = ds * u[k] * fmaf(g[k], complement, 1.0f);
    u[k] = ds * g[k];
  }
  T* d_gate = static_cast<T*>(p.d_gate_up) + 2 * row * p.F;
  store<Whole>(d_gate, i, p.F, d), store<Whole>(d_gate + p.F, i, p.F, u);
}

}  // namespace

void swiglu_forward(const Context& context, const SwigluForward& p) {
  if (p.M == 0 || p.F == 0) return;
  with_float_type(p.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int N = vector_elements<T>;
    const RowVectors vectors(p.M, p.F, N);
    with_whole(on_sixteen_bytes(p.out, p.gate_up) && whole_vectors(N, {p.F}), [&](auto whole) {
      launch(stream_of(context), vectors.blocks(), block_threads, 0, forward_kernel<T, decltype(whole)>, p, vectors);
    });
  });
}

void swiglu_backward(const Context& context, const SwigluBackward& p) {
  if (p.M == 0 || p.F == 0) return;
  with_float_type(p.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int N = vector_elements<T>;
    const RowVectors vectors(p.M, p.F, N);
    with_whole(on_sixteen_bytes(p.d_gate_up, p.d_out, p.gate_up) && whole_vectors(N, {p.F}), [&](auto whole) {
      launch(stream_of(context), vectors.blocks(), block_threads, 0, backward_kernel<T, decltype(whole)>, p, vectors);
    });
  });
}

}  // namespace tessera::kernels::cuda
