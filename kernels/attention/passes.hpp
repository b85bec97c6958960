// The operands of attention as its code reads them, on a host and on a GPU: the same code computes whole sequences and blocks.
#pragma once
#include <algorithm>
#include <cmath>

#include "base/check.hpp"
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

/// Rows begin with the first that takes part, of the first sequence; what belongs to the next sequence lies shape.T rows on.
struct AttentionInput {
  AttentionShape shape;  ///< with Dv
  Qkv rows = {};
  std::int64_t queries = 0, keys = 0;             ///< of each sequence
  bool causal = true;                             ///< a query sees the keys up to its own, of as many; else it sees all
  const std::int32_t* document_starts = nullptr;  ///< (B, T), from the first query on
  KeyStarts starts = {};                          ///< of shape.window and document_starts

  /// Whether a query may not see the first of the keys.
  bool is_bounded() const { return document_starts || shape.window > 0; }
  /// Whether cuDNN's graphs, which are of packed rows, do not have what is asked for.
  bool is_ours_alone() const;
  /// Whether keys and values are of one width and their rows as far apart, so that code has one offset in both.
  bool is_uniform() const { return shape.D == shape.Dv && rows.k.stride == rows.v.stride; }
};
struct ForwardPass : AttentionInput {
  void* out = nullptr;   ///< rows of H * Dv
  float* lse = nullptr;  ///< T for each head
};
struct BackwardPass : AttentionInput {
  QkvGradient d_rows = {};
  const void *d_out = nullptr, *out = nullptr;  ///< rows of H * Dv
  const float* lse = nullptr;
  bool is_ours_alone() const;
  bool is_uniform() const { return AttentionInput::is_uniform() && d_rows.k.stride == d_rows.v.stride; }
};

/// Where the rows of a query head begin in one sequence, and those of its key/value head.
template <class T>
struct Heads {
  T *q = nullptr, *k = nullptr, *v = nullptr;
  std::int64_t q_stride = 0, k_stride = 0, v_stride = 0;
};
/// `uniform`: code for passes that are (is_uniform), with the stride and width of keys for values.
template <class T, bool uniform, class P>
TESSERA_BOTH TESSERA_INLINE Heads<T> heads_of(const QueryKeyValue<P>& rows, const AttentionShape& s, std::int64_t batch,
                                              std::int64_t head) {
  const std::int64_t v_stride = uniform ? rows.k.stride : rows.v.stride, Dv = uniform ? s.D : s.Dv, kv_head = head / (s.H / s.G);
  return {static_cast<T*>(rows.q.data) + batch * s.T * rows.q.stride + head * s.D,
          static_cast<T*>(rows.k.data) + batch * s.T * rows.k.stride + kv_head * s.D,
          static_cast<T*>(rows.v.data) + batch * s.T * v_stride + kv_head * Dv,
          rows.q.stride,
          rows.k.stride,
          v_stride};
}
template <class T, bool uniform = false>
TESSERA_BOTH TESSERA_INLINE Heads<const T> inputs_of(const AttentionInput& a, std::int64_t batch, std::int64_t head) {
  return heads_of<const T, uniform>(a.rows, a.shape, batch, head);
}
template <class T, bool uniform = false>
TESSERA_BOTH TESSERA_INLINE Heads<T> gradients_of(const BackwardPass& a, std::int64_t batch, std::int64_t head) {
  return heads_of<T, uniform>(a.d_rows, a.shape, batch, head);
}

/// Rows hold their heads, and begin an even number of elements apart, since code takes elements in pairs.
template <class P>
void require_rows(const QueryKeyValue<P>& rows, const AttentionShape& s) {
  const auto holds = [](const HeadRows<P>& r, std::int64_t width) { return r.stride >= width && r.stride % 2 == 0; };
  TESSERA_REQUIRE(holds(rows.q, s.H * s.D) && holds(rows.k, s.G * s.D) && holds(rows.v, s.G * s.value_dim()),
                  "rows of queries, keys and values {}, {} and {} elements apart, of H={} G={} D={} Dv={}", rows.q.stride, rows.k.stride,
                  rows.v.stride, s.H, s.G, s.D, s.value_dim());
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
inline AttentionShape with_value_dim(AttentionShape s) {
  s.Dv = s.value_dim();
  return s;
}
/// From row `row` on.
template <class P>
HeadRows<P> from_row(const HeadRows<P>& rows, std::int64_t row, DType dtype) {
  return {further(rows.data, row * rows.stride, dtype), rows.stride};
}
template <class P>
QueryKeyValue<P> of_block(const QueryKeyValue<P>& rows, const AttentionBlock& b) {
  const DType dtype = b.shape.dtype;
  return {from_row(rows.q, b.queries.first, dtype), from_row(rows.k, b.keys.first, dtype), from_row(rows.v, b.keys.first, dtype)};
}
inline AttentionInput whole(const AttentionShape& s, const Qkv& qkv, const std::int32_t* document_starts) {
  return {.shape = with_value_dim(s),
          .rows = qkv,
          .queries = s.T,
          .keys = s.T,
          .causal = true,
          .document_starts = document_starts,
          .starts = key_starts(s)};
}
inline AttentionInput block(const AttentionBlock& b, const Qkv& qkv, const std::int32_t* document_starts) {
  return {.shape = with_value_dim(b.shape),
          .rows = of_block(qkv, b),
          .queries = b.queries.count,
          .keys = b.keys.count,
          .causal = false,
          .document_starts = document_starts ? document_starts + b.queries.first : nullptr,
          .starts = key_starts(b)};
}
template <class P>
bool is_packed(const QueryKeyValue<P>& rows, const AttentionShape& s) {
  const QueryKeyValue<P> packed = packed_qkv(rows.q.data, s);
  const auto same = [](const HeadRows<P>& a, const HeadRows<P>& b) { return a.data == b.data && a.stride == b.stride; };
  return same(rows.q, packed.q) && same(rows.k, packed.k) && same(rows.v, packed.v);
}
}  // namespace attention_passes

inline bool AttentionInput::is_ours_alone() const {
  return is_bounded() || shape.softcap > 0 || shape.D != shape.Dv || !attention_passes::is_packed(rows, shape);
}
inline bool BackwardPass::is_ours_alone() const { return AttentionInput::is_ours_alone() || !attention_passes::is_packed(d_rows, shape); }

inline ForwardPass pass_of(const AttentionForward& a) { return {attention_passes::whole(a.shape, a.qkv, a.document_starts), a.out, a.lse}; }
inline ForwardPass pass_of(const AttentionBlockForward& a) {
  const AttentionShape& s = a.block.shape;
  const std::int64_t first = a.block.queries.first;
  return {attention_passes::block(a.block, a.qkv, a.document_starts), further(a.out, first * s.out_width(), s.dtype), a.lse + first};
}
inline BackwardPass pass_of(const AttentionBackward& a) {
  return {attention_passes::whole(a.shape, a.qkv, a.document_starts), a.d_qkv, a.d_out, a.out, a.lse};
}
inline BackwardPass pass_of(const AttentionBlockBackward& a) {
  const AttentionShape& s = a.block.shape;
  const std::int64_t first = a.block.queries.first, at = first * s.out_width();
  return {attention_passes::block(a.block, a.qkv, a.document_starts), attention_passes::of_block(a.d_qkv, a.block),
          further(a.d_out, at, s.dtype), further(a.out, at, s.dtype), a.lse + first};
}

}  // namespace tessera::kernels
