// Causal self-attention with grouped queries, tiled: memory linear in T, tiles above the diagonal skipped.
// Dao et al., FlashAttention-2 (arXiv:2307.08691): online softmax, log-sum-exp saved for the backward pass.
#pragma once
#include "kernels/context.hpp"

namespace tessera::kernels {

/// Whose code runs attention on a GPU: ours, cuDNN's (of 16 bits alone), or the faster of the two, which is found while a KernelSearch
/// lives (ours where none has). The host has its own.
enum class AttentionPath : std::uint8_t { native, cudnn, fastest };

/// Rows of a sequence from `row` on lie so many tokens further on in it than those before them do: a rank of a ring has two chunks, and
/// windows and documents count what lies between them.
struct AttentionGap {
  std::int64_t row = 0, tokens = 0;
};

/// Shapes: B sequences, T tokens, H query heads, G key/value heads (H % G == 0), D head dim (even).
/// qkv is one row per token: (B*T, (H+2G)*D) = [H query heads | G key heads | G value heads], after RoPE.
struct AttentionShape {
  std::int64_t B = 0, T = 0, H = 0, G = 0, D = 0;
  DType dtype = DType::f32;
  AttentionPath path = AttentionPath::native;
  bool deterministic = false;  ///< cuDNN's backward pass too must give the same bits twice (ours always does); costs T x T of workspace
  /// A query sees so many keys at most, its own and those right before it (a sliding window); 0: all before it. Key tiles that lie outside
  /// cost nothing, and our own kernels compute it whatever `path` says.
  std::int64_t window = 0;
  float scale = 0;  ///< of the products of queries and keys; 0: 1 / sqrt(D)
  /// A scaled product x counts as softcap tanh(x / softcap), which lies within softcap (Gemma 2); 0: as it is. Our own kernels compute it
  /// whatever `path` says.
  float softcap = 0;
  AttentionGap gap = {};  ///< of queries, and but for blocks of keys; without windows and documents nothing asks where rows lie
};

struct AttentionForward {
  void* out = nullptr;        ///< (B*T, H*D)
  float* lse = nullptr;       ///< (B, H, T) log-sum-exp of the scores, scaled and capped
  const void* qkv = nullptr;  ///< (B*T, (H+2G)*D)
  AttentionShape shape;
  /// (B, T) or null. With it a query sees the keys of its own document alone, up to its own: those from document_starts[b, t] to t. It is t
  /// less the tokens of the document before the query, and never falls: with a gap, of a document that begins before it, as many rows back
  /// as if there were none, below 0 too. Key tiles that lie outside cost nothing: time grows with the sum of squares of documents. Our own
  /// kernels compute it whatever shape.path says. With a window too a query sees what both let it see.
  const std::int32_t* document_starts = nullptr;
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
  const std::int32_t* document_starts = nullptr;  ///< as in the forward pass
};
TESSERA_OP(attention_backward, (const Context& context, const AttentionBackward& arguments), (context, arguments))
TESSERA_WORKSPACE(attention_backward_workspace_bytes, AttentionShape)

/// Of the T rows of each sequence those from `first` on.
struct AttentionRows {
  std::int64_t first = 0, count = 0;
};

/// A block of ring attention (Liu et al., arXiv:2310.01889): a rank's queries against the keys and values of another, packed as kv, one row
/// per token: (B*T, 2*G*D) = [G key heads | G value heads]. Every query of `queries` sees every key of `keys`, at least one of each; with a
/// window, which counts from a query's own place in the sequence back, those that are in it: the first query all of them, and each the
/// last of them. Our own kernels compute blocks whatever shape.path says: cuDNN's read keys and values as they lie in qkv.
struct AttentionBlock {
  AttentionShape shape;
  AttentionRows queries, keys;
  std::int64_t ahead = 0;      ///< so many tokens of the sequence the queries' row 0 lies behind that of the keys; negative: before it
  AttentionGap keys_gap = {};  ///< of the keys' rows, as shape.gap is of the queries'
};

struct AttentionBlockForward {
  void* out = nullptr;        ///< (B*T, H*D), of which rows `queries` are overwritten
  float* lse = nullptr;       ///< (B, H, T), the same rows: over the keys of this block alone
  const void* qkv = nullptr;  ///< (B*T, (H+2G)*D), of which queries are read
  const void* kv = nullptr;   ///< (B*T, 2*G*D)
  AttentionBlock block;
  /// (B, T) of the queries, as AttentionForward has them. A query sees of what the block lets it see the keys of its document: where there
  /// are none, out is 0 and lse -infinity.
  const std::int32_t* document_starts = nullptr;
};
TESSERA_OP(attention_block_forward, (const Context& context, const AttentionBlockForward& arguments), (context, arguments))
TESSERA_WORKSPACE(attention_block_forward_workspace_bytes, AttentionBlock)

struct AttentionBlockBackward {
  void* d_q = nullptr;          ///< (B*T, H*D), of which rows `queries` are overwritten
  void* d_kv = nullptr;         ///< (B*T, 2*G*D), of which rows `keys` are overwritten
  const void* d_out = nullptr;  ///< (B*T, H*D)
  const void* qkv = nullptr;    ///< as in the forward pass
  const void* kv = nullptr;     ///< as in the forward pass
  const void* out = nullptr;    ///< (B*T, H*D), over all blocks, not this one alone
  const float* lse = nullptr;   ///< (B, H, T), over all blocks
  AttentionBlock block;
  const std::int32_t* document_starts = nullptr;  ///< as in the forward pass
};
TESSERA_OP(attention_block_backward, (const Context& context, const AttentionBlockBackward& arguments), (context, arguments))
TESSERA_WORKSPACE(attention_block_backward_workspace_bytes, AttentionBlock)

/// One new token per sequence against a cache, for generate. Its key and value are written into the caches, for `position`, which is that
/// of all sequences; its queries see them and what lies before, of a window its last keys alone. Token t has row t % capacity of the
/// caches.
struct AttentionDecode {
  void* out = nullptr;                     ///< (B, H*D)
  const void* qkv = nullptr;               ///< (B, (H+2G)*D), after RoPE
  void* cache_k = nullptr;                 ///< (B, capacity, G*D)
  void* cache_v = nullptr;                 ///< the same
  const std::int32_t* position = nullptr;  ///< memory of the backend, so that a CUDA graph serves every one; see holds_a_window()
  std::int64_t capacity = 0;
  AttentionShape shape;         ///< T is not used
  const void* sinks = nullptr;  ///< (H), or null: logits that queries attend to besides, without a value
};
TESSERA_OP(attention_decode, (const Context& context, const AttentionDecode& arguments), (context, arguments))
/// Pointers are not looked at.
TESSERA_WORKSPACE(attention_decode_workspace_bytes, AttentionDecode)

}  // namespace tessera::kernels
