// Activations without a gate: out = act(x).
#pragma once
#include "kernels/context.hpp"

namespace tessera::kernels {

/// gelu and gelu_tanh as a gate has them (kernels/swiglu/swiglu.hpp); relu_squared is max(x, 0)^2 (So et al., arXiv:2109.08668).
/// xielu (Huang and Schlag, arXiv:2411.13010) is a_p x^2 + x / 2 where x > 0, else a_n (expm1(min(x, -1e-6)) - x) + x / 2, with
/// a_p = softplus(alphas[0]) and a_n = 1/2 + softplus(alphas[1]).
enum class PlainActivation : std::uint8_t { gelu, gelu_tanh, relu_squared, xielu };

struct ActivationForward {
  void* out = nullptr;           ///< (M,F); may be the memory of x
  const void* x = nullptr;       ///< (M,F)
  const void* alphas = nullptr;  ///< (2) of dtype: xielu's parameters of the positive and of the negative side; else null
  std::int64_t M = 0, F = 0;
  DType dtype = DType::f32;
  PlainActivation activation = PlainActivation::gelu;
};
TESSERA_OP(activation_forward, (const Context& context, const ActivationForward& arguments), (context, arguments))

struct ActivationBackward {
  void* d_x = nullptr;           ///< (M,F); may be the memory of d_out or of x
  float* d_alphas = nullptr;     ///< (2), added to; null but for xielu
  const void* d_out = nullptr;   ///< (M,F)
  const void* x = nullptr;       ///< (M,F)
  const void* alphas = nullptr;  ///< as in the forward pass
  std::int64_t M = 0, F = 0;
  DType dtype = DType::f32;
  PlainActivation activation = PlainActivation::gelu;
  void* out = nullptr;  ///< (M,F): forward's once more, to the bit; may be the memory of d_out where d_x is not. Null: not wanted
};
TESSERA_OP(activation_backward, (const Context& context, const ActivationBackward& arguments), (context, arguments))
/// For xielu's partial sums of d_alphas: a fixed number of blocks, summed in a fixed order, whatever the number of threads. Others need
/// none.
TESSERA_WORKSPACE(activation_backward_workspace_bytes, ActivationBackward)

}  // namespace tessera::kernels
