// Backward pass. A part walks (head, query tile) pairs in a fixed order; for each, key tiles up to the diagonal, five products a tile. dQ
// of the tile is finished at once; dK and dV of a whole key/value head are summed in the part's own fp32 buffers. Enough parts to feed the
// threads come from (batch, key/value head); where those are few, a head's pairs are dealt to several parts, whose buffers are then summed
// in order. The deal depends on the shape alone, so bits do not depend on threads.
#include <cmath>
#include <numbers>

#include "base/check.hpp"
#include "kernels/attention/tiles.hpp"
#include "kernels/parallel.hpp"

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
  explicit Deal(const AttentionShape& s)
      : tiles(ceil_div(s.T, tile)),
        rows(tiles * tile),
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

template <class T>
struct Pointers {
  const T *q, *k, *v, *d_out, *out;
  T *d_q, *d_k, *d_v;
  const float* lse;
  std::int64_t stride, out_stride;
  Pointers(const AttentionBackward& a, std::int64_t b, std::int64_t h) {
    const AttentionShape& s = a.shape;
    std::int64_t g = h / (s.H / s.G);
    stride = (s.H + 2 * s.G) * s.D;
    out_stride = s.H * s.D;
    std::int64_t row = b * s.T * stride, q_at = row + h * s.D, k_at = row + (s.H + g) * s.D, out_at = b * s.T * out_stride + h * s.D;
    q = static_cast<const T*>(a.qkv) + q_at;
    k = static_cast<const T*>(a.qkv) + k_at;
    v = k + s.G * s.D;
    d_q = static_cast<T*>(a.d_qkv) + q_at;
    d_k = static_cast<T*>(a.d_qkv) + k_at;
    d_v = d_k + s.G * s.D;
    d_out = static_cast<const T*>(a.d_out) + out_at;
    out = static_cast<const T*>(a.out) + out_at;
    lse = a.lse + (b * s.H + h) * s.T;
  }
};

// p = 2^(scores - lse), then d_scores = p (d_p - delta), rows = keys, lanes = queries.
template <bool diagonal>
void score_gradients(const Buffers& b, std::int64_t keys, std::int64_t D, const f32x16 (&lse)[tile_vectors],
                     const f32x16 (&delta)[tile_vectors]) {
  auto zero = [](std::int64_t, std::int64_t) { return f32x16{}; };
  product(keys, tile_vectors, {b.k, padded(D), 1}, b.q_transposed, tile, D, zero, [&](std::int64_t key, std::int64_t j, f32x16 v) {
    f32x16 p = exp2_nonpositive(v - lse[j]);
    if constexpr (diagonal) p = select(indexes_from(j * lanes) >= static_cast<std::int32_t>(key), p, f32x16{});
    store(b.p + key * tile + j * lanes, p);
  });
  product(keys, tile_vectors, {b.v, padded(D), 1}, b.d_out_transposed, tile, D, zero, [&](std::int64_t key, std::int64_t j, f32x16 v) {
    std::int64_t at = key * tile + j * lanes;
    store(b.d_scores + at, load(b.p + at) * (v - delta[j]));
  });
}

