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
  std::int64_t tiles, rows;   // query tiles; padded rows of dK and dV
  std::int64_t parts;         // parts of one key/value head
  std::int64_t pairs;         // (head of the group, query tile) pairs of one key/value head
  std::size_t scratch;        // floats of a worker's tiles
  std::size_t of_keys, sums;  // floats of a dK buffer, and with the dV buffer behind it
  Deal(const AttentionShape& s, std::int64_t queries, std::int64_t keys)
      : tiles(ceil_div(queries, tile)),
        rows(round_up(keys, tile)),
        pairs(s.H / s.G * tiles),
        scratch(static_cast<std::size_t>(tile * (4 * padded(s.D) + 3 * padded(s.value_dim())) + 2 * tile * tile)),
        of_keys(static_cast<std::size_t>(rows * padded(s.D))),
        sums(of_keys + static_cast<std::size_t>(rows * padded(s.value_dim()))) {
    parts = std::clamp<std::int64_t>(ceil_div(wanted_parts, std::max<std::int64_t>(1, s.B * s.G)), 1, std::max<std::int64_t>(1, pairs));
  }
};

template <class E>
struct Buffers {
  // Left operands are rows of keys, right ones what their products sum over queries, or over keys.
  E *q_transposed, *d_out_transposed, *q, *d_out, *k, *v, *k_rows, *p, *d_scores, *d_score_rows;
  float *d_q_transposed, *weights;  // p by which a cap scales d_scores, or p
  std::int64_t p_row = tile;

  Buffers(float* base, std::int64_t D, std::int64_t Dv) {
    if constexpr (std::is_same_v<E, Pair>) {
      take(base, tile * row_of<Pair>(D), q_transposed, k);
      take(base, tile * row_of<Pair>(Dv), d_out_transposed, v);
      take(base, tile / 2 * padded(D), q, k_rows);
      take(base, tile / 2 * padded(Dv), d_out);
      take(base, tile * padded(D), d_q_transposed);
      p_row = tile / 2;
      take(base, tile * p_row, p, d_score_rows);
      take(base, tile * tile, weights);
      d_scores = reinterpret_cast<Pair*>(weights);
    } else {
      take(base, tile * padded(D), q_transposed, q, k, d_q_transposed);
      take(base, tile * padded(Dv), d_out_transposed, d_out, v);
      take(base, tile * tile, p, d_scores);
      k_rows = k, d_score_rows = d_scores, weights = p;
    }
  }

