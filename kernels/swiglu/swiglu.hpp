// SwiGLU (Shazeer, arXiv:2002.05202): out = silu(gate) * up.
#pragma once
#include "kernels/context.hpp"

namespace tessera::kernels {

struct SwigluForward {
  void* out = nullptr;            ///< (M,F)
  const void* gate_up = nullptr;  ///< (M,2F): gate then up
  std::int64_t M = 0, F = 0;
  DType dtype = DType::f32;
};
TESSERA_OP(swiglu_forward, (const Context& context, const SwigluForward& arguments), (context, arguments))

struct SwigluBackward {
  void* d_gate_up = nullptr;      ///< (M,2F); may be the memory of gate_up
  const void* d_out = nullptr;    ///< (M,F)
  const void* gate_up = nullptr;  ///< (M,2F)
  std::int64_t M = 0, F = 0;
  DType dtype = DType::f32;
  void* out = nullptr;  ///< (M,F): forward's once more, to the bit; may be the memory of d_out. Null: not wanted
};
TESSERA_OP(swiglu_backward, (const Context& context, const SwigluBackward& arguments), (context, arguments))

}  // namespace tessera::kernels
