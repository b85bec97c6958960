// Bound by memory: forward reads two elements and writes one, backward reads three and writes two, or three where it makes
// forward's output once more. In 16 bits the hardware's approximations leave arithmetic well below the time that memory takes. Not yet
// measured.
#include "kernels/swiglu/swiglu.hpp"

#include "kernels/cuda/rows.hpp"
#include "kernels/swiglu/gates_cuda.hpp"

namespace tessera::kernels::cuda {
namespace {

using namespace tessera::cuda;

template <GateActivation activation, class T, class Whole>
__global__ void __launch_bounds__(block_threads) forward_kernel(SwigluForward p, RowVectors vectors) {
  constexpr int N = vector_elements<T>;
  const auto [row, vector] = vectors.place();
  if (row >= vectors.rows) return;
  const std::int64_t i = static_cast<std::int64_t>(vector) * N;
  const T* gate = static_cast<const T*>(p.gate_up) + 2 * row * p.F;
  float g[N], u[N];
  load<Whole>(g, gate, i, p.F), load<Whole>(u, gate + p.F, i, p.F);
#pragma unroll
  for (int k = 0; k < N; ++k) {
    gates::limit_operands<activation>(g[k], u[k], p.limit);
    g[k] = gates::activated<activation, T>(g[k], gates::exponential_of_gate<activation, T>(g[k])) * u[k];
  }
  store<Whole>(static_cast<T*>(p.out) + row * p.F, i, p.F, g);
}

/// With s = sigmoid(v) and 1 - s = sigmoid(-v), where v is g or what it becomes in an activation: d_gate = d_out * up * s * (1 + g v' (1 -
/// s)), d_up = d_out * g * s. A thread writes what it alone has read, so d_gate_up may be gate_up, and out d_out.
template <GateActivation activation, class T, class Whole, bool again>
__global__ void __launch_bounds__(block_threads) backward_kernel(SwigluBackward p, RowVectors vectors) {
  constexpr int N = vector_elements<T>;
  const auto [row, vector] = vectors.place();
  if (row >= vectors.rows) return;
  const std::int64_t i = static_cast<std::int64_t>(vector) * N;
  const T* gate = static_cast<const T*>(p.gate_up) + 2 * row * p.F;
  float g[N], u[N], d[N], out[N];
  load<Whole>(g, gate, i, p.F), load<Whole>(u, gate + p.F, i, p.F);
  load<Whole>(d, static_cast<const T*>(p.d_out) + row * p.F, i, p.F);
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const float gate_as_read = g[k], up_as_read = u[k];
    gates::limit_operands<activation>(g[k], u[k], p.limit);
    const float e = gates::exponential_of_gate<activation, T>(g[k]);
    if constexpr (activation == GateActivation::gelu) {
      const float below = gates::normal_below<T>(g[k], e), slope = fmaf(g[k], e * gates::density_at_zero, below);
      if constexpr (again) out[k] = g[k] * below * u[k];
      const float d_gate = d[k] * u[k] * slope;
      u[k] = d[k] * (g[k] * below);
      d[k] = d_gate;
    } else {
      const auto [s, complement] = gates::sigmoids<T>(g[k], e);
      if constexpr (again) out[k] = gates::silu<T>(g[k], e) * u[k];
      const float ds = d[k] * s;
      d[k] = ds * u[k] * gates::growth<activation>(g[k], complement);
      u[k] = ds * g[k];
      gates::limit_gradients<activation>(d[k], u[k], gate_as_read, up_as_read, p.limit);
    }
  }
  T* d_gate = static_cast<T*>(p.d_gate_up) + 2 * row * p.F;
  store<Whole>(d_gate, i, p.F, d), store<Whole>(d_gate + p.F, i, p.F, u);
  if constexpr (again) store<Whole>(static_cast<T*>(p.out) + row * p.F, i, p.F, out);
}

}  // namespace

void swiglu_forward(const Context& context, const SwigluForward& p) {
  if (p.M == 0 || p.F == 0) return;
  with_float_type(p.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int N = vector_elements<T>;
    const RowVectors vectors(p.M, p.F, N);
    with_whole(on_sixteen_bytes(p.out, p.gate_up) && whole_vectors(N, {p.F}), [&](auto whole) {
      gates::with_activation(p.activation, [&](auto act) {
        launch(stream_of(context), vectors.blocks(), block_threads, 0, forward_kernel<act.value, T, decltype(whole)>, p, vectors);
      });
    });
  });
}

void swiglu_backward(const Context& context, const SwigluBackward& p) {
  if (p.M == 0 || p.F == 0) return;
  with_float_type(p.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int N = vector_elements<T>;
    const RowVectors vectors(p.M, p.F, N);
    with_whole(on_sixteen_bytes(p.d_gate_up, p.d_out, p.gate_up, p.out) && whole_vectors(N, {p.F}), [&](auto whole) {
      gates::with_activation(p.activation, [&](auto act) {
        using W = decltype(whole);
        auto* kernel = p.out ? backward_kernel<act.value, T, W, true> : backward_kernel<act.value, T, W, false>;
        launch(stream_of(context), vectors.blocks(), block_threads, 0, kernel, p, vectors);
      });
    });
  });
}

}  // namespace tessera::kernels::cuda