 private:
  template <class... Pointer>
  static void take(float*& base, std::int64_t floats, Pointer&... to) {
    ((to = reinterpret_cast<Pointer>(base), base += floats), ...);
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
      : in(inputs_of<T>(a, b, h)), gradients(gradients_of<T>(a, b, h)), out_stride(a.shape.H * a.shape.Dv) {
    const std::int64_t at = b * a.shape.T * out_stride + h * a.shape.Dv;
    d_out = static_cast<const T*>(a.d_out) + at;
    out = static_cast<const T*>(a.out) + at;
    lse = a.lse + (b * a.shape.H + h) * a.shape.T;
  }
};

// p = 2^(scores - lse), then d_scores = p (d_p - delta), rows = keys, lanes = queries. With a cap scores are cap x, where x is the tanh of
// products, and what p stands for in d_scores is p (1 - x^2). Products of pairs have yet to be multiplied by `factor`; p and d_scores are
// rounded to bf16 where products read them alone, and d_scores take the place of the weights, row by row.
template <Edge edge, class E>
void score_gradients(const Buffers<E>& b, Left<E> k, Left<E> v, const ScoreTile& t, std::int64_t rows, std::int64_t D, std::int64_t Dv,
                     float factor, float cap, const f32x16 (&lse)[tile_vectors], const f32x16 (&delta)[tile_vectors]) {
  constexpr bool pairs = std::is_same_v<E, Pair>;
  const auto zero = [](std::int64_t, std::int64_t) { return f32x16{}; };
  const auto numbers = [](E* tile_of, std::int64_t row, std::int64_t j) {
    if constexpr (pairs) return reinterpret_cast<bf16*>(tile_of + row) + j * lanes;
    if constexpr (!pairs) return tile_of + row + j * lanes;
  };
  if (cap > 0) {
    store_products(b.weights, k, b.q_transposed, rows, D);
    for (std::int64_t key = 0; key < rows; ++key)
      for (std::int64_t j = 0; j < tile_vectors; ++j) {
        float* at = b.weights + key * tile + j * lanes;
        const f32x16 product = load(at), x = tanh_of_score(pairs ? product * factor : product);
        const f32x16 p = where_seen<edge>(t, key, j, exp2_nonpositive(x * cap - lse[j]), f32x16{});
        store(numbers(b.p, key * b.p_row, j), p);
        store(pairs ? at : reinterpret_cast<float*>(b.d_scores) + key * tile + j * lanes, p * (1.f - x * x));
      }
  } else {
    for_bands<edge>(rows, [&](const auto& band) {
      product_of_band(band, k, b.q_transposed, depth<E>(D), zero, [&](std::int64_t key, std::int64_t j, const f32x16& x) {
        const f32x16 exponent = pairs ? fma(x, splat(factor), -lse[j]) : x - lse[j];
        const f32x16 p = where_seen<edge>(t, key, j, exp2_nonpositive(exponent), f32x16{});
        store(numbers(b.p, key * b.p_row, j), p);
        if constexpr (pairs) store(b.weights + key * tile + j * lanes, p);
      });
    });
  }
  const float* weights = cap > 0 && !pairs ? reinterpret_cast<const float*>(b.d_scores) : b.weights;
  for_bands<edge>(rows, [&](const auto& band) {
    product_of_band(band, v, b.d_out_transposed, depth<E>(Dv), zero, [&](std::int64_t key, std::int64_t j, const f32x16& x) {
      store(numbers(b.d_scores, key * tile, j), load(weights + key * tile + j * lanes) * (x - delta[j]));
    });
  });
  if constexpr (pairs) pack_rows_as_pairs(b.d_score_rows, reinterpret_cast<const bf16*>(b.d_scores), rows, tile, 2 * tile);
}

// The tile's products that are summed over queries, which see keys of a band from its first vector on, and over keys.
template <Edge edge, class E>
void add_gradients(const Buffers<E>& b, std::int64_t rows, std::int64_t n, std::int64_t D, std::int64_t Dv, float* d_k, float* d_v) {
  const std::int64_t Dp = padded(D), Dvp = padded(Dv);
  for_bands<edge>(rows, [&](const auto& band) {
    const std::int64_t query = depth<E>(band.vector * lanes), key = depth<E>(band.row), queries = depth<E>(n) - query;
    add_product(d_v + band.row * Dvp, Dvp, band.rows, Dvp / lanes, Left<E>{b.p + band.row * b.p_row + query, b.p_row, 1},
                b.d_out + query * Dvp, Dvp, queries);
    add_product(d_k + band.row * Dp, Dp, band.rows, Dp / lanes, Left<E>{b.d_scores + band.row * tile + query, tile, 1}, b.q + query * Dp,
                Dp, queries);
    add_product(b.d_q_transposed + band.vector * lanes, tile, block_padded(D), tile_vectors - band.vector,
                Left<E>{b.k_rows + key * Dp, 1, Dp}, b.d_score_rows + key * tile + band.vector * lanes, tile, depth<E>(band.rows));
  });
}

// Rows of queries, or of their gradients, and both ways in which products read them. `spare` is a tile of rows.
template <class T, class E>
void pack_queries(E* transposed, E* rows, [[maybe_unused]] E* spare, const T* from, std::int64_t n, std::int64_t D, std::int64_t stride,
                  float factor) {
  if constexpr (std::is_same_v<E, Pair>) {
    pack_rows_as_pairs(rows, from, n, D, stride);
    rows = spare;
  }
  pack(rows, from, n, D, stride);
  transpose_tile(transposed, rows, row_of<E>(D), factor);
}

template <class T, class E>
void backward_pair(const BackwardPass& a, const Pointers<T>& x, const Buffers<E>& b, const FirstKeys& begins, std::int64_t query,
                   float* d_k, float* d_v) {
  const AttentionShape& s = a.shape;
  std::int64_t Dp = padded(s.D), Dvp = padded(s.Dv), n = std::min(tile, a.queries - query);
  constexpr float log2_e = std::numbers::log2e_v<float>;
  const float scale = scaled(s, 1), cap = s.softcap * log2_e, factor = cap > 0 ? scale / s.softcap : scale * log2_e;
  pack_queries(b.q_transposed, b.q, b.k, x.in.q + query * x.in.q_stride, n, s.D, x.in.q_stride, factor);
  pack_queries(b.d_out_transposed, b.d_out, b.v, x.d_out + query * x.out_stride, n, s.Dv, x.out_stride, 1);
  float lse_base2[tile] = {}, deltas[tile] = {}, factors[tile];
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t row = (query + i) * x.out_stride;
    f32x16 products{};
    for_vectors(0, s.Dv, [&](std::int64_t d, auto count) {
      products = fma(load(x.d_out + row + d, count), load(x.out + row + d, count), products);
    });
    deltas[i] = horizontal_sum(products);
    lse_base2[i] = x.lse[query + i] * log2_e;
  }
  std::fill_n(factors, tile, scale);
  f32x16 lse[tile_vectors], delta[tile_vectors];
  for (std::int64_t j = 0; j < tile_vectors; ++j) {
    lse[j] = load(lse_base2 + j * lanes);
    delta[j] = load(deltas + j * lanes);
  }
  std::fill_n(b.d_q_transposed, tile * Dp, 0.f);
  for (std::int64_t key = first_key(begins); key < end_of_keys(a, query); key += tile) {
    std::int64_t keys = std::min(tile, a.keys - key), rows = round_up(keys, row_step);
    const T* first = x.in.k + key * x.in.k_stride;
    const Left<E> v = rows_of(b.v, x.in.v + key * x.in.v_stride, keys, s.Dv, x.in.v_stride);
    Left<E> k{b.k, row_of<E>(s.D), 1};
    if constexpr (std::is_same_v<E, Pair>) {
      pack_rows_as_pairs(b.k_rows, first, keys, s.D, x.in.k_stride);
      k = rows_of(b.k, first, keys, s.D, x.in.k_stride);
    } else {
      pack(b.k, first, keys, s.D, x.in.k_stride);  // which is k_rows as well
    }
    const ScoreTile t{query, key, keys, begins, a.causal};
    with_edge(a, t, [&](auto edge) {
      score_gradients<edge>(b, k, v, t, rows, s.D, s.Dv, factor, cap, lse, delta);
      add_gradients<edge>(b, rows, n, s.D, s.Dv, d_k + key * Dp, d_v + key * Dvp);
    });
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
  const auto finish = [&](T* to, std::int64_t stride, float* first, std::int64_t D, float factor) {
    const std::int64_t Dp = padded(D);
    for (std::int64_t part = 1; part < deal.parts; ++part) {
      const float* other = first + static_cast<std::size_t>(part) * deal.sums;
      for (std::int64_t i = begin * Dp; i < end * Dp; i += lanes) store(first + i, load(first + i) + load(other + i));
    }
    write_rows(to + begin * stride, stride, first + begin * Dp, end - begin, D, factor);
  };
  finish(x.gradients.k, x.gradients.k_stride, sums, s.D, scaled(s, 1));
  finish(x.gradients.v, x.gradients.v_stride, sums + deal.of_keys, s.Dv, 1.f);
}

template <class T, class E>
void backward_in(const Context& context, const BackwardPass& a, bool tiles_of_amx) {
  const AttentionShape& s = a.shape;
  Deal deal(s, a.queries, a.keys);
  bool shared = deal.parts > 1;  // the sums outlive the worker's piece
  auto* base = reinterpret_cast<float*>(context.workspace.data());
  float* sums_base = base + static_cast<std::size_t>(threads()) * deal.scratch;
  std::int64_t group = s.H / s.G, kv_heads = s.B * s.G;
  parallel_workers(kv_heads * deal.parts, [&](std::int64_t worker, std::int64_t piece) {
    std::int64_t kv = piece / deal.parts, part = piece % deal.parts, batch = kv / s.G, first_head = kv % s.G * group;
    const amx::TileScope scope(tiles_of_amx);
    Buffers<E> buffers(base + static_cast<std::size_t>(worker) * deal.scratch, s.D, s.Dv);
    float* d_k = sums_base + static_cast<std::size_t>(shared ? piece : worker) * deal.sums;
    std::fill_n(d_k, deal.sums, 0.f);
    for (std::int64_t pair = part; pair < deal.pairs; pair += deal.parts) {
      const std::int64_t query = pair % deal.tiles * tile;
      backward_pair(a, Pointers<T>(a, batch, first_head + pair / deal.tiles), buffers, FirstKeys(a, batch, query), query, d_k,
                    d_k + deal.of_keys);
    }
    if (!shared) finish_rows(s, Pointers<T>(a, batch, first_head), d_k, deal, 0, a.keys);
  });
  if (!shared) return;
  const std::int64_t key_tiles = deal.rows / tile;
  parallel_ranges(kv_heads * key_tiles, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      std::int64_t kv = i / key_tiles, row = i % key_tiles * tile;
      finish_rows(s, Pointers<T>(a, kv / s.G, kv % s.G * group), sums_base + static_cast<std::size_t>(kv * deal.parts) * deal.sums, deal,
                  row, std::min(row + tile, a.keys));
    }
  });
}

