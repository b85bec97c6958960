// Forward pass and decode. One piece of work is a tile of 64 queries of one head: it walks the key tiles from its first query's first key
// up to its diagonal, or all of a block, with the online softmax of FlashAttention-2. Bound by the multiply-add units; exponentials are a
// tenth of the time.
#include "kernels/attention/attention.hpp"

#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>

#include "base/check.hpp"
#include "kernels/attention/softcap.hpp"
#include "kernels/attention/tiles.hpp"
#include "kernels/parallel.hpp"
#include "kernels/vector/vector.hpp"

namespace tessera::kernels::host {
namespace {
using namespace tiles;

constexpr float log2_e = std::numbers::log2e_v<float>, ln_2 = std::numbers::ln2_v<float>;

std::size_t forward_floats(const AttentionShape& s) {
  // Queries twice (rows, then transposed), keys, values, outputs transposed, scores.
  return static_cast<std::size_t>(tile * (3 * padded(s.D) + 2 * padded(s.value_dim())) + tile * tile);
}

// In pairs it fits into the same floats. Values are pairs of keys, and so are probabilities, which take the place of scores.
template <class E>
struct ForwardBuffers {
  E *q, *q_transposed, *k, *v, *probabilities;
  float *out_transposed, *scores;
  ForwardBuffers(std::byte* workspace, std::int64_t worker, const AttentionShape& s) {
    auto* base = reinterpret_cast<float*>(workspace) + static_cast<std::size_t>(worker) * forward_floats(s);
    q = reinterpret_cast<E*>(base);
    std::int64_t step = tile * row_of<E>(s.D);
    q_transposed = q + step;
    k = q + 2 * step;
    v = q + 3 * step;
    out_transposed = base + tile * (3 * padded(s.D) + padded(s.Dv));
    scores = out_transposed + tile * padded(s.Dv);
    probabilities = reinterpret_cast<E*>(scores);
  }
};

struct Softmax {
  f32x16 maximum[tile_vectors], total[tile_vectors], rescale[tile_vectors];
};

// What queries are multiplied by, so that products with keys are scores of base 2, or what a tanh takes that is to be multiplied by `cap`.
// Of pairs it is the products that are.
struct ScoreFactors {
  float of_queries, cap;
  explicit ScoreFactors(const AttentionShape& s)
      : of_queries(s.softcap > 0 ? scaled(s, 1) / s.softcap : scaled(s, log2_e)), cap(s.softcap * log2_e) {}
  template <class E>
  TESSERA_INLINE f32x16 of_product(const f32x16& x) const {
    return std::is_same_v<E, Pair> ? x * of_queries : x;
  }
};

// scores (rows, 64) = keys x queries; what does not count gets -infinity. The running maximum follows. A tile may hold no key that a query
// sees: what does not count is a number there, since infinities have no difference.
template <Edge edge, class E>
void score(const ForwardBuffers<E>& b, Left<E> keys, const ScoreTile& t, std::int64_t rows, std::int64_t D, const ScoreFactors& factors,
           f32x16 (&most)[tile_vectors]) {
  constexpr float least = edge == Edge::begin ? std::numeric_limits<float>::lowest() : -INFINITY;
  if (factors.cap > 0) {
    store_products(b.scores, keys, b.q_transposed, rows, D);
    for (std::int64_t key = 0; key < rows; ++key)
      for (std::int64_t j = 0; j < tile_vectors; ++j) {
        float* at = b.scores + key * tile + j * lanes;
        const f32x16 v = where_seen<edge>(t, key, j, tanh_of_score(factors.of_product<E>(load(at))) * factors.cap, splat(least));
        store(at, v);
        most[j] = max(most[j], v);
      }
    return;
  }
  for_bands<edge>(rows, [&](const auto& band) {
    product_of_band(
        band, keys, b.q_transposed, depth<E>(D), [](std::int64_t, std::int64_t) { return f32x16{}; },
        [&](std::int64_t key, std::int64_t j, f32x16 v) {
          v = where_seen<edge>(t, key, j, factors.of_product<E>(v), splat(least));
          store(b.scores + key * tile + j * lanes, v);
          most[j] = max(most[j], v);
        });
  });
}

// scores become probabilities relative to the running maximum; totals follow.
template <Edge edge, class E>
void exponentiate(const ForwardBuffers<E>& b, const ScoreTile& t, std::int64_t rows, Softmax& s) {
  for (std::int64_t j = 0; j < tile_vectors; ++j) {
    f32x16 total = s.total[j] * s.rescale[j], most = s.maximum[j];
    const std::int64_t end = edge == Edge::diagonal ? std::min(rows, (j + 1) * lanes) : rows;
    float* column = b.scores + j * lanes;
    const auto probability = [&](std::int64_t key) __attribute__((always_inline)) {
      f32x16 p = where_seen<edge>(t, key, j, exp2_nonpositive(load(column + key * tile) - most), f32x16{});
      total += p;
      return p;
    };
    if constexpr (std::is_same_v<E, Pair>) {
      for (std::int64_t key = 0; key < end; key += 2) {
        const f32x16 first = probability(key), second = probability(key + 1);
        store_pairs(b.probabilities + key / 2 * tile + j * lanes, pairs_of(first, second));
      }
    } else {
      for (std::int64_t key = 0; key < end; ++key) store(column + key * tile, probability(key));
    }
    s.total[j] = total;
  }
}

template <Edge edge, class E>
void forward_tile(const ForwardBuffers<E>& b, Left<E> keys, const ScoreTile& t, std::int64_t D, std::int64_t Dv,
                  const ScoreFactors& factors, Softmax& s) {
  std::int64_t rows = round_up(t.keys, row_step);
  f32x16 most[tile_vectors];
  std::copy_n(s.maximum, tile_vectors, most);
  score<edge>(b, keys, t, rows, D, factors, most);
  for (std::int64_t j = 0; j < tile_vectors; ++j) {
    s.rescale[j] = exp2_nonpositive(s.maximum[j] - most[j]);
    s.maximum[j] = most[j];
  }
  exponentiate<edge>(b, t, rows, s);
  // out^T (Dv, 64) = out^T * rescale + v^T probabilities.
  for_bands<edge>(rows, [&](const auto& band) {
    const std::int64_t k = depth<E>(band.row);
    const auto at = [&](std::int64_t d, std::int64_t j) { return b.out_transposed + d * tile + (band.vector + j) * lanes; };
    product(
        block_padded(Dv), tile_vectors - band.vector, Left<E>{b.v + k * padded(Dv), 1, padded(Dv)},
        b.probabilities + k * tile + band.vector * lanes, tile, depth<E>(band.rows),
        [&](std::int64_t d, std::int64_t j) { return band.row == 0 ? load(at(d, j)) * s.rescale[j] : load(at(d, j)); },
        [&](std::int64_t d, std::int64_t j, f32x16 v) { store(at(d, j), v); });
  });
}

template <class T, class E>
void forward_piece(const ForwardPass& a, const ForwardBuffers<E>& b, std::int64_t batch, std::int64_t h, std::int64_t query) {
  const AttentionShape& s = a.shape;
  const Heads<const T> heads = inputs_of<T>(a, batch, h);
  std::int64_t n = std::min(tile, a.queries - query);
  pack(b.q, heads.q + query * heads.q_stride, n, s.D, heads.q_stride);
  const ScoreFactors factors(s);
  transpose_tile(b.q_transposed, b.q, row_of<E>(s.D), factors.of_queries);
  std::fill_n(b.out_transposed, tile * padded(s.Dv), 0.f);
  Softmax softmax;
  for (std::int64_t j = 0; j < tile_vectors; ++j) {
    softmax.maximum[j] = splat(-INFINITY);
    softmax.total[j] = f32x16{};
  }
  const FirstKeys begins(a, batch, query);
  for (std::int64_t key = first_key(begins); key < end_of_keys(a, query); key += tile) {
    std::int64_t keys = std::min(tile, a.keys - key);
    const Left<E> k = rows_of(b.k, heads.k + key * heads.k_stride, keys, s.D, heads.k_stride);
    if constexpr (std::is_same_v<E, Pair>)
      pack_rows_as_pairs(b.v, heads.v + key * heads.v_stride, keys, s.Dv, heads.v_stride);
    else
      pack(b.v, heads.v + key * heads.v_stride, keys, s.Dv, heads.v_stride);
    const ScoreTile t{query, key, keys, begins, a.causal};
    with_edge(a, t, [&](auto edge) { forward_tile<edge>(b, k, t, s.D, s.Dv, factors, softmax); });
  }
  float inverse[tile], total[tile], most[tile];
  for (std::int64_t j = 0; j < tile_vectors; ++j) {
    store(inverse + j * lanes, 1.f / softmax.total[j]);
    store(total + j * lanes, softmax.total[j]);
    store(most + j * lanes, softmax.maximum[j]);
  }
  float* lse = a.lse + (batch * s.H + h) * s.T + query;
  for (std::int64_t i = 0; i < n; ++i) {
    lse[i] = most[i] * ln_2 + std::log(total[i]);
    if (!begins.sees_any(i, a.keys)) inverse[i] = 0, lse[i] = -INFINITY;
  }
  unpack_transposed(static_cast<T*>(a.out) + ((batch * s.T + query) * s.H + h) * s.Dv, s.H * s.Dv, b.out_transposed, n, s.Dv, inverse);
}

template <class T, class E>
void forward_in(const Context& context, const ForwardPass& a, bool tiles_of_amx) {
  const AttentionShape& s = a.shape;
  std::int64_t tiles = ceil_div(a.queries, tile), heads = s.B * s.H;
  parallel_workers(tiles * heads, [&](std::int64_t worker, std::int64_t piece) {
    // Head by head, whose keys and values stay in the cache; of each the long rows first, so that the threads end together.
    std::int64_t query = (tiles - 1 - piece % tiles) * tile, head = piece / tiles;
    const amx::TileScope scope(tiles_of_amx);
    forward_piece<T>(a, ForwardBuffers<E>(context.workspace.data(), worker, s), head / s.H, head % s.H, query);
  });
}

void forward(const Context& context, const ForwardPass& a, HalfProducts products) {
  require_rows(a.rows, a.shape);
  TESSERA_REQUIRE(context.workspace.size() >= host::attention_forward_workspace_bytes(a.shape), "workspace of {} bytes",
                  context.workspace.size());
  with_float_type(a.shape.dtype, "attention_forward", [&](auto type) {
    using T = decltype(type);
    if constexpr (std::is_same_v<T, bf16>) {
      if (products != HalfProducts::widened) return forward_in<T, Pair>(context, a, products == HalfProducts::tiles);
    }
    forward_in<T, float>(context, a, false);
  });
}

/// A number, so that it has a difference from any other.
template <class T>
float sink_base2(T sink) {
  constexpr float largest = std::numeric_limits<float>::max();
  return std::clamp(static_cast<float>(sink) * log2_e, -largest, largest);
}

constexpr std::int64_t widest_decoded = 640;  ///< features of a head: MLA's latents and rotated keys are 576

/// A head's features as vectors of fp32.
template <class T>
struct HeadVectors {
  std::int64_t features, count = ceil_div(features, lanes);
  int width(std::int64_t i) const { return static_cast<int>(std::min<std::int64_t>(lanes, features - i * lanes)); }
  TESSERA_INLINE f32x16 operator()(const T* row, std::int64_t i) const {
    return width(i) == lanes ? load(row + i * lanes) : load(row + i * lanes, width(i));
  }
};

template <class T>
void decode_head(const AttentionDecode& a, std::int64_t b, std::int64_t h) {
  const AttentionShape& s = a.shape;
  const std::int64_t g = h / (s.H / s.G), Dv = s.value_dim(), first_row = b * a.capacity;
  const HeadVectors<T> key{s.D}, value{Dv};
  const T* keys = static_cast<const T*>(a.cached_k.data) + first_row * a.cached_k.stride + g * s.D;
  const T* values = static_cast<const T*>(a.cached_v.data) + first_row * a.cached_v.stride + g * Dv;
  const T* queries = static_cast<const T*>(a.qkv.q.data) + b * a.qkv.q.stride + h * s.D;
  f32x16 q[widest_decoded / lanes], out[widest_decoded / lanes] = {};
  const ScoreFactors factors(s);
  float most = -INFINITY, total = 0;
  if (a.sinks) most = sink_base2(static_cast<const T*>(a.sinks)[h]), total = 1;
  for (std::int64_t i = 0; i < key.count; ++i) q[i] = key(queries, i) * factors.of_queries;
  const std::int64_t first = s.window > 0 ? std::max<std::int64_t>(0, *a.position + 1 - s.window) : 0;
  for (std::int64_t t = first; t <= *a.position; ++t) {
    f32x16 products{};
    const T* k = keys + t % a.capacity * a.cached_k.stride;
    const T* v = values + t % a.capacity * a.cached_v.stride;
    for (std::int64_t i = 0; i < key.count; ++i) products = fma(q[i], key(k, i), products);
    float score = horizontal_sum(products), before = most;
    if (factors.cap > 0) score = tanh_of_score(score) * factors.cap;
    most = score > most || std::isnan(score) ? score : most;
    float rescale = std::exp2(before - most), p = std::exp2(score - most);
    total = total * rescale + p;
    for (std::int64_t i = 0; i < value.count; ++i) out[i] = fma(value(v, i), splat(p), out[i] * rescale);
  }
  T* to = static_cast<T*>(a.out) + (b * s.H + h) * Dv;
  for (std::int64_t i = 0; i < value.count; ++i) store(to + i * lanes, out[i] / total, value.width(i));
}

/// The new tokens' keys and values into the caches.
void append(const AttentionDecode& a) {
  const AttentionShape& s = a.shape;
  const auto put = [&](const HeadRows<void>& cache, const HeadRows<const void>& rows, std::int64_t width) {
    for (std::int64_t b = 0; b < s.B; ++b)
      std::memcpy(further(cache.data, (b * a.capacity + *a.position % a.capacity) * cache.stride, s.dtype),
                  further(rows.data, b * rows.stride, s.dtype), static_cast<std::size_t>(width) * size_of(s.dtype));
  };
  put(a.cached_k, a.qkv.k, s.G * s.D);
  put(a.cached_v, a.qkv.v, s.G * s.value_dim());
}

}  // namespace

void check_attention(const AttentionShape& s) {
  const bool widths = s.D > 0 && s.D % 2 == 0 && s.Dv >= 0 && s.Dv % 2 == 0;
  TESSERA_REQUIRE(s.G > 0 && s.H % s.G == 0 && widths && s.B >= 0 && s.T >= 0 && s.window >= 0,
                  "attention of B={} T={} H={} G={} D={} Dv={}, window {}", s.B, s.T, s.H, s.G, s.D, s.value_dim(), s.window);
  TESSERA_REQUIRE(has_scores(s), "attention with scale {} and softcap {}", s.scale, s.softcap);
  TESSERA_REQUIRE(is_float(s.dtype), "attention of {}", name_of(s.dtype));
}

void check_attention(const AttentionBlock& b) {
  check_attention(b.shape);
  TESSERA_REQUIRE(makes_sense(b), "an attention block of {} queries from {} and {} keys from {}, of {} tokens", b.queries.count,
                  b.queries.first, b.keys.count, b.keys.first, b.shape.T);
}

std::size_t attention_forward_workspace_bytes(const AttentionShape& s) {
  return static_cast<std::size_t>(threads()) * forward_floats(s) * sizeof(float);
}
std::size_t attention_block_forward_workspace_bytes(const AttentionBlock& b) { return host::attention_forward_workspace_bytes(b.shape); }

HalfProducts fastest_half_products() {
  if (amx::is_there()) return HalfProducts::tiles;
  return pairs_are_faster() ? HalfProducts::pairs : HalfProducts::widened;
}

void attention_forward(const Context& context, const AttentionForward& a, HalfProducts products) {
  check_attention(a.shape);
  forward(context, pass_of(a), products);
}
void attention_forward(const Context& context, const AttentionForward& a) { host::attention_forward(context, a, fastest_half_products()); }

void attention_block_forward(const Context& context, const AttentionBlockForward& a) {
  check_attention(a.block);
  forward(context, pass_of(a), fastest_half_products());
}

std::size_t attention_decode_workspace_bytes(const AttentionDecode&) { return 0; }

void attention_decode(const Context&, const AttentionDecode& a) {
  check_attention(a.shape);
  const bool held = *a.position < a.capacity || holds_a_window(a);
  TESSERA_REQUIRE(*a.position >= 0 && held && a.shape.D <= widest_decoded && a.shape.value_dim() <= widest_decoded,
                  "decode at {} of {}, window {}, D={} Dv={}", *a.position, a.capacity, a.shape.window, a.shape.D, a.shape.value_dim());
  append(a);
  parallel_ranges(a.shape.B * a.shape.H, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      with_float_type(a.shape.dtype, "attention_decode", [&](auto type) { decode_head<decltype(type)>(a, i / a.shape.H, i % a.shape.H); });
  });
}

}  // namespace tessera::kernels::host
