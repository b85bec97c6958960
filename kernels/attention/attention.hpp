// Causal self-attention with grouped queries, tiled: memory linear in T, tiles above the diagonal skipped.
// Dao et al., FlashAttention-2 (arXiv:2307.08691): online softmax, log-sum-exp saved for the backward pass.
#pragma once
#include "kernels/context.hpp"

namespace tessera::kernels {

/// Whose code runs attention on a GPU: ours, cuDNN's (bf16 alone), or the faster of the two, which is found while a KernelSearch lives
/// (ours where none has). The host has its own.
enum class AttentionPath : std::uint8_t { native, cudnn, fastest };

/// Shapes: B sequences, T tokens, H query heads, G key/value heads (H % G == 0), D head dim (even).
/// qkv is one row per token: (B*T, (H+2G)*D) = [H query heads | G key heads | G value heads], after RoPE.
struct AttentionShape {
  std::int64_t B = 0, T = 0, H = 0, G = 0, D = 0;
  DType dtype = DType::f32;
  AttentionPath path = AttentionPath::native;
  bool deterministic = false;  ///< cuDNN's backward pass too must give the same bits twice (ours always does); costs T x T of workspace
};

struct AttentionForward {
  void* out = nullptr;        ///< (B*T, H*D)
  float* lse = nullptr;       ///< (B, H, T) log-sum-exp of the scaled scores
  const void* qkv = nullptr;  ///< (B*T, (H+2G)*D)
  AttentionShape shape;
};
TESSERA_OP(attention_forward, (const Context& context, const AttentionForward& arguments), (context, arguments))
TESSERA_WORKSPACE(attention_forward_workspace_bytes, AttentionShape)

struct AttentionBackward {
  void* d_qkv = nullptr;        ///< (B*T, (H+2G)*D), overwritten
  const void* d_out = nullptr;  ///< (B*T, H*D)
  const void* qkv = nullptr;    ///< as in the forward pass
  const void* out = nullptr;    ///< (B*T, H*D)
  const float* lse = nullptr;   ///< (B, H, T)
  AttentionShape shape;
};
TESSERA_OP(attention_backward, (const Context& context, const AttentionBackward& arguments), (context, arguments))
TESSERA_WORKSPACE(attention_backward_workspace_bytes, AttentionShape)

/// One new token per sequence against a cache, for generate. Its key and value are written into the caches at `position`, the same place in
/// all sequences; its queries see them and all that lies before.
struct AttentionDecode {
  void* out = nullptr;                     ///< (B, H*D)
  const void* qkv = nullptr;               ///< (B, (H+2G)*D), after RoPE
  void* cache_k = nullptr;                 ///< (B, capacity, G*D)
  void* cache_v = nullptr;                 ///< the same
  const std::int32_t* position = nullptr;  ///< below capacity; memory of the backend, so that a CUDA graph serves every position
  std::int64_t capacity = 0;
  AttentionShape shape;  ///< T is not used
};
TESSERA_OP(attention_decode, (const Context& context, const AttentionDecode& arguments), (context, arguments))
/// Pointers are not looked at.
TESSERA_WORKSPACE(attention_decode_workspace_bytes, AttentionDecode)

}  // namespace tessera::kernels
