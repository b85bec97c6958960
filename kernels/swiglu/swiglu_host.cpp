// Bound by memory: one pass, the exponential runs in registers.
#include "kernels/exp.hpp"
#include "kernels/parallel.hpp"
#include "kernels/swiglu/gates.hpp"
#include "kernels/swiglu/swiglu.hpp"
#include "kernels/vector/vector.hpp"

namespace tessera::kernels::host {
namespace {

std::int64_t swiglu_rows(std::int64_t F) { return std::max<std::int64_t>(1, 16384 / F); }

/// e^-|g| in [0, 1], from which the sigmoids of g and -g come without a difference; what would be subnormal is 0.
TESSERA_INLINE f32x16 exp_of_minus_abs(f32x16 g) {
  f32x16 x = bits_as<f32x16>(bits_as<u32x16>(g) | 0x80000000u);
  return select(x >= splat(lowest_exponent), exp_nonpositive_in_range(x), f32x16{});
}

/// silu(g), where e = e^-|g|.
TESSERA_INLINE f32x16 silu(f32x16 g, f32x16 e) { return select_by_sign(g, g * e, g) / (e + 1.0f); }

/// P(g), where e = e^(-g^2 / 2).
TESSERA_INLINE f32x16 normal_below(f32x16 g, f32x16 e) {
  const f32x16 tail = e * gates::tail(1.0f / (gates::magnitude(g) + gates::tail_shift));
  return select_by_sign(g, tail, 1.0f - tail);
}

/// The exponential that a gate's activation is made of, and the activation.
template <GateActivation activation>
TESSERA_INLINE f32x16 exponential_of_gate(f32x16 g) {
  if constexpr (activation == GateActivation::gelu_tanh) return exp_of_minus_abs(gates::inner(g));
  if constexpr (activation == GateActivation::gelu) return exp_of_minus_abs(gates::half_square(g));
  if constexpr (activation == GateActivation::clamped_silu) return exp_of_minus_abs(g * gates::clamped_slope);
  return exp_of_minus_abs(g);
}
template <GateActivation activation>
TESSERA_INLINE f32x16 activated(f32x16 g, f32x16 e) {
  if constexpr (activation == GateActivation::gelu) return g * normal_below(g, e);
  return silu(g, e);  // v has the sign of g
}

/// `ahead` is how far the next row of (M,2F) lies ahead, 0 in the last: it is asked for early.
template <GateActivation activation, bool Stream, class T>
void swiglu_row(T* out, const T* gate, const T* up, std::int64_t F, std::int64_t ahead, float limit) {
  for_vectors(0, F, [&](std::int64_t i, auto n) {
    prefetch(gate + ahead + i);
    prefetch(up + ahead + i);
    f32x16 g = load_any(gate + i, n), u = load_any(up + i, n);
    gates::limit_operands<activation>(g, u, limit);
    store_any<Stream>(out + i, activated<activation>(g, exponential_of_gate<activation>(g)) * u, n);
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
    f32x16 e = exponential_of_gate<activation>(g);
    if constexpr (activation == GateActivation::gelu) {
      const f32x16 below = normal_below(g, e), slope = fma(g, e * gates::density_at_zero, below);
      if constexpr (Again) store_any(out + i, g * below * u, n);
      store_any<Stream>(d_up + i, d * (g * below), n);
      store_any<Stream>(d_gate + i, d * u * slope, n);
    } else {
      f32x16 larger = 1.0f / (e + 1.0f), smaller = e * larger;
      if constexpr (Again) store_any(out + i, silu(g, e) * u, n);
      f32x16 ds = d * select_by_sign(g, smaller, larger), complement = select_by_sign(g, larger, smaller), growth = g;
      if constexpr (activation == GateActivation::gelu_tanh) growth = gates::inner_growth(gates::bounded(g));
      if constexpr (activation == GateActivation::clamped_silu) growth = gates::clamped_growth(g);
      f32x16 d_g = ds * u * fma(growth, complement, splat(1.0f)), d_u = ds * g;
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
