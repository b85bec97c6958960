// Backward pass. A part walks (head, query tile) pairs in a fixed order; for each, key tiles from the first query's first key up to the
// diagonal, or all of a block, five products a tile. dQ of the tile is finished at once; dK and dV of a whole key/value head are summed in
// the part's own fp32 buffers. Enough parts to feed the threads come from (batch, key/value head); where those are few, a head's pairs are
// dealt to several parts, whose buffers are then summed in order. The deal depends on the shape alone, so bits do not depend on threads.
#include <cmath>
#include <numbers>

#include "base/check.hpp"
#include "kernels/attention/softcap.hpp"
#include "kernels/attention/tiles.hpp"
#include "kernels/parallel.hpp"
#include "kernels/vector/vector.hpp"

namespace tessera::kernels::host {

namespace {
using namespace tiles;

constexpr std::int64_t wanted_parts = 16;

struct Deal {
  std::int64_t tiles, rows;  // query tiles; padded rows of dK and dV
  std::int64_t parts;        // parts of one key/value head
  std::int64_t pairs;        // (head of the group, query tile) pairs of one key/value head
  std::size_t scratch;       // floats of a worker's tiles
  std::size_t sums;          // floats of a dK or dV buffer
  Deal(const AttentionShape& s, std::int64_t queries, std::int64_t keys)
      : tiles(ceil_div(queries, tile)),
        rows(round_up(keys, tile)),
        pairs(s.H / s.G * tiles),
        scratch(static_cast<std::size_t>(8 * tile * padded(s.D) + 2 * tile * tile + tile)),
        sums(static_cast<std::size_t>(rows * padded(s.D))) {
    parts = std::clamp<std::int64_t>(ceil_div(wanted_parts, std::max<std::int64_t>(1, s.B * s.G)), 1, std::max<std::int64_t>(1, pairs));
  }
};

struct Buffers {
  float *q, *q_transposed, *d_out, *d_out_transposed, *k, *v, *d_q_transposed, *out, *p, *d_scores, *delta;
  Buffers(float* base, std::int64_t Dp) {
    std::int64_t step = tile * Dp;
    float** each[] = {&q, &q_transposed, &d_out, &d_out_transposed, &k, &v, &d_q_transposed, &out};
    for (float** b : each) *b = base, base += step;
    p = base;
    d_scores = p + tile * tile;
    delta = d_scores + tile * tile;
  }
};

// Of one query head of one sequence.
template <class T>
struct Pointers {
  Heads<const T> in;
  Heads<T> gradients;
  const T *d_out, *out;  // rows out_stride apart
  const float* lse;
  std::int64_t out_stride;
  Pointers(const BackwardPass& a, std::int64_t b, std::int64_t h)
      : in(inputs_of<T>(a, b, h)), gradients(gradients_of<T>(a, b, h)), out_stride(a.shape.H * a.shape.D) {
    const std::int64_t at = b * a.shape.T * out_stride + h * a.shape.D;
    d_out = static_cast<const T*>(a.d_out) + at;
    out = static_cast<const T*>(a.out) + at;
    lse = a.lse + (b * a.shape.H + h) * a.shape.T;
  }
};

// p = 2^(scores - lse), then d_scores = p (d_p - delta), rows = keys, lanes = queries. With a cap scores are cap x, where x is the tanh of
// products, and what p stands for in d_scores is p (1 - x^2).
template <Edge edge>
void score_gradients(const Buffers& b, const ScoreTile& t, std::int64_t rows, std::int64_t D, float cap, const f32x16 (&lse)[tile_vectors],
                     const f32x16 (&delta)[tile_vectors]) {
  auto zero = [](std::int64_t, std::int64_t) { return f32x16{}; };
  const float* weights = b.p;
  if (cap > 0) {
    store_products(b.p, b.k, b.q_transposed, rows, D);
    for (std::int64_t key = 0; key < rows; ++key)
      for (std::int64_t j = 0; j < tile_vectors; ++j) {
        const std::int64_t at = key * tile + j * lanes;
        const f32x16 x = tanh_of_score(load(b.p + at));
        const f32x16 p = where_seen<edge>(t, key, j, exp2_nonpositive(x * cap - lse[j]), f32x16{});
        store(b.p + at, p);
        store(b.d_scores + at, p * (1.f - x * x));
      }
    weights = b.d_scores;
  } else {
    product(rows, tile_vectors, {b.k, padded(D), 1}, b.q_transposed, tile, D, zero, [&](std::int64_t key, std::int64_t j, f32x16 v) {
      store(b.p + key * tile + j * lanes, where_seen<edge>(t, key, j, exp2_nonpositive(v - lse[j]), f32x16{}));
    });
  }
  product(rows, tile_vectors, {b.v, padded(D), 1}, b.d_out_transposed, tile, D, zero, [&](std::int64_t key, std::int64_t j, f32x16 v) {
    std::int64_t at = key * tile + j * lanes;
    store(b.d_scores + at, load(weights + at) * (v - delta[j]));
  });
}

template <class T>
void backward_pair(const BackwardPass& a, const Pointers<T>& x, const Buffers& b, const FirstKeys& begins, std::int64_t query, float* d_k,
                   float* d_v) {
  const AttentionShape& s = a.shape;
  std::int64_t Dp = padded(s.D), n = std::min(tile, a.queries - query), vectors = Dp / lanes;
  constexpr float log2_e = std::numbers::log2e_v<float>;
  const float scale = scaled(s, 1), cap = s.softcap * log2_e;
  pack(b.q, x.in.q + query * x.in.q_stride, n, s.D, x.in.q_stride);
  pack(b.d_out, x.d_out + query * x.out_stride, n, s.D, x.out_stride);
  pack(b.out, x.out + query * x.out_stride, n, s.D, x.out_stride);
  transpose_tile(b.q_transposed, b.q, Dp, cap > 0 ? scale / s.softcap : scale * log2_e);
  transpose_tile(b.d_out_transposed, b.d_out, Dp, 1);
  float lse_base2[tile] = {}, factors[tile];
  for (std::int64_t i = 0; i < tile; ++i) {
    f32x16 products{};
    for (std::int64_t d = 0; d < Dp; d += lanes) products = fma(load(b.d_out + i * Dp + d), load(b.out + i * Dp + d), products);
    b.delta[i] = horizontal_sum(products);
    if (i < n) lse_base2[i] = x.lse[query + i] * log2_e;
    factors[i] = scale;
  }
  f32x16 lse[tile_vectors], delta[tile_vectors];
  for (std::int64_t j = 0; j < tile_vectors; ++j) {
    lse[j] = load(lse_base2 + j * lanes);
    delta[j] = load(b.delta + j * lanes);
  }
  std::fill_n(b.d_q_transposed, tile * Dp, 0.f);
  for (std::int64_t key = first_key(begins); key < end_of_keys(a, query); key += tile) {
    std::int64_t keys = std::min(tile, a.keys - key), rows = round_up(keys, row_step);
    pack(b.k, x.in.k + key * x.in.k_stride, keys, s.D, x.in.k_stride);
    pack(b.v, x.in.v + key * x.in.k_stride, keys, s.D, x.in.k_stride);
    const ScoreTile t{query, key, keys, begins};
    with_edge(a, t, [&](auto edge) { score_gradients<edge>(b, t, rows, s.D, cap, lse, delta); });
    add_product(d_v + key * Dp, Dp, rows, vectors, {b.p, tile, 1}, b.d_out, Dp, n);
    add_product(d_k + key * Dp, Dp, rows, vectors, {b.d_scores, tile, 1}, b.q, Dp, n);
    add_product(b.d_q_transposed, tile, block_padded(s.D), tile_vectors, {b.k, 1, Dp}, b.d_scores, tile, rows);
  }
  unpack_transposed(x.gradients.q + query * x.gradients.q_stride, x.gradients.q_stride, b.d_q_transposed, n, s.D, factors);
}

template <class T>
void write_rows(T* to, std::int64_t stride, const float* from, std::int64_t n, std::int64_t D, float factor) {
  for (std::int64_t r = 0; r < n; ++r)
    for_vectors(0, D, [&](std::int64_t d, auto count) { store(to + r * stride + d, load(from + r * padded(D) + d) * factor, count); });
}

// Adds the other parts' sums of rows [begin, end) to the first part's, in order, and writes them.
template <class T>
void finish_rows(const AttentionShape& s, const Pointers<T>& x, float* sums, const Deal& deal, std::int64_t begin, std::int64_t end) {
  std::int64_t Dp = padded(s.D);
  for (int which = 0; which < 2; ++which) {
    float* first = sums + static_cast<std::size_t>(which) * deal.sums;
    for (std::int64_t part = 1; part < deal.parts; ++part) {
      const float* other = first + static_cast<std::size_t>(2 * part) * deal.sums;
      for (std::int64_t i = begin * Dp; i < end * Dp; i += lanes) store(first + i, load(first + i) + load(other + i));
    }
    T* to = (which == 0 ? x.gradients.k : x.gradients.v) + begin * x.gradients.k_stride;
    write_rows(to, x.gradients.k_stride, first + begin * Dp, end - begin, s.D, which == 0 ? scaled(s, 1) : 1.f);
  }
}

template <class T>
void backward(const Context& context, const BackwardPass& a) {
  const AttentionShape& s = a.shape;
  Deal deal(s, a.queries, a.keys);
  bool shared = deal.parts > 1;  // the sums outlive the worker's piece
  auto* base = reinterpret_cast<float*>(context.workspace.data());
  float* sums_base = base + static_cast<std::size_t>(threads()) * deal.scratch;
  std::int64_t group = s.H / s.G, kv_heads = s.B * s.G;
  parallel_workers(kv_heads * deal.parts, [&](std::int64_t worker, std::int64_t piece) {
    std::int64_t kv = piece / deal.parts, part = piece % deal.parts, batch = kv / s.G, first_head = kv % s.G * group;
    Buffers buffers(base + static_cast<std::size_t>(worker) * deal.scratch, padded(s.D));
    float* d_k = sums_base + static_cast<std::size_t>(2 * (shared ? piece : worker)) * deal.sums;
    std::fill_n(d_k, 2 * deal.sums, 0.f);
    for (std::int64_t pair = part; pair < deal.pairs; pair += deal.parts) {
      const std::int64_t query = pair % deal.tiles * tile;
      backward_pair(a, Pointers<T>(a, batch, first_head + pair / deal.tiles), buffers, FirstKeys(a, batch, query), query, d_k,
                    d_k + deal.sums);
    }
    if (!shared) finish_rows(s, Pointers<T>(a, batch, first_head), d_k, deal, 0, a.keys);
  });
  if (!shared) return;
  const std::int64_t key_tiles = deal.rows / tile;
  parallel_ranges(kv_heads * key_tiles, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      std::int64_t kv = i / key_tiles, row = i % key_tiles * tile;
      finish_rows(s, Pointers<T>(a, kv / s.G, kv % s.G * group), sums_base + static_cast<std::size_t>(2 * kv * deal.parts) * deal.sums,
                  deal, row, std::min(row + tile, a.keys));
    }
  });
}

