// What attention is built from: 64 x 64 tiles of scores, kept transposed (row = key, lane = query), so that the softmax works down the
// lanes without horizontal sums and keys need no transposition. Scores are fp32. What a product multiplies is fp32, whatever the input is,
// or pairs of bf16 that follow each other along the dim that it sums, where the processor is faster at that: then probabilities, and
// gradients of scores, are rounded to bf16 for the products that read them, as on GPUs.
#pragma once
#include <algorithm>
#include <cstring>

#include "kernels/attention/amx_product.hpp"
#include "kernels/attention/passes.hpp"
#include "kernels/exp.hpp"
#include "kernels/vector/pairs.hpp"
#include "kernels/vector/transpose.hpp"
#include "kernels/vector/vector.hpp"

namespace tessera::kernels::host {
/// Throws where the shape makes no sense.
void check_attention(const AttentionShape&);
void check_attention(const AttentionBlock&);
/// What products of bf16 multiply: numbers widened to fp32, pairs (kernels/vector/pairs.hpp), or AMX's tiles of pairs.
enum class HalfProducts : std::uint8_t { widened, pairs, tiles };
/// What is fastest on the processor that runs this.
HalfProducts fastest_half_products();
/// The ops in one of these ways, whatever is fastest: for tests, and bf16 alone.
void attention_forward(const Context&, const AttentionForward&, HalfProducts);
void attention_backward(const Context&, const AttentionBackward&, HalfProducts);
}  // namespace tessera::kernels::host