std::size_t workspace_bytes(const AttentionShape& s, std::int64_t queries, std::int64_t keys) {
  Deal deal(s, queries, keys);
  auto workers = static_cast<std::size_t>(threads());
  std::size_t sums = deal.parts > 1 ? static_cast<std::size_t>(s.B * s.G * deal.parts) : workers;
  return (workers * deal.scratch + sums * deal.sums) * sizeof(float);
}

void backward(const Context& context, const BackwardPass& a, HalfProducts products) {
  require_rows(a.rows, a.shape), require_rows(a.d_rows, a.shape);
  TESSERA_REQUIRE(context.workspace.size() >= workspace_bytes(a.shape, a.queries, a.keys), "workspace of {} bytes",
                  context.workspace.size());
  with_float_type(a.shape.dtype, "attention_backward", [&](auto type) {
    using T = decltype(type);
    if constexpr (std::is_same_v<T, bf16>) {
      if (products != HalfProducts::widened) return backward_in<T, Pair>(context, a, products == HalfProducts::tiles);
    }
    backward_in<T, float>(context, a, false);
  });
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

void attention_backward(const Context& context, const AttentionBackward& a, HalfProducts products) {
  check_attention(a.shape);
  backward(context, pass_of(a), products);
}
void attention_backward(const Context& context, const AttentionBackward& a) {
  host::attention_backward(context, a, fastest_half_products());
}

void attention_block_backward(const Context& context, const AttentionBlockBackward& a) {
  check_attention(a.block);
  backward(context, pass_of(a), fastest_half_products());
}

}  // namespace tessera::kernels::host
