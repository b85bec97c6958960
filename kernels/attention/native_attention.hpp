// Our own attention on a GPU (attention.cu). Only in a build with CUDA.
#pragma once
#include "kernels/attention/attention_sizes.hpp"
#include "kernels/attention/passes.hpp"

namespace tessera::kernels::cuda {

/// Raised with every change that makes these kernels faster or slower: choices between them and cuDNN that were kept before are made anew.
inline constexpr int native_revision = 2;

/// For checked shapes with B and T above 0; the forward pass takes no workspace.
void native_attention_forward(const Context& context, const ForwardPass& pass);
void native_attention_backward(const Context& context, const BackwardPass& pass);

}  // namespace tessera::kernels::cuda
