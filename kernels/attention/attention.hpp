// Causal self-attention with grouped queries, tiled: memory linear in T, tiles above the diagonal skipped.
// Dao et al., FlashAttention-2 (arXiv:2307.08691): online softmax, log-sum-exp saved for the backward pass.
#pragma once
#include <type_traits>

#include "kernels/context.hpp"

namespace tessera::kernels {

/// The attention code on a GPU: ours, cuDNN's (16-bit types only), or the faster of the two. A KernelSearch finds the faster one; without a
/// search ours runs. The host has its own code.
enum class AttentionPath : std::uint8_t { native, cudnn, fastest };

/// A gap in a rank's rows: from `row` on, rows are `tokens` further on in the sequence. A rank of a ring has two chunks of a sequence, and
/// windows and documents count the tokens between them.
struct AttentionGap {
  std::int64_t row = 0, tokens = 0;
};

/// Shapes: B sequences, T tokens, H query heads, G key/value heads (H % G == 0), D features of a query and a key head, Dv of a value head
/// and of what comes out for a query head (both even).
struct AttentionShape {
  std::int64_t B = 0, T = 0, H = 0, G = 0, D = 0;
  std::int64_t Dv = 0;  ///< 0: as D
  DType dtype = DType::f32;
  AttentionPath path = AttentionPath::native;
  bool deterministic = false;  ///< cuDNN's backward pass must be reproducible (ours always is); costs a T x T workspace
  /// Sliding window: a query sees at most this many keys, its own and those right before it; 0: all before it. Key tiles outside are
  /// skipped. Our kernels compute windows for any `path`.
  std::int64_t window = 0;
  float scale = 0;  ///< factor of query-key products; 0: 1 / sqrt(D)
  /// A scaled product x becomes softcap tanh(x / softcap) (Gemma 2); 0: unchanged. Our kernels compute it for any `path`.
  float softcap = 0;
  AttentionGap gap = {};  ///< of queries and, outside of blocks, of keys; used with windows and documents
  TESSERA_BOTH constexpr std::int64_t value_dim() const { return Dv == 0 ? D : Dv; }
  std::int64_t out_width() const { return H * value_dim(); }
  std::int64_t kv_width() const { return G * (D + value_dim()); }
  std::int64_t qkv_width() const { return H * D + kv_width(); }
};

/// Heads of each token: token i has its heads one after the other from element i * stride on. P is void or const void.
template <class P>
struct HeadRows {
  P* data = nullptr;
  std::int64_t stride = 0;
  template <class Q>
  requires(std::is_same_v<Q, const P> && !std::is_const_v<P>) operator HeadRows<Q>() const { return {data, stride}; }
};
/// What attention reads of tokens, after RoPE, or the gradients of it. The three may lie in one row of a token or in memory of their own.
template <class P>
struct QueryKeyValue {
  HeadRows<P> q, k, v;  ///< H heads of D, G of D, G of Dv
  template <class Q>
  requires(std::is_same_v<Q, const P> && !std::is_const_v<P>) operator QueryKeyValue<Q>() const { return {q, k, v}; }
};
using Qkv = QueryKeyValue<const void>;
using QkvGradient = QueryKeyValue<void>;

/// p, that many elements on.
template <class P>
P* further(P* p, std::int64_t elements, DType dtype) {
  using Byte = std::conditional_t<std::is_const_v<P>, const std::byte, std::byte>;
  return static_cast<Byte*>(p) + elements * static_cast<std::int64_t>(size_of(dtype));
}
/// Of packed rows (B*T, H*D + G*(D+Dv)) = [H query heads | G key heads | G value heads].
inline QkvGradient packed_qkv(void* qkv, const AttentionShape& s) {
  const std::int64_t row = s.qkv_width();
  return {{qkv, row}, {further(qkv, s.H * s.D, s.dtype), row}, {further(qkv, (s.H + s.G) * s.D, s.dtype), row}};
}
inline Qkv packed_qkv(const void* qkv, const AttentionShape& s) { return packed_qkv(const_cast<void*>(qkv), s); }
/// Of queries with a stride, and packed keys and values (B*T, G*(D+Dv)) = [G key heads | G value heads].
template <class P>
QueryKeyValue<P> packed_kv(const HeadRows<P>& q, P* kv, const AttentionShape& s) {
  return {q, {kv, s.kv_width()}, {further(kv, s.G * s.D, s.dtype), s.kv_width()}};
}

struct AttentionForward {
  void* out = nullptr;   ///< (B*T, H*Dv)
  float* lse = nullptr;  ///< (B, H, T) log-sum-exp of the scores, scaled and capped
  Qkv qkv = {};
  AttentionShape shape;
  /// (B, T) or null. Row of the first key that a query may see: it attends to keys document_starts[b, t] to t, those of its document.
  /// The value is t minus the number of tokens of the document before t. For documents of 3 and 2 tokens: 0 0 0 3 3. Without a gap it never
  /// decreases. With a gap it may point into the gap or below 0: let row 4 be token 12 of the sequence (gap {4, 8}). For row 5, token 13, a
  /// document that began at token 10 gives 5 - 3 = 2, and one that began at token 0 gives 5 - 13 = -8.
  /// Key tiles outside are skipped, so time grows with the sum of squared document lengths. Our kernels compute it for any shape.path. With
  /// a window, both limits hold.
  const std::int32_t* document_starts = nullptr;
};
TESSERA_OP(attention_forward, (const Context& context, const AttentionForward& arguments), (context, arguments))
TESSERA_WORKSPACE(attention_forward_workspace_bytes, AttentionShape)

struct AttentionBackward {
  QkvGradient d_qkv = {};       ///< overwritten
  const void* d_out = nullptr;  ///< (B*T, H*Dv)
  Qkv qkv = {};                 ///< as in the forward pass
  const void* out = nullptr;    ///< (B*T, H*Dv)
  const float* lse = nullptr;   ///< (B, H, T)
  AttentionShape shape;
  const std::int32_t* document_starts = nullptr;  ///< as in the forward pass
};
TESSERA_OP(attention_backward, (const Context& context, const AttentionBackward& arguments), (context, arguments))
TESSERA_WORKSPACE(attention_backward_workspace_bytes, AttentionShape)

/// `count` of the T rows of each sequence, from `first` on.
struct AttentionRows {
  std::int64_t first = 0, count = 0;
};

/// A block of ring attention (Liu et al., arXiv:2310.01889): a rank's queries against another rank's keys and values. Each query of
/// `queries` sees each key of `keys`; neither is empty. With a window, which counts back from a query's place in the sequence, it sees
/// those in its window: the first query sees all, and every query sees the last. Our kernels compute blocks for any shape.path.
struct AttentionBlock {
  AttentionShape shape;
  AttentionRows queries, keys;
  std::int64_t ahead = 0;      ///< tokens of the sequence from the keys' row 0 to the queries' row 0; negative: queries come first
  AttentionGap keys_gap = {};  ///< gap of the keys' rows; shape.gap is the queries'
};

struct AttentionBlockForward {
  void* out = nullptr;   ///< (B*T, H*Dv); overwrites rows `queries`
  float* lse = nullptr;  ///< (B, H, T), the same rows, over this block's keys alone
  Qkv qkv = {};          ///< queries of this rank, keys and values of the other one
  AttentionBlock block;
  /// (B, T) of the queries, as in AttentionForward. A query sees the block's keys of its document. If there are none, out is 0 and lse is
  /// -infinity.
  const std::int32_t* document_starts = nullptr;
};
TESSERA_OP(attention_block_forward, (const Context& context, const AttentionBlockForward& arguments), (context, arguments))
TESSERA_WORKSPACE(attention_block_forward_workspace_bytes, AttentionBlock)

struct AttentionBlockBackward {
  QkvGradient d_qkv = {};       ///< overwrites rows `queries` of q, and rows `keys` of k and v
  const void* d_out = nullptr;  ///< (B*T, H*Dv)
  Qkv qkv = {};                 ///< as in the forward pass
  const void* out = nullptr;    ///< (B*T, H*Dv), over all blocks
  const float* lse = nullptr;   ///< (B, H, T), over all blocks
  AttentionBlock block;
  const std::int32_t* document_starts = nullptr;  ///< as in the forward pass
};
TESSERA_OP(attention_block_backward, (const Context& context, const AttentionBlockBackward& arguments), (context, arguments))
TESSERA_WORKSPACE(attention_block_backward_workspace_bytes, AttentionBlock)

/// Decode attention for generate: one new token for each sequence against a cache. Writes the token's key and value into the caches at
/// `position`, which all sequences share. Its queries see them and the keys before, or the window's last keys. Token t has row t %
/// capacity. Values may be the first features of keys, in one cache: then the new token's are too.
struct AttentionDecode {
  void* out = nullptr;                     ///< (B, H*Dv)
  Qkv qkv = {};                            ///< of B tokens
  HeadRows<void> cached_k = {};            ///< rows (B, capacity) of G heads of D
  HeadRows<void> cached_v = {};            ///< the same of Dv
  const std::int32_t* position = nullptr;  ///< in the backend's memory, so one CUDA graph serves all positions; see holds_a_window()
  std::int64_t capacity = 0;
  AttentionShape shape;         ///< T is unused
  const void* sinks = nullptr;  ///< (H), or null: extra logits without a value that queries attend to
};
TESSERA_OP(attention_decode, (const Context& context, const AttentionDecode& arguments), (context, arguments))
/// Ignores pointers.
TESSERA_WORKSPACE(attention_decode_workspace_bytes, AttentionDecode)

}  // namespace tessera::kernels
