// Bound by memory, each operand read or written once: a share's exponential is taken once for a row of D elements.
#include "kernels/ring_attention/ring_attention.hpp"

#include "base/check.hpp"
#include "kernels/parallel.hpp"
#include "kernels/ring_attention/merge.hpp"
#include "kernels/vector/vector.hpp"

namespace tessera::kernels::host {
namespace {

/// Rows of W elements that are a thread's least work.
std::int64_t grain_of(std::int64_t W) { return std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(W, 1)); }

void require_rows(const char* op, const AttentionRows& rows, std::int64_t T) {
  TESSERA_REQUIRE(ring_attention::makes_sense(rows, T), "{} of {} rows from {}, of {} tokens", op, rows.count, rows.first, T);
}

constexpr std::int64_t heads_together = 16;  // as many as a few KiB of shares allow: their elements of a token lie together

/// Up to 16 tokens of one sequence from `row` on: first the shares of some heads, 16 tokens at a time, then their elements.
template <class T>
void merge_tokens(const MergeBlock& p, std::int64_t batch, std::int64_t row, int tokens) {
  const AttentionShape& s = p.shape;
  float kept[heads_together][lanes], taken[heads_together][lanes];
  for (std::int64_t first = 0; first < s.H; first += heads_together) {
    const std::int64_t heads = std::min(heads_together, s.H - first);
    for (std::int64_t h = 0; h < heads; ++h) {
      const std::int64_t at = (batch * s.H + first + h) * s.T + row;
      const auto merged = ring_attention::merge(load(p.lse + at, tokens), load(p.block_lse + at, tokens));
      store(p.lse + at, merged.lse, tokens);
      store(kept[h], merged.share_of_first);
      store(taken[h], merged.share_of_second);
    }
    for (std::int64_t t = 0; t < tokens; ++t)
      for (std::int64_t h = 0; h < heads; ++h) {
        const std::int64_t at = ((batch * s.T + row + t) * s.H + first + h) * s.value_dim();
        const f32x16 keep = splat(kept[h][t]), take = splat(taken[h][t]);
        const T* block = static_cast<const T*>(p.block_out) + at;
        for_vectors(0, s.value_dim(), [&](std::int64_t d, auto n) {
          store(p.sum + at + d, fma(load(p.sum + at + d, n), keep, load(block + d, n) * take), n);
        });
      }
  }
}

/// to (W) = from (W), with conversion.
template <class To, class From>
TESSERA_INLINE void convert(To* to, const From* from, std::int64_t W) {
  for_vectors(0, W, [&](std::int64_t i, auto n) { store(to + i, load(from + i, n), n); });
}

template <class T>
void add_row(const AddBlockGradient& p, std::int64_t row) {
  const std::int64_t in_sequence = row % p.T;
  const bool has_block = in_sequence >= p.rows.first && in_sequence < p.rows.first + p.rows.count;
  float* sum = p.sum + row * p.W;
  const T* block = static_cast<const T*>(p.block) + row * p.W;
  if (!has_block) {
    std::fill_n(sum, p.first ? p.W : 0, 0.0f);
  } else if (p.first) {
    convert(sum, block, p.W);
  } else {
    for_vectors(0, p.W, [&](std::int64_t i, auto n) { store(sum + i, load(sum + i, n) + load(block + i, n), n); });
  }
}

/// Calls f(heads of d_qkv, fp32 sums) for the queries, the keys and the values of each token.
template <class T, class P, class Sum, class F>
void each_row(const QueryKeyValue<P>& d_qkv, Sum* d_q, Sum* d_kv, const AttentionShape& s, F f) {
  const std::int64_t queries = s.H * s.D, keys = s.G * s.D, values = s.G * s.value_dim();
  const auto row_of = [](const HeadRows<P>& rows, std::int64_t row) { return static_cast<T*>(rows.data) + row * rows.stride; };
  parallel_ranges(s.B * s.T, grain_of(queries + keys + values), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      f(row_of(d_qkv.q, row), d_q + row * queries, queries);
      f(row_of(d_qkv.k, row), d_kv + row * (keys + values), keys);
      f(row_of(d_qkv.v, row), d_kv + row * (keys + values) + keys, values);
    }
  });
}

}  // namespace

void merge_block(const Context&, const MergeBlock& p) {
  require_rows("merge_block", p.queries, p.shape.T);
  const std::int64_t pieces = ceil_div(p.queries.count, std::int64_t{lanes});
  with_float_type(p.shape.dtype, "merge_block", [&](auto type) {
    parallel_ranges(p.shape.B * pieces, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t first = i % pieces * lanes;
        const auto tokens = static_cast<int>(std::min<std::int64_t>(lanes, p.queries.count - first));
        merge_tokens<decltype(type)>(p, i / pieces, p.queries.first + first, tokens);
      }
    });
  });
}

void add_block_gradient(const Context&, const AddBlockGradient& p) {
  require_rows("add_block_gradient", p.rows, p.T);
  with_float_type(p.dtype, "add_block_gradient", [&](auto type) {
    parallel_ranges(p.B * p.T, grain_of(p.W), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) add_row<decltype(type)>(p, row);
    });
  });
}

void begin_gradients(const Context&, const BeginGradients& p) {
  with_float_type(p.shape.dtype, "begin_gradients", [&](auto type) {
    each_row<const decltype(type)>(p.d_qkv, p.d_q, p.d_kv, p.shape,
                                   [](const auto* heads, float* sums, std::int64_t n) { convert(sums, heads, n); });
  });
}

void end_gradients(const Context&, const EndGradients& p) {
  with_float_type(p.shape.dtype, "end_gradients", [&](auto type) {
    each_row<decltype(type)>(p.d_qkv, p.d_q, p.d_kv, p.shape,
                             [](auto* heads, const float* sums, std::int64_t n) { convert(heads, sums, n); });
  });
}

}  // namespace tessera::kernels::host
