// Bound by memory: one pass, the exponential runs in registers.
#include "kernels/parallel.hpp"
#include "kernels/swiglu/gates_host.hpp"
#include "kernels/swiglu/swiglu.hpp"

namespace tessera::kernels::host {
namespace {

std::int64_t swiglu_rows(std::int64_t F) { return std::max<std::int64_t>(1, 16384 / F); }

/// `ahead` is how far the next row of (M,2F) lies ahead, 0 in the last: it is asked for early.
template <GateActivation activation, bool Stream, class T>
void swiglu_row(T* out, const T* gate, const T* up, std::int64_t F, std::int64_t ahead, float limit) {
  for_vectors(0, F, [&](std::int64_t i, auto n) {
    prefetch(gate + ahead + i);
    prefetch(up + ahead + i);
    f32x16 g = load_any(gate + i, n), u = load_any(up + i, n);
    gates::limit_operands<activation>(g, u, limit);
    const f32x16 e = gates::exponential_of_gate<activation>(g);
    store_any<Stream>(out + i, gates::activated<activation>(g, e) * u, n);
  });
}

/// With s = sigmoid(v) and 1 - s = sigmoid(-v), where v is g or what it becomes in an activation: d_gate = d_out * up * s * (1 + g v' (1 -
/// s)), d_up = d_out * g * s.
template <GateActivation activation, bool Stream, bool Again, class T>
void swiglu_gradient_row(T* d_gate, T* d_up, T* out, const T* d_out, const T* gate, const T* up, std::int64_t F, std::int64_t ahead,
                         float limit) {
  for_vectors(0, F, [&](std::int64_t i, auto n) {
    prefetch(gate + ahead + i);
    prefetch(up + ahead + i);
    prefetch(d_out + ahead / 2 + i);
    f32x16 g = load_any(gate + i, n), u = load_any(up + i, n), d = load_any(d_out + i, n);
    const f32x16 gate_as_read = g, up_as_read = u;
    gates::limit_operands<activation>(g, u, limit);
    f32x16 e = gates::exponential_of_gate<activation>(g);
    if constexpr (activation == GateActivation::gelu) {
      const f32x16 below = gates::normal_below(g, e), slope = fma(g, e * gates::density_at_zero, below);
      if constexpr (Again) store_any(out + i, g * below * u, n);
      store_any<Stream>(d_up + i, d * (g * below), n);
      store_any<Stream>(d_gate + i, d * u * slope, n);
    } else {
      const gates::Sigmoids s = gates::sigmoids(g, e);
      if constexpr (Again) store_any(out + i, gates::silu(g, e) * u, n);
      const f32x16 ds = d * s.of;
      f32x16 d_g = ds * u * gates::growth<activation>(g, s.complement), d_u = ds * g;
      gates::limit_gradients<activation>(d_g, d_u, gate_as_read, up_as_read, limit);
      store_any<Stream>(d_up + i, d_u, n);
      store_any<Stream>(d_gate + i, d_g, n);
    }
  });
}

}  // namespace

void swiglu_forward(const Context&, const SwigluForward& p) {
  if (p.M == 0 || p.F == 0) return;
  with_float_type(p.dtype, "swiglu_forward", [&](auto type) {
    using T = decltype(type);
    T* out = static_cast<T*>(p.out);
    const T* gate_up = static_cast<const T*>(p.gate_up);
    std::int64_t row_bytes = p.F * static_cast<std::int64_t>(sizeof(T));
    bool stream = worth_streaming(out, p.M * row_bytes, row_bytes);
    gates::with_activation(p.activation, [&](auto activation) {
      auto run_row = stream ? swiglu_row<activation.value, true, T> : swiglu_row<activation.value, false, T>;
      parallel_ranges(p.M, swiglu_rows(p.F), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t m = begin; m < end; ++m) {
          const T* gate = gate_up + 2 * m * p.F;
          run_row(out + m * p.F, gate, gate + p.F, p.F, m + 1 < p.M ? 2 * p.F : 0, p.limit);
        }
        if (stream) stream_fence();
      });
    });
  });
}

void swiglu_backward(const Context&, const SwigluBackward& p) {
  if (p.M == 0 || p.F == 0) return;
  with_float_type(p.dtype, "swiglu_backward", [&](auto type) {
    using T = decltype(type);
    T* d_gate_up = static_cast<T*>(p.d_gate_up);
    T* out = static_cast<T*>(p.out);
    const T *d_out = static_cast<const T*>(p.d_out), *gate_up = static_cast<const T*>(p.gate_up);
    std::int64_t row_bytes = p.F * static_cast<std::int64_t>(sizeof(T));
    bool stream = d_gate_up != gate_up && worth_streaming(d_gate_up, 2 * p.M * row_bytes, row_bytes);
    gates::with_activation(p.activation, [&](auto activation) {
      constexpr GateActivation act = activation.value;
      auto run_row = out ? (stream ? swiglu_gradient_row<act, true, true, T> : swiglu_gradient_row<act, false, true, T>)
                         : (stream ? swiglu_gradient_row<act, true, false, T> : swiglu_gradient_row<act, false, false, T>);
      parallel_ranges(p.M, swiglu_rows(p.F), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t m = begin; m < end; ++m) {
          std::int64_t gate = 2 * m * p.F, up = gate + p.F;
          run_row(d_gate_up + gate, d_gate_up + up, out ? out + m * p.F : nullptr, d_out + m * p.F, gate_up + gate, gate_up + up, p.F,
                  m + 1 < p.M ? 2 * p.F : 0, p.limit);
        }
        if (stream) stream_fence();
      });
    });
  });
}

}  // namespace tessera::kernels::host