template <class T>
void backward_pair(const AttentionShape& s, const Pointers<T>& x, const Buffers& b, std::int64_t query, float* d_k, float* d_v) {
  std::int64_t Dp = padded(s.D), n = std::min(tile, s.T - query), vectors = Dp / lanes;
  float scale = 1 / std::sqrt(static_cast<float>(s.D));
  pack(b.q, x.q + query * x.stride, n, s.D, x.stride);
  pack(b.d_out, x.d_out + query * x.out_stride, n, s.D, x.out_stride);
  pack(b.out, x.out + query * x.out_stride, n, s.D, x.out_stride);
  transpose_tile(b.q_transposed, b.q, Dp, scale * std::numbers::log2e_v<float>);
  transpose_tile(b.d_out_transposed, b.d_out, Dp, 1);
  float lse_base2[tile] = {}, factors[tile];
  for (std::int64_t i = 0; i < tile; ++i) {
    f32x16 products{};
    for (std::int64_t d = 0; d < Dp; d += lanes) products = fma(load(b.d_out + i * Dp + d), load(b.out + i * Dp + d), products);
    b.delta[i] = horizontal_sum(products);
    if (i < n) lse_base2[i] = x.lse[query + i] * std::numbers::log2e_v<float>;
    factors[i] = scale;
  }
  f32x16 lse[tile_vectors], delta[tile_vectors];
  for (std::int64_t j = 0; j < tile_vectors; ++j) {
    lse[j] = load(lse_base2 + j * lanes);
    delta[j] = load(b.delta + j * lanes);
  }
  std::fill_n(b.d_q_transposed, tile * Dp, 0.f);
  for (std::int64_t key = 0; key <= query; key += tile) {
    std::int64_t valid = std::min(tile, s.T - key), keys = round_up(valid, row_step);
    pack(b.k, x.k + key * x.stride, valid, s.D, x.stride);
    pack(b.v, x.v + key * x.stride, valid, s.D, x.stride);
    key == query ? score_gradients<true>(b, keys, s.D, lse, delta) : score_gradients<false>(b, keys, s.D, lse, delta);
    add_product(d_v + key * Dp, Dp, keys, vectors, {b.p, tile, 1}, b.d_out, Dp, n);
    add_product(d_k + key * Dp, Dp, keys, vectors, {b.d_scores, tile, 1}, b.q, Dp, n);
    add_product(b.d_q_transposed, tile, block_padded(s.D), tile_vectors, {b.k, 1, Dp}, b.d_scores, tile, keys);
  }
  unpack_transposed(x.d_q + query * x.stride, x.stride, b.d_q_transposed, n, s.D, factors);
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
    T* to = (which == 0 ? x.d_k : x.d_v) + begin * x.stride;
    write_rows(to, x.stride, first + begin * Dp, end - begin, s.D, which == 0 ? 1 / std::sqrt(static_cast<float>(s.D)) : 1.f);
  }
}

template <class T>
void backward(const Context& context, const AttentionBackward& a) {
  const AttentionShape& s = a.shape;
  Deal deal(s);
  bool shared = deal.parts > 1;  // the sums outlive the worker's piece
  auto* base = reinterpret_cast<float*>(context.workspace.data());
  float* sums_base = base + static_cast<std::size_t>(threads()) * deal.scratch;
  std::int64_t group = s.H / s.G, kv_heads = s.B * s.G;
  parallel_workers(kv_heads * deal.parts, [&](std::int64_t worker, std::int64_t piece) {
    std::int64_t kv = piece / deal.parts, part = piece % deal.parts, batch = kv / s.G, first_head = kv % s.G * group;
    Buffers buffers(base + static_cast<std::size_t>(worker) * deal.scratch, padded(s.D));
    float* d_k = sums_base + static_cast<std::size_t>(2 * (shared ? piece : worker)) * deal.sums;
    std::fill_n(d_k, 2 * deal.sums, 0.f);
    for (std::int64_t pair = part; pair < deal.pairs; pair += deal.parts)
      backward_pair(s, Pointers<T>(a, batch, first_head + pair / deal.tiles), buffers, pair % deal.tiles * tile, d_k, d_k + deal.sums);
    if (!shared) finish_rows(s, Pointers<T>(a, batch, first_head), d_k, deal, 0, s.T);
  });
  if (!shared) return;
  parallel_ranges(kv_heads * deal.tiles, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      std::int64_t kv = i / deal.tiles, row = i % deal.tiles * tile;
      finish_rows(s, Pointers<T>(a, kv / s.G, kv % s.G * group), sums_base + static_cast<std::size_t>(2 * kv * deal.parts) * deal.sums,
                  deal, row, std::min(row + tile, s.T));
    }
  });
}

}  // namespace

std::size_t attention_backward_workspace_bytes(const AttentionShape& s) {
  check_attention(s);
  Deal deal(s);
  auto workers = static_cast<std::size_t>(threads());
  std::size_t sums = deal.parts > 1 ? static_cast<std::size_t>(s.B * s.G * deal.parts) : workers;
  return (workers * deal.scratch + 2 * sums * deal.sums) * sizeof(float);
}

void attention_backward(const Context& context, const AttentionBackward& a) {
  TESSERA_REQUIRE(context.workspace.size() >= host::attention_backward_workspace_bytes(a.shape), "workspace of {} bytes",
                  context.workspace.size());
  a.shape.dtype == DType::f32 ? backward<float>(context, a) : backward<bf16>(context, a);
}

}  // namespace tessera::kernels::host
