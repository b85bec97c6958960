// Our GPU code of attention by element type, and what its files share. attention.cu chooses among it.
#pragma once
#include <type_traits>

#include "kernels/attention/native_attention.hpp"
#include "kernels/attention/passes.hpp"
#include "kernels/cuda/device.hpp"

namespace tessera::kernels::cuda {

inline constexpr float log2_e = 1.4426950408889634f, ln_2 = 0.6931471805599453f;

/// In bf16 and fp16.
void attention_forward_half(const Context& context, const ForwardPass& pass);
/// The same on Hopper's asynchronous products, for GPUs of compute capability 9.0 and head dims that warpgroup_head_dim() names.
void attention_forward_warpgroup(const Context& context, const ForwardPass& pass);

void attention_forward_fp32(const Context& context, const ForwardPass& pass);

/// delta (B, H, rows) = rowsum(d_out * out) and lse_base2 (B, H, rows) = lse log2 e, where rows are the queries padded to whole tiles. Both
/// are 0 in padding, and so are the rows of Q and dO that tiles hold there: they add nothing.
struct RowTerms {
  float *delta, *lse_base2;
  std::int64_t rows;
  float* parts;  ///< (2, B, H, keys, D): dK, dV of each query head, where has_parts(); else null
};

void attention_backward_half(const Context& context, const BackwardPass& pass, const RowTerms& terms);
/// The same on Hopper's asynchronous products, where the forward pass has them.
void attention_backward_warpgroup(const Context& context, const BackwardPass& pass, const RowTerms& terms);
void attention_backward_fp32(const Context& context, const BackwardPass& pass, const RowTerms& terms);

__device__ __forceinline__ float as_float(float x) { return x; }
__device__ __forceinline__ float as_float(bf16 x) { return __uint_as_float(static_cast<unsigned>(x.bits) << 16); }
__device__ __forceinline__ float as_float(f16 x) { return __half2float(__ushort_as_half(x.bits)); }

/// What products of queries and keys are multiplied by. Where there is a cap, the kernels for it make tanh(bend product) of each product
/// before anything else, and in the softmax the cap stands where the scale does.
struct ScoreScale {
  float of_products, bend, cap;
  explicit ScoreScale(const AttentionShape& s)
      : of_products(scaled(s, 1)), bend(s.softcap > 0 ? of_products / s.softcap : 0), cap(s.softcap) {}
  template <class Seen>
  __device__ __forceinline__ float of_softmax() const {
    return Seen::capped ? cap : of_products;
  }
};

/// Eight elements of a row of which `valid` are left, zeros after them; 16 bytes a load if `wide`.
template <class T>
__device__ __forceinline__ void load_8(float (&to)[8], const T* from, int valid, bool wide) {
  alignas(16) T x[8];
  if (wide) {
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(T) * 8 / sizeof(uint4)); ++i)
      reinterpret_cast<uint4*>(x)[i] = reinterpret_cast<const uint4*>(from)[i];
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = i < valid ? from[i] : T{};
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) to[i] = as_float(x[i]);
}

/// Which keys a query sees, both counted from the first that takes part. Whether the pass is causal is a mask and not a condition:
/// registers are short.
struct Sight {
  static constexpr bool bounded = false, capped = false;
  int keys, all;  ///< all: 0 in a causal pass, else every bit but the sign
  __device__ __forceinline__ explicit Sight(const AttentionInput& a, std::int64_t = 0)
      : keys(static_cast<int>(a.keys)), all(a.causal ? 0 : 0x7fffffff) {}
  /// The first key that this query sees, and where those end that it does.
  __device__ __forceinline__ int begin_of_query(int) const { return 0; }
  __device__ __forceinline__ bool sees_any(int) const { return true; }
  __device__ __forceinline__ int of_query(int query) const { return min((query + 1) | all, keys); }
  /// The first query that sees this key, and where those end that do, of so many queries.
  __device__ __forceinline__ int first_of_key(int key) const { return key & ~all; }
  __device__ __forceinline__ int end_of_key(int, int queries) const { return queries; }
};

/// The same over documents, with a window, or both: a query sees those that are of its own document and in its window; of a block none,
/// perhaps. The first key of a query never falls from one query to the next; all that skips tiles relies on it.
struct BoundedSight {
  static constexpr bool bounded = true, capped = false;
  int keys, last, all;  ///< last: of the queries; all: as in Sight
  KeyStarts first;
  const std::int32_t* documents;  ///< (T) of this sequence; null: one document
  __device__ __forceinline__ BoundedSight(const AttentionInput& a, std::int64_t batch)
      : keys(static_cast<int>(a.keys)),
        last(static_cast<int>(a.queries) - 1),
        all(a.causal ? 0 : 0x7fffffff),
        first(a.starts),
        documents(a.document_starts ? a.document_starts + batch * a.shape.T : nullptr) {}
  /// Of one beyond the last query: as the last.
  __device__ __forceinline__ int begin_of_query(int query) const {
    const int own = min(query, last);
    return first.of(own, documents ? documents[own] : -KeyStarts::all_keys);
  }
  /// Whether this query sees a key. In a causal pass it sees its own.
  __device__ __forceinline__ bool sees_any(int query) const { return begin_of_query(query) < keys; }
  __device__ __forceinline__ int of_query(int query) const { return min((query + 1) | all, keys); }
  __device__ __forceinline__ int first_of_key(int key) const { return key & ~all; }
  /// By a search for the first query that sees later keys alone.
  __device__ __forceinline__ int end_of_key(int key, int queries) const {
    int begin = min(first_of_key(key), queries), end = queries;
    while (begin < end) {
      const int middle = (begin + end) / 2;
      if (begin_of_query(middle) > key)
        end = middle;
      else
        begin = middle + 1;
    }
    return begin;
  }
};

/// Of scores with a cap, whatever queries see. One for all, since a kernel takes long to compile.
struct CappedSight : BoundedSight {
  static constexpr bool capped = true;
  using BoundedSight::BoundedSight;
};

/// Calls f with the sight of the pass, as std::type_identity. Compiled apart: what first keys ask for, and caps, take registers that others
/// need.
template <class F>
void with_sight(const AttentionInput& a, F f) {
  if (a.shape.softcap > 0)
    f(std::type_identity<CappedSight>());
  else
    a.is_bounded() ? f(std::type_identity<BoundedSight>()) : f(std::type_identity<Sight>());
}

/// The score of a key before a query's first, on its way to the softmax. A tile may hold no key that the query sees, and infinities have no
/// difference. What comes of such a tile vanishes when a key that it sees follows: all is rescaled by 2 to the power of this times a
/// scale, which is finite (has_scores()). Where none follows, sees_any() says so. A power of two, so that its product with a scale is exact
/// and such scores differ by nothing.
inline constexpr float before_first = -0x1p100f;
/// What stands for the tanh of a score that is not seen in the backward pass: its power is 0, and its square is finite.
inline constexpr float unseen_tanh = -0x1p60f;

}  // namespace tessera::kernels::cuda
