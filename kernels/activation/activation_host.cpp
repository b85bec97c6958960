// Bound by memory: one pass over (M,F) as a flat range, the activation runs in registers.
#include "kernels/activation/activation.hpp"

#include <algorithm>

#include "kernels/activation/formulas.hpp"
#include "kernels/swiglu/gates_host.hpp"
#include "kernels/vector/row_blocks.hpp"

namespace tessera::kernels::host {
namespace {

using activations::Factors;

constexpr std::int64_t activation_piece = 16384;

template <class T>
Factors factors_of(const void* alphas) {
  if (!alphas) return {};
  const T* alpha = static_cast<const T*>(alphas);
  return {activations::factor_of(static_cast<float>(alpha[0]), true), activations::factor_of(static_cast<float>(alpha[1]), false)};
}
template <class T>
bool streams(const T* out, std::int64_t n) {
  return worth_streaming(out, n * static_cast<std::int64_t>(sizeof(T)), 64);  // the flat range is one row, of which a rest is not streamed
}

template <PlainActivation activation>
constexpr GateActivation gate_of = activation == PlainActivation::gelu ? GateActivation::gelu : GateActivation::gelu_tanh;

template <PlainActivation activation>
TESSERA_INLINE f32x16 plain_value(f32x16 x, const Factors& factors) {
  if constexpr (activation == PlainActivation::xielu) {
    return activations::Xielu(x).value(factors);
  } else if constexpr (activation == PlainActivation::relu_squared) {
    const f32x16 r = activations::rectified(x);
    return r * r;
  } else {
    return gates::activated<gate_of<activation>>(x, gates::exponential_of_gate<gate_of<activation>>(x));
  }
}

struct ValueAndSlope {
  f32x16 value, slope;
};
/// Of what is no xIELU. What is not used of it costs nothing.
template <PlainActivation activation>
TESSERA_INLINE ValueAndSlope value_and_slope(f32x16 x) {
  if constexpr (activation == PlainActivation::relu_squared) {
    const f32x16 r = activations::rectified(x);
    return {r * r, r + r};
  } else {
    const f32x16 e = gates::exponential_of_gate<gate_of<activation>>(x);
    if constexpr (activation == PlainActivation::gelu) {
      const f32x16 below = gates::normal_below(x, e);
      return {x * below, fma(x, e * gates::density_at_zero, below)};
    } else {
      const gates::Sigmoids s = gates::sigmoids(x, e);
      return {gates::silu(x, e), s.of * gates::growth<GateActivation::gelu_tanh>(x, s.complement)};
    }
  }
}

template <PlainActivation activation, bool Stream, class T>
void activate(const ActivationForward& p, const Factors& factors, std::int64_t begin, std::int64_t end) {
  T* out = static_cast<T*>(p.out);
  const T* x = static_cast<const T*>(p.x);
  for_vectors(begin, end,
              [&](std::int64_t i, auto n) { store_any<Stream>(out + i, plain_value<activation>(load_any(x + i, n), factors), n); });
}

/// The terms of d_alphas of elements [begin, end) in the order of T: those of a_p, and those of a_n.
struct AlphaTerms {
  f32x16 positive{}, negative{};
};
/// d_x may be d_out or x, out d_out: an element is written after it was read.
template <PlainActivation activation, bool Stream, bool Again, class T>
AlphaTerms differentiate(const ActivationBackward& p, const Factors& factors, std::int64_t begin, std::int64_t end) {
  T *d_x = static_cast<T*>(p.d_x), *out = static_cast<T*>(p.out);
  const T *d_out = static_cast<const T*>(p.d_out), *x = static_cast<const T*>(p.x);
  AlphaTerms terms;
  for_vectors(begin, end, [&](std::int64_t i, auto n) {
    const f32x16 v = load_any(x + i, n), d = load_any(d_out + i, n);
    if constexpr (activation == PlainActivation::xielu) {
      const activations::Xielu at(v);
      terms = {at.add_positive(d, terms.positive), at.add_negative(d, terms.negative)};
      if constexpr (Again) store_any(out + i, at.value(factors), n);
      store_any<Stream>(d_x + i, d * at.slope(factors), n);
    } else {
      const ValueAndSlope at = value_and_slope<activation>(v);
      if constexpr (Again) store_any(out + i, at.value, n);
      store_any<Stream>(d_x + i, d * at.slope, n);
    }
  });
  return terms;
}
template <PlainActivation activation, class T>
auto differentiate_for(const ActivationBackward& p) {
  const bool stream = p.d_x != p.d_out && p.d_x != p.x && streams(static_cast<const T*>(p.d_x), p.M * p.F);
  if (p.out) return stream ? differentiate<activation, true, true, T> : differentiate<activation, false, true, T>;
  return stream ? differentiate<activation, true, false, T> : differentiate<activation, false, false, T>;
}

/// Elements that fp32 sums; the sums of these are added in fp64.
constexpr std::int64_t alpha_unit = 1024;
RowBlocks alpha_blocks(const ActivationBackward& p) { return RowBlocks(ceil_div(p.M * p.F, alpha_unit)); }
struct AlphaSums {
  double positive = 0, negative = 0;
};

template <class T>
void xielu_backward(const Context& context, const ActivationBackward& p) {
  const std::int64_t n = p.M * p.F;
  const Factors factors = factors_of<T>(p.alphas);
  const RowBlocks blocks = alpha_blocks(p);
  auto* partial = reinterpret_cast<AlphaSums*>(context.workspace.data());  // (blocks)
  auto run = differentiate_for<PlainActivation::xielu, T>(p);
  parallel_ranges(blocks.count, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t b = first; b < last; ++b) {
      AlphaSums sums;
      for (std::int64_t unit = blocks.begin(b); unit < blocks.end(b); ++unit) {
        const AlphaTerms terms = run(p, factors, unit * alpha_unit, std::min(n, (unit + 1) * alpha_unit));
        sums.positive += static_cast<double>(horizontal_sum(in_order<T>(terms.positive)));
        sums.negative += static_cast<double>(horizontal_sum(in_order<T>(terms.negative)));
      }
      partial[b] = sums;
    }
    stream_fence();
  });
  AlphaSums total;
  for (std::int64_t b = 0; b < blocks.count; ++b) total.positive += partial[b].positive, total.negative += partial[b].negative;
  const T* alpha = static_cast<const T*>(p.alphas);
  p.d_alphas[0] += static_cast<float>(total.positive) * sigmoid(static_cast<float>(alpha[0]));
  p.d_alphas[1] += static_cast<float>(total.negative) * sigmoid(static_cast<float>(alpha[1]));
}

}  // namespace