namespace tessera::kernels::tiles {

inline constexpr std::int64_t tile = 64, tile_vectors = tile / lanes;
// Rows and vectors whose sums a block keeps in registers: 4 x 4 sums and 4 + 1 operands of 32 registers, or 6 x 1 sums and 1 + 1 operands,
// pairs but for the last, of 16. A product has a multiple of row_step rows; what block_rows leaves over is a smaller block.
#ifdef TESSERA_AVX512
inline constexpr int block_rows = 4, block_vectors = 4, row_step = 4;
#else
inline constexpr int block_rows = 6, block_vectors = 1, row_step = 2;
#endif

/// Elements of a product, float or Pair, for n numbers along the dim that it sums.
template <class E>
inline std::int64_t depth(std::int64_t n) {
  return std::is_same_v<E, Pair> ? ceil_div(n, 2) : n;
}
/// Head dims are padded with zeros to whole vectors inside tiles.
inline std::int64_t padded(std::int64_t D) { return round_up(D, lanes); }
/// Elements of a tile's row that is summed along the head dim.
template <class E>
inline std::int64_t row_of(std::int64_t D) {
  return padded(depth<E>(D));
}
/// Rows that a product with D rows computes.
inline std::int64_t block_padded(std::int64_t D) { return round_up(D, row_step); }

/// Lane l of the result is i + l.
inline i32x16 indexes_from(std::int64_t i) { return lane_indexes() + static_cast<std::int32_t>(i); }

/// The first key that each of a tile of queries sees, by its document and its window; 0 where there is neither. It never falls.
struct FirstKeys {
  std::int64_t first = 0, last = 0;  ///< of the first query, and of the last
  i32x16 of_query[tile_vectors] = {};
  /// Whether query i of the tile sees one of so many keys.
  bool sees_any(std::int64_t i, std::int64_t keys) const { return of_query[i / lanes][i % lanes] < keys; }
  FirstKeys(const AttentionInput& a, std::int64_t batch, std::int64_t query) {
    if (!a.is_bounded()) return;
    const std::int64_t n = std::min(tile, a.queries - query);
    const std::int32_t* starts = a.document_starts ? a.document_starts + batch * a.shape.T + query : nullptr;
    std::int32_t keys[tile] = {};
    for (std::int64_t i = 0; i < n; ++i)
      keys[i] = a.starts.of(static_cast<std::int32_t>(query + i), starts ? starts[i] : -KeyStarts::all_keys);
    first = keys[0], last = keys[n - 1];
    std::memcpy(of_query, keys, sizeof keys);
  }
};

/// Which scores of a tile count: all; in a causal tile on the diagonal those of keys up to the query; at the end of the keys, where
/// products compute a row too many, those of keys that there are; where a query's first key lies behind the tile's, those from it on.
enum class Edge : std::uint8_t { none, diagonal, end, begin };
/// A tile of scores: so many keys from `key` on, of queries from `query` on.
struct ScoreTile {
  std::int64_t query, key, keys;
  const FirstKeys& begins;
  bool causal;
};
/// Calls f with the edge of the tile, as a type.
template <class F>
TESSERA_INLINE void with_edge(const AttentionInput& a, const ScoreTile& t, F&& f) {
  if (t.begins.last > t.key)
    f(std::integral_constant<Edge, Edge::begin>());
  else if (a.causal && t.key == t.query)
    f(std::integral_constant<Edge, Edge::diagonal>());
  else if (t.keys % row_step != 0)
    f(std::integral_constant<Edge, Edge::end>());
  else
    f(std::integral_constant<Edge, Edge::none>());
}
/// The keys that a product takes at once, and the vectors of queries that see some of them: whole tiles, but that what lies above the
/// diagonal is left out, sixteen keys at a time.
struct WholeTile {
  static constexpr std::int64_t row = 0, vector = 0;
  std::int64_t rows;
};
struct Band {
  std::int64_t row, vector, rows;
};
template <Edge edge, class F>
TESSERA_INLINE void for_bands(std::int64_t rows, F&& f) {
  if constexpr (edge == Edge::diagonal) {
    for (std::int64_t row = 0; row < rows; row += lanes) f(Band{row, row / lanes, std::min<std::int64_t>(lanes, rows - row)});
  } else {
    f(WholeTile{rows});
  }
}
/// x where the score of key `row` of the tile counts for the queries of vector j, else `otherwise`.
template <Edge edge>
TESSERA_INLINE f32x16 where_seen(const ScoreTile& t, std::int64_t row, std::int64_t j, const f32x16& x, const f32x16& otherwise) {
  if constexpr (edge == Edge::diagonal) return select(indexes_from(j * lanes) >= static_cast<std::int32_t>(row), x, otherwise);
  if constexpr (edge == Edge::end) return row < t.keys ? x : otherwise;
  if constexpr (edge == Edge::begin) {
    const auto key = static_cast<std::int32_t>(t.key + row);
    if (t.causal) return select((indexes_from(t.query + j * lanes) >= key) & (key >= t.begins.of_query[j]), x, otherwise);
    return row < t.keys ? select(key >= t.begins.of_query[j], x, otherwise) : otherwise;
  }
  return x;
}
/// Where the walk of a tile of queries over the tiles of keys begins, and where it ends.
inline std::int64_t first_key(const FirstKeys& begins) { return begins.first / tile * tile; }
inline std::int64_t end_of_keys(const AttentionInput& a, std::int64_t query) { return a.causal ? query + 1 : a.keys; }

/// The left operand of a product: element (i, k) is data[i * row + k * column].
template <class E>
struct Left {
  const E* data;
  std::int64_t row, column;
};
TESSERA_INLINE f32x16 elements(const float* p) { return load(p); }
TESSERA_INLINE PairVector elements(const Pair* p) { return load_pairs(p); }
TESSERA_INLINE f32x16 in_all_lanes(const float* p) { return splat(*p); }
TESSERA_INLINE PairVector in_all_lanes(const Pair* p) {
  Pair pair;
  std::memcpy(&pair, p, sizeof pair);  // it may have been stored as two bf16
  return pair;
}
TESSERA_INLINE f32x16 multiply_add(const f32x16& a, const f32x16& b, const f32x16& sum) { return fma(a, b, sum); }
TESSERA_INLINE f32x16 multiply_add(const PairVector& a, const PairVector& b, const f32x16& sum) { return dot_pairs(a, b, sum); }

/// Sums over k < depth of left(i, k) * right[k * stride + lanes] for rows x vectors; `begin(i, j)` starts a vector, `end(i, j, v)` takes
/// it.
template <int rows, int vectors, class E, class Begin, class End>
TESSERA_INLINE void block(Left<E> left, const E* right, std::int64_t stride, std::int64_t depth, Begin begin, End end) {
  f32x16 sums[rows][vectors];
  unrolled<rows>([&](auto i) { unrolled<vectors>([&](auto j) { sums[i][j] = begin(i, j); }); });
  for (std::int64_t k = 0; k < depth; ++k) {
    Vector<E> r[vectors];
    unrolled<vectors>([&](auto j) { r[j] = elements(right + k * stride + j * lanes); });
    unrolled<rows>([&](auto i) {
      const Vector<E> l = in_all_lanes(left.data + i * left.row + k * left.column);
      unrolled<vectors>([&](auto j) { sums[i][j] = multiply_add(l, r[j], sums[i][j]); });
    });
  }
  unrolled<rows>([&](auto i) { unrolled<vectors>([&](auto j) { end(i, j, sums[i][j]); }); });
}

/// `rows` rows of the product, from row i0, over all vectors.
template <int rows, class E, class Begin, class End>
TESSERA_INLINE void block_row(std::int64_t i0, std::int64_t vectors, Left<E> left, const E* right, std::int64_t stride, std::int64_t depth,
                              Begin begin, End end) {
  Left<E> l{left.data + i0 * left.row, left.row, left.column};
  auto blocks = [&](auto width, std::int64_t j0) {
    block<rows, width>(
        l, right + j0 * lanes, stride, depth, [&](int i, int j) { return begin(i0 + i, j0 + j); },
        [&](int i, int j, const f32x16& v) { end(i0 + i, j0 + j, v); });
  };
  std::int64_t j0 = 0;
  for (; j0 + block_vectors <= vectors; j0 += block_vectors) blocks(std::integral_constant<int, block_vectors>{}, j0);
  unrolled<block_vectors>([&](auto rest) {
    if constexpr (rest > 0) {
      if (vectors - j0 == rest) blocks(rest, j0);
    }
  });
}

/// The whole product: `rows` a multiple of row_step, any number of vectors. begin and end are told absolute row and vector.
template <class E, class Begin, class End>
inline void product(std::int64_t rows, std::int64_t vectors, Left<E> left, const E* right, std::int64_t stride, std::int64_t depth,
                    Begin begin, End end) {
  if constexpr (std::is_same_v<E, Pair>) {
    if (amx::in_scope) return amx::product(rows, vectors, left.data, left.row, left.column, right, stride, depth, begin, end);
  }
  std::int64_t i0 = 0;
  for (; i0 + block_rows <= rows; i0 += block_rows) block_row<block_rows>(i0, vectors, left, right, stride, depth, begin, end);
  if constexpr (row_step < block_rows) {
    for (; i0 < rows; i0 += row_step) block_row<row_step>(i0, vectors, left, right, stride, depth, begin, end);
  }
}

/// A product of the keys of a band and its queries: as the product of whole tiles.
template <class Rows, class E, class Begin, class End>
TESSERA_INLINE void product_of_band(const Rows& band, Left<E> keys, const E* queries_transposed, std::int64_t depth, Begin begin, End end) {
  keys.data += band.row * keys.row;
  product(
      band.rows, tile_vectors - band.vector, keys, queries_transposed + band.vector * lanes, tile, depth,
      [&](std::int64_t i, std::int64_t j) { return begin(band.row + i, band.vector + j); },
      [&](std::int64_t i, std::int64_t j, const f32x16& v) { end(band.row + i, band.vector + j, v); });
}

/// scores (rows, 64) = keys x queries, as they are: those that a cap has yet to bend.
template <class E>
inline void store_products(float* scores, Left<E> keys, const E* queries_transposed, std::int64_t rows, std::int64_t D) {
  product(
      rows, tile_vectors, keys, queries_transposed, tile, depth<E>(D), [](std::int64_t, std::int64_t) { return f32x16{}; },
      [&](std::int64_t key, std::int64_t j, f32x16 v) { store(scores + key * tile + j * lanes, v); });
}

/// The product added to `sums`, rows of `sums_stride`.
template <class E>
inline void add_product(float* sums, std::int64_t sums_stride, std::int64_t rows, std::int64_t vectors, Left<E> left, const E* right,
                        std::int64_t stride, std::int64_t depth) {
  product(
      rows, vectors, left, right, stride, depth, [&](std::int64_t i, std::int64_t j) { return load(sums + i * sums_stride + j * lanes); },
      [&](std::int64_t i, std::int64_t j, f32x16 v) { store(sums + i * sums_stride + j * lanes, v); });
}

/// to (64, Dp) = the first n rows of `from` (rows of `stride`, D wide), zeros elsewhere.
template <class T>
inline void pack(float* to, const T* from, std::int64_t n, std::int64_t D, std::int64_t stride) {
  std::int64_t Dp = padded(D);
  for (std::int64_t r = 0; r < n; ++r)
    for_vectors(0, D, [&](std::int64_t d, auto count) { store(to + r * Dp + d, load(from + r * stride + d, count)); });
  std::fill(to + n * Dp, to + tile * Dp, 0.f);
}

/// The same in pairs, which the head dim is summed of: (64, padded pairs).
inline void pack(Pair* to, const bf16* from, std::int64_t n, std::int64_t D, std::int64_t stride) {
  const std::int64_t row = row_of<Pair>(D);
  for (std::int64_t r = 0; r < n; ++r)
    for_vectors(0, D / 2, [&](std::int64_t d, auto count) { store_pairs(to + r * row + d, load_pairs(from + r * stride + 2 * d, count)); });
  std::fill(to + n * row, to + tile * row, Pair{});
}
/// The same in pairs that rows are summed of: (32, Dp) = rows 0 and 1, 2 and 3, ...
inline void pack_rows_as_pairs(Pair* to, const bf16* from, std::int64_t n, std::int64_t D, std::int64_t stride) {
  const std::int64_t Dp = padded(D);
  for (std::int64_t r = 0; r < n; r += 2) {
    const bf16 *first = from + r * stride, *second = r + 1 < n ? first + stride : nullptr;
    for_vectors(0, D, [&](std::int64_t d, auto count) {
      const PairVector pairs =
          second ? load_rows_as_pairs(first + d, second + d, count) : bits_as<PairVector>(load(first + d, count)) >> 16;
      store_pairs(to + r / 2 * Dp + d, pairs);
    });
  }
  std::fill(to + ceil_div(n, 2) * Dp, to + tile / 2 * Dp, Pair{});
}

/// Rows as a left operand that is summed along the head dim, where each element is read once: where they lie, if they are of E and a
/// product reads no more of them, or packed into `spare`.
template <class E, class T>
inline Left<E> rows_of(E* spare, const T* from, std::int64_t n, std::int64_t D, std::int64_t stride) {
  if constexpr (std::is_same_v<E, Pair>) {
    if (n % row_step == 0) return {reinterpret_cast<const Pair*>(from), stride / 2, 1};
  }
  if constexpr (std::is_same_v<E, T>) {
    if (n % row_step == 0) return {from, stride, 1};
  }
  pack(spare, from, n, D, stride);
  return {spare, row_of<E>(D), 1};
}

/// to (row, 64) = from (64, row) transposed, times factor where it is fp32.
template <class E>
inline void transpose_tile(E* to, const E* from, std::int64_t row, [[maybe_unused]] float factor) {
  for (std::int64_t q = 0; q < tile; q += lanes)
    for (std::int64_t d = 0; d < row; d += lanes) {
      f32x16 v[lanes];
      for (int i = 0; i < lanes; ++i) v[i] = bits_as<f32x16>(elements(from + (q + i) * row + d));
      transpose(v);
      for (int i = 0; i < lanes; ++i) {
        E* at = to + (d + i) * tile + q;
        if constexpr (std::is_same_v<E, Pair>)
          store_pairs(at, bits_as<PairVector>(v[i]));
        else
          store(at, v[i] * factor);
      }
    }
}

/// The first n columns of from (Dp, 64), times their factors, become rows of `to` in T.
template <class T>
inline void unpack_transposed(T* to, std::int64_t stride, const float* from, std::int64_t n, std::int64_t D, const float* factors) {
  for (std::int64_t q = 0; q < n; q += lanes)
    for (std::int64_t d = 0; d < D; d += lanes) {
      f32x16 v[lanes], factor = load(factors + q);
      for (int i = 0; i < lanes; ++i) v[i] = load(from + (d + i) * tile + q) * factor;
      transpose(v);
      std::int64_t rows = std::min<std::int64_t>(lanes, n - q), width = D - d;
      for (std::int64_t i = 0; i < rows; ++i) {
        T* row = to + (q + i) * stride + d;
        width >= lanes ? store(row, v[i]) : store(row, v[i], static_cast<int>(width));
      }
    }
}

}  // namespace tessera::kernels::tiles
