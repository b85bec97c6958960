// Gated linear units (Shazeer, arXiv:2002.05202): out = act(gate) * up; SwiGLU where act is silu, GeGLU where it is one of the GELUs.
#pragma once
#include "kernels/context.hpp"

namespace tessera::kernels {

/// gelu is x times the normal distribution's probability of less than x; gelu_tanh its approximation of Hendrycks and Gimpel
/// (arXiv:1606.08415), 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))). clamped_silu is GPT-OSS's, as its published model code has it
/// (openai/gpt-oss): with g = min(gate, limit) and u = up held between -limit and limit, out = g sigmoid(1.702 g) (u + 1). What lies beyond
/// a bound has no gradient, what lies on it has.
enum class GateActivation : std::uint8_t { silu, gelu_tanh, gelu, clamped_silu };

struct SwigluForward {
  void* out = nullptr;            ///< (M,F)
  const void* gate_up = nullptr;  ///< (M,2F): gate then up
  std::int64_t M = 0, F = 0;
  DType dtype = DType::f32;
  GateActivation activation = GateActivation::silu;
  float limit = 7;  ///< of clamped_silu
};
TESSERA_OP(swiglu_forward, (const Context& context, const SwigluForward& arguments), (context, arguments))

struct SwigluBackward {
  void* d_gate_up = nullptr;      ///< (M,2F); may be the memory of gate_up
  const void* d_out = nullptr;    ///< (M,F)
  const void* gate_up = nullptr;  ///< (M,2F)
  std::int64_t M = 0, F = 0;
  DType dtype = DType::f32;
  GateActivation activation = GateActivation::silu;
  float limit = 7;      ///< of clamped_silu
  void* out = nullptr;  ///< (M,F): forward's once more, to the bit; may be the memory of d_out. Null: not wanted
};
TESSERA_OP(swiglu_backward, (const Context& context, const SwigluBackward& arguments), (context, arguments))

}  // namespace tessera::kernels
