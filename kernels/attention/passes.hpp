// The operands of attention as its code reads them, on a host and on a GPU: the same code computes whole sequences and blocks.
#pragma once
#include <algorithm>
#include <cmath>

#include "kernels/arithmetic.hpp"
#include "kernels/attention/attention.hpp"

namespace tessera::kernels {

/// The first key that a query sees, by its window and its document, both counted from the first that takes part; it never falls, and lies
/// behind all keys where the query sees none. Rows have a gap at most.
struct KeyStarts {
  std::int32_t back = all_keys;               ///< a window begins so many rows before the query's number
  std::int32_t ahead = 0;                     ///< what begins with this row of the queries begins with a key that many further
  std::int32_t query_row = 0, query_gap = 0;  ///< of this query and those after it so many more
  std::int32_t key_row = 0, key_gap = 0;      ///< as if before this key lay so many that are not there

  static constexpr std::int32_t all_keys = 1 << 30;
  /// `document` is what AttentionForward::document_starts has of it, -all_keys without.
  TESSERA_BOTH TESSERA_INLINE std::int32_t of(std::int32_t query, std::int32_t document = -all_keys) const {
    const std::int32_t window = query - back, first = window > document ? window : document;
    const std::int32_t at = first + ahead + (query >= query_row ? query_gap : 0), behind = at - key_gap;
    if (at < key_row) return at > 0 ? at : 0;
    return behind > key_row ? behind : key_row;
  }
};

/// Pointers are to head 0 of the first row that takes part, of the first sequence; what belongs to the next sequence lies shape.T rows on.
/// Strides are in elements, from row to row. Values lie G * D after keys.
struct AttentionInput {
  AttentionShape shape;
  const void *q = nullptr, *k = nullptr;
  std::int64_t q_stride = 0, k_stride = 0;
  std::int64_t queries = 0, keys = 0;             ///< of each sequence
  bool causal = true;                             ///< a query sees the keys up to its own, of as many; else it sees all
  const std::int32_t* document_starts = nullptr;  ///< (B, T), from the first query on
  KeyStarts starts = {};                          ///< of shape.window and document_starts