std::size_t workspace_bytes(const AttentionShape& s, std::int64_t queries, std::int64_t keys) {
  Deal deal(s, queries, keys);
  auto workers = static_cast<std::size_t>(threads());
  std::size_t sums = deal.parts > 1 ? static_cast<std::size_t>(s.B * s.G * deal.parts) : workers;
  return (workers * deal.scratch + 2 * sums * deal.sums) * sizeof(float);
}

void backward(const Context& context, const BackwardPass& a) {
  TESSERA_REQUIRE(context.workspace.size() >= workspace_bytes(a.shape, a.queries, a.keys), "workspace of {} bytes",
                  context.workspace.size());
  with_float_type(a.shape.dtype, "attention_backward", [&](auto type) { backward<decltype(type)>(context, a); });
}

}  // namespace

std::size_t attention_backward_workspace_bytes(const AttentionShape& s) {
  check_attention(s);
  return workspace_bytes(s, s.T, s.T);
}
std::size_t attention_block_backward_workspace_bytes(const AttentionBlock& b) {
  check_attention(b);
  return workspace_bytes(b.shape, b.queries.count, b.keys.count);
}

void attention_backward(const Context& context, const AttentionBackward& a) {
  check_attention(a.shape);
  backward(context, pass_of(a));
}

void attention_block_backward(const Context& context, const AttentionBlockBackward& a) {
  check_attention(a.block);
  backward(context, pass_of(a));
}

}  // namespace tessera::kernels::host