void activation_forward(const Context&, const ActivationForward& p) {
  const std::int64_t n = p.M * p.F;
  if (n == 0) return;
  TESSERA_REQUIRE((p.alphas != nullptr) == (p.activation == PlainActivation::xielu), "activation_forward: alphas are xielu's");
  with_float_type(p.dtype, "activation_forward", [&](auto type) {
    using T = decltype(type);
    const Factors factors = factors_of<T>(p.alphas);
    const bool stream = p.out != p.x && streams(static_cast<const T*>(p.out), n);
    activations::with_plain_activation(p.activation, [&](auto activation) {
      auto run = stream ? activate<activation.value, true, T> : activate<activation.value, false, T>;
      parallel_ranges(n, activation_piece, [&](std::int64_t begin, std::int64_t end) {
        run(p, factors, begin, end);
        stream_fence();
      });
    });
  });
}

void activation_backward(const Context& context, const ActivationBackward& p) {
  const std::int64_t n = p.M * p.F;
  if (n == 0) return;
  const bool xielu = p.activation == PlainActivation::xielu;
  TESSERA_REQUIRE((p.alphas != nullptr) == xielu && (p.d_alphas != nullptr) == xielu, "activation_backward: alphas are xielu's");
  const std::size_t needed = host::activation_backward_workspace_bytes(p);
  TESSERA_REQUIRE(context.workspace.size() >= needed, "activation_backward needs {} bytes of workspace, has {}", needed,
                  context.workspace.size());
  with_float_type(p.dtype, "activation_backward", [&](auto type) {
    using T = decltype(type);
    if (xielu) return xielu_backward<T>(context, p);
    activations::with_plain_activation(p.activation, [&](auto activation) {
      if constexpr (activation.value != PlainActivation::xielu) {
        auto run = differentiate_for<activation.value, T>(p);
        parallel_ranges(n, activation_piece, [&](std::int64_t begin, std::int64_t end) {
          run(p, {}, begin, end);
          stream_fence();
        });
      }
    });
  });
}

std::size_t activation_backward_workspace_bytes(const ActivationBackward& p) {
  return p.activation == PlainActivation::xielu ? static_cast<std::size_t>(alpha_blocks(p).count) * sizeof(AlphaSums) : 0;
}

}  // namespace tessera::kernels::host
