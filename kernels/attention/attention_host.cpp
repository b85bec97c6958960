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
  return static_cast<std::size_t>(5 * tile * padded(s.D) + tile * tile);
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
    out_transposed = base + 4 * tile * padded(s.D);
    scores = base + 5 * tile * padded(s.D);
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
void forward_tile(const ForwardBuffers<E>& b, Left<E> keys, const ScoreTile& t, std::int64_t D, const ScoreFactors& factors, Softmax& s) {
  std::int64_t rows = round_up(t.keys, row_step);
  f32x16 most[tile_vectors];
  std::copy_n(s.maximum, tile_vectors, most);
  score<edge>(b, keys, t, rows, D, factors, most);
  for (std::int64_t j = 0; j < tile_vectors; ++j) {
    s.rescale[j] = exp2_nonpositive(s.maximum[j] - most[j]);
    s.maximum[j] = most[j];
  }
  exponentiate<edge>(b, t, rows, s);
  // out^T (D, 64) = out^T * rescale + v^T probabilities.
  for_bands<edge>(rows, [&](const auto& band) {
    const std::int64_t k = depth<E>(band.row);
    const auto at = [&](std::int64_t d, std::int64_t j) { return b.out_transposed + d * tile + (band.vector + j) * lanes; };
    product(
        block_padded(D), tile_vectors - band.vector, Left<E>{b.v + k * padded(D), 1, padded(D)},
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
  std::fill_n(b.out_transposed, tile * padded(s.D), 0.f);
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
      pack_rows_as_pairs(b.v, heads.v + key * heads.k_stride, keys, s.D, heads.k_stride);
    else
      pack(b.v, heads.v + key * heads.k_stride, keys, s.D, heads.k_stride);
    const ScoreTile t{query, key, keys, begins, a.causal};
    with_edge(a, t, [&](auto edge) { forward_tile<edge>(b, k, t, s.D, factors, softmax); });
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
  unpack_transposed(static_cast<T*>(a.out) + (batch * s.T + query) * s.H * s.D + h * s.D, s.H * s.D, b.out_transposed, n, s.D, inverse);
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

template <class T>
void decode_head(const AttentionDecode& a, std::int64_t b, std::int64_t h) {
  const AttentionShape& s = a.shape;
  constexpr std::int64_t most_vectors = 32;
  std::int64_t vectors = ceil_div(s.D, lanes), g = h / (s.H / s.G), stride = s.G * s.D;
  auto width = [&](std::int64_t i) { return static_cast<int>(std::min<std::int64_t>(lanes, s.D - i * lanes)); };
  auto row = [&](const T* p, std::int64_t i) { return width(i) == lanes ? load(p + i * lanes) : load(p + i * lanes, width(i)); };
  const T* keys = static_cast<const T*>(a.cache_k) + b * a.capacity * stride + g * s.D;
  const T* values = static_cast<const T*>(a.cache_v) + b * a.capacity * stride + g * s.D;
  f32x16 q[most_vectors], out[most_vectors] = {};
  const ScoreFactors factors(s);
  float most = -INFINITY, total = 0;
  if (a.sinks) most = sink_base2(static_cast<const T*>(a.sinks)[h]), total = 1;
  for (std::int64_t i = 0; i < vectors; ++i)
    q[i] = row(static_cast<const T*>(a.qkv) + (b * (s.H + 2 * s.G) + h) * s.D, i) * factors.of_queries;
  const std::int64_t first = s.window > 0 ? std::max<std::int64_t>(0, *a.position + 1 - s.window) : 0;
  for (std::int64_t t = first; t <= *a.position; ++t) {
    f32x16 products{};
    const std::int64_t at = t % a.capacity * stride;
    for (std::int64_t i = 0; i < vectors; ++i) products = fma(q[i], row(keys + at, i), products);
    float score = horizontal_sum(products), before = most;
    if (factors.cap > 0) score = tanh_of_score(score) * factors.cap;
    most = score > most || std::isnan(score) ? score : most;
    float rescale = std::exp2(before - most), p = std::exp2(score - most);
    total = total * rescale + p;
    for (std::int64_t i = 0; i < vectors; ++i) out[i] = fma(row(values + at, i), splat(p), out[i] * rescale);
  }
  T* to = static_cast<T*>(a.out) + (b * s.H + h) * s.D;
  for (std::int64_t i = 0; i < vectors; ++i) store(to + i * lanes, out[i] / total, width(i));
}

/// The new tokens' keys and values into the caches.
void append(const AttentionDecode& a) {
  const AttentionShape& s = a.shape;
  const auto row = static_cast<std::size_t>(s.G * s.D) * size_of(s.dtype), queries = static_cast<std::size_t>(s.H * s.D) * size_of(s.dtype);
  for (std::int64_t b = 0; b < s.B; ++b) {
    const std::byte* k = static_cast<const std::byte*>(a.qkv) + static_cast<std::size_t>(b) * (queries + 2 * row) + queries;
    const std::size_t at = static_cast<std::size_t>(b * a.capacity + *a.position % a.capacity) * row;
    std::memcpy(static_cast<std::byte*>(a.cache_k) + at, k, row);
    std::memcpy(static_cast<std::byte*>(a.cache_v) + at, k + row, row);
  }
}

}  // namespace

void check_attention(const AttentionShape& s) {
  TESSERA_REQUIRE(s.G > 0 && s.H % s.G == 0 && s.D > 0 && s.D % 2 == 0 && s.B >= 0 && s.T >= 0 && s.window >= 0,
                  "attention of B={} T={} H={} G={} D={}, window {}", s.B, s.T, s.H, s.G, s.D, s.window);
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
  TESSERA_REQUIRE(*a.position >= 0 && (*a.position < a.capacity || holds_a_window(a)) && a.shape.D <= 512,
                  "decode at {} of {}, window {}, D={}", *a.position, a.capacity, a.shape.window, a.shape.D);
  append(a);
  parallel_ranges(a.shape.B * a.shape.H, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      with_float_type(a.shape.dtype, "attention_decode", [&](auto type) { decode_head<decltype(type)>(a, i / a.shape.H, i % a.shape.H); });
  });
}

}  // namespace tessera::kernels::host