  /// Whether a query may not see the first of the keys.
  bool is_bounded() const { return document_starts || shape.window > 0; }
  /// Whether cuDNN's code does not have what is asked for.
  bool is_ours_alone() const { return is_bounded() || shape.softcap > 0; }
};
struct ForwardPass : AttentionInput {
  void* out = nullptr;   ///< rows of H * D
  float* lse = nullptr;  ///< T for each head
};
struct BackwardPass : AttentionInput {
  void *d_q = nullptr, *d_k = nullptr;  ///< like q and k
  std::int64_t d_q_stride = 0, d_k_stride = 0;
  const void *d_out = nullptr, *out = nullptr;  ///< rows of H * D
  const float* lse = nullptr;
};

/// Where the rows of a query head begin in one sequence, and those of its key/value head.
template <class T>
struct Heads {
  T *q = nullptr, *k = nullptr, *v = nullptr;
  std::int64_t q_stride = 0, k_stride = 0;
};
template <class T>
TESSERA_BOTH TESSERA_INLINE Heads<const T> inputs_of(const AttentionInput& a, std::int64_t batch, std::int64_t head) {
  const AttentionShape& s = a.shape;
  const T* q = static_cast<const T*>(a.q) + batch * s.T * a.q_stride + head * s.D;
  const T* k = static_cast<const T*>(a.k) + batch * s.T * a.k_stride + head / (s.H / s.G) * s.D;
  return {q, k, k + s.G * s.D, a.q_stride, a.k_stride};
}
template <class T>
TESSERA_BOTH TESSERA_INLINE Heads<T> gradients_of(const BackwardPass& a, std::int64_t batch, std::int64_t head) {
  const AttentionShape& s = a.shape;
  T* q = static_cast<T*>(a.d_q) + batch * s.T * a.d_q_stride + head * s.D;
  T* k = static_cast<T*>(a.d_k) + batch * s.T * a.d_k_stride + head / (s.H / s.G) * s.D;
  return {q, k, k + s.G * s.D, a.d_q_stride, a.d_k_stride};
}

/// Whether caches have a row for each token that is seen, so that a text may be of any length; else it ends where they do.
TESSERA_BOTH constexpr bool holds_a_window(const AttentionDecode& a) { return a.shape.window > 0 && a.shape.window <= a.capacity; }

/// x, scaled as products of queries and keys are.
inline float scaled(const AttentionShape& s, float x) { return s.scale > 0 ? x * s.scale : x / std::sqrt(static_cast<float>(s.D)); }

/// Whether products have a scale, and scores a cap, that code can compute with: the largest score is that of the largest product, and what
/// stands for a score that is not seen stays finite.
inline bool has_scores(const AttentionShape& s) {
  const auto sensible = [](float x) { return x == 0 || (x >= 0x1p-20f && x <= 0x1p20f); };
  return sensible(s.scale) && sensible(s.softcap);
}

namespace attention_passes {
/// Of rows that begin at `first`: the gap as it is counted from there, or nothing where it lies before them, and so behind none of them.
inline AttentionGap gap_from(const AttentionGap& gap, std::int64_t first) {
  return gap.row > first ? AttentionGap{gap.row - first, gap.tokens} : AttentionGap{};
}
/// Query 0 is row `first` of those that document_starts count, and lies `ahead` tokens behind key 0.
inline KeyStarts key_starts(std::int64_t window, std::int64_t first, const AttentionGap& queries, const AttentionGap& keys,
                            std::int64_t ahead) {
  const auto narrow = [](std::int64_t n) { return static_cast<std::int32_t>(n); };
  const std::int64_t back = window > 0 ? std::min<std::int64_t>(window - 1 - first, KeyStarts::all_keys) : KeyStarts::all_keys;
  return {narrow(back), narrow(ahead - first), narrow(queries.row), narrow(queries.tokens), narrow(keys.row), narrow(keys.tokens)};
}
inline KeyStarts key_starts(const AttentionShape& s) { return key_starts(s.window, 0, s.gap, s.gap, 0); }
inline KeyStarts key_starts(const AttentionBlock& b) {
  const auto place = [](const AttentionRows& rows, const AttentionGap& gap) {
    return rows.first + (rows.first >= gap.row ? gap.tokens : 0);
  };
  const std::int64_t ahead = b.ahead + place(b.queries, b.shape.gap) - place(b.keys, b.keys_gap);
  return key_starts(b.shape.window, b.queries.first, gap_from(b.shape.gap, b.queries.first), gap_from(b.keys_gap, b.keys.first), ahead);
}
}  // namespace attention_passes

inline bool makes_sense(const AttentionBlock& b) {
  const auto inside = [&](const AttentionRows& rows) { return rows.first >= 0 && rows.count > 0 && rows.first + rows.count <= b.shape.T; };
  if (!inside(b.queries) || !inside(b.keys)) return false;
  if (b.shape.window == 0) return true;
  const KeyStarts starts = attention_passes::key_starts(b);
  return starts.of(0) == 0 && starts.of(static_cast<std::int32_t>(b.queries.count - 1)) < b.keys.count;
}

namespace attention_passes {
/// p, that many elements on.
template <class Pointer>
Pointer further(Pointer p, std::int64_t elements, DType dtype) {
  using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<Pointer>>, const std::byte, std::byte>;
  return static_cast<Byte*>(p) + elements * static_cast<std::int64_t>(size_of(dtype));
}
inline AttentionInput whole(const AttentionShape& s, const void* qkv, const std::int32_t* document_starts) {
  const std::int64_t stride = (s.H + 2 * s.G) * s.D;
  return {.shape = s,
          .q = qkv,
          .k = further(qkv, s.H * s.D, s.dtype),
          .q_stride = stride,
          .k_stride = stride,
          .queries = s.T,
          .keys = s.T,
          .causal = true,
          .document_starts = document_starts,
          .starts = key_starts(s)};
}
inline AttentionInput block(const AttentionBlock& b, const void* qkv, const void* kv, const std::int32_t* document_starts) {
  const AttentionShape& s = b.shape;
  const std::int64_t q_stride = (s.H + 2 * s.G) * s.D, k_stride = 2 * s.G * s.D;
  return {.shape = s,
          .q = further(qkv, b.queries.first * q_stride, s.dtype),
          .k = further(kv, b.keys.first * k_stride, s.dtype),
          .q_stride = q_stride,
          .k_stride = k_stride,
          .queries = b.queries.count,
          .keys = b.keys.count,
          .causal = false,
          .document_starts = document_starts ? document_starts + b.queries.first : nullptr,
          .starts = key_starts(b)};
}
}  // namespace attention_passes

inline ForwardPass pass_of(const AttentionForward& a) { return {attention_passes::whole(a.shape, a.qkv, a.document_starts), a.out, a.lse}; }
inline ForwardPass pass_of(const AttentionBlockForward& a) {
  const AttentionShape& s = a.block.shape;
  const std::int64_t first = a.block.queries.first;
  return {attention_passes::block(a.block, a.qkv, a.kv, a.document_starts), attention_passes::further(a.out, first * s.H * s.D, s.dtype),
          a.lse + first};
}
inline BackwardPass pass_of(const AttentionBackward& a) {
  const AttentionInput in = attention_passes::whole(a.shape, a.qkv, a.document_starts);
  return {in,    a.d_qkv, attention_passes::further(a.d_qkv, a.shape.H * a.shape.D, a.shape.dtype), in.q_stride, in.k_stride, a.d_out,
          a.out, a.lse};
}
inline BackwardPass pass_of(const AttentionBlockBackward& a) {
  using attention_passes::further;
  const AttentionShape& s = a.block.shape;
  const std::int64_t width = s.H * s.D, first = a.block.queries.first;
  const AttentionInput in = attention_passes::block(a.block, a.qkv, a.kv, a.document_starts);
  return {in,
          further(a.d_q, first * width, s.dtype),
          further(a.d_kv, a.block.keys.first * in.k_stride, s.dtype),
          width,
          in.k_stride,
          further(a.d_out, first * width, s.dtype),
          further(a.out, first * width, s.dtype),
          a.lse + first};
}

}  // namespace tessera::kernels
