// Attention sinks (Xiao et al., arXiv:2309.17453; learned, as GPT-OSS has them): each query head has a logit z that its queries attend to
// besides their keys, and that has no value. With the out and lse of plain attention
//   out' = out sigmoid(lse - z), lse' = log(e^lse + e^z),
// which attention_backward takes as they are, and d_z = -sum over queries of e^(z - lse') (d_out . out').
#pragma once
#include "kernels/context.hpp"

namespace tessera::kernels {

/// What attention_forward gave becomes what it would be with sinks.
struct AttentionSinksForward {
  void* out = nullptr;          ///< (B*T, H*D), in place. Zeros where the keys have no share, as where lse is -infinity
  float* lse = nullptr;         ///< (B, H, T), in place
  const void* sinks = nullptr;  ///< (H)
  std::int64_t B = 0, T = 0, H = 0, D = 0;
  DType dtype = DType::f32;
};
TESSERA_OP(attention_sinks_forward, (const Context& context, const AttentionSinksForward& arguments), (context, arguments))

struct AttentionSinksBackward {
  float* d_sinks = nullptr;     ///< (H), added to
  const void* d_out = nullptr;  ///< (B*T, H*D)
  const void* out = nullptr;    ///< (B*T, H*D), with sinks
  const float* lse = nullptr;   ///< (B, H, T), with sinks
  const void* sinks = nullptr;  ///< (H), as in the forward pass
  std::int64_t B = 0, T = 0, H = 0, D = 0;
  DType dtype = DType::f32;
};
TESSERA_OP(attention_sinks_backward, (const Context& context, const AttentionSinksBackward& arguments), (context, arguments))
/// For partial sums of d_sinks: a fixed number of blocks of tokens, summed in a fixed order, whatever the number of threads.
TESSERA_WORKSPACE(attention_sinks_backward_workspace_bytes, AttentionSinksBackward)

}  // namespace tessera::kernels
