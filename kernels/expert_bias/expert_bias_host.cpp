// Bound by memory: each row is read once, and written once where a bias is added.
#include "kernels/expert_bias/expert_bias.hpp"

#include <algorithm>

#include "kernels/expert_bias/bias_slots.hpp"
#include "kernels/parallel.hpp"
#include "kernels/vector/row_blocks.hpp"

namespace tessera::kernels::host {
namespace {

/// Columns that one thread sums: their sums stay in its first-level cache.
constexpr std::int64_t bias_columns = 512;

/// f(row, expert) of all rows that are somebody's, some rows of `columns` elements a thread.
template <class P, class F>
void over_expert_rows(const P& p, std::int64_t columns, F&& f) {
  if (p.E == 0 || columns == 0) return;
  parallel_ranges(p.offsets[p.E], std::max<std::int64_t>(1, 16384 / columns), [&](std::int64_t begin, std::int64_t end) {
    std::int64_t expert = std::upper_bound(p.offsets, p.offsets + p.E + 1, begin) - p.offsets - 1;
    for (std::int64_t row = begin; row < end; ++row) {
      while (row >= p.offsets[expert + 1]) ++expert;
      f(row, expert);
    }
  });
}

/// d_bias of columns j to j + columns of an expert, whose rows are cut into blocks as their number says.
template <class T>
void sum_expert_rows(const ExpertBiasGradient& p, std::int64_t expert, std::int64_t j, std::int64_t columns) {
  const std::int64_t first = p.offsets[expert];
  const RowBlocks blocks(p.offsets[expert + 1] - first);
  alignas(64) float total[bias_columns] = {}, sum[bias_columns];
  for (std::int64_t b = 0; b < blocks.count; ++b) {
    std::fill_n(sum, round_up(columns, lanes), 0.0f);
    for (std::int64_t row = first + blocks.begin(b); row < first + blocks.end(b); ++row) {
      const f32x16 weight = splat(bias_weight(p, row));
      const T* d_y = static_cast<const T*>(p.d_y) + row * p.N + j;
      for_vectors(0, columns, [&](std::int64_t i, auto n) { store(sum + i, fma(load_any(d_y + i, n), weight, load(sum + i))); });
    }
    for (std::int64_t i = 0; i < columns; i += lanes) store(total + i, load(total + i) + load(sum + i));
  }
  float* d_bias = p.d_bias + expert * p.N + j;
  for_vectors(0, columns, [&](std::int64_t i, auto n) {
    const f32x16 ordered = in_order<T>(load(total + i));
    store(d_bias + i, p.accumulate ? load(d_bias + i, n) + ordered : ordered, n);
  });
}

}  // namespace

void add_expert_bias(const Context&, const AddExpertBias& p) {
  with_float_type(p.dtype, "add_expert_bias", [&](auto type) {
    using T = decltype(type);
    over_expert_rows(p, p.N, [&](std::int64_t row, std::int64_t expert) {
      T* y = static_cast<T*>(p.y) + row * p.N;
      const T* bias = static_cast<const T*>(p.bias) + expert * p.N;
      for_vectors(0, p.N, [&](std::int64_t i, auto n) { store_any(y + i, load_any(y + i, n) + load_any(bias + i, n), n); });
    });
  });
}

void expert_bias_gradient(const Context&, const ExpertBiasGradient& p) {
  const std::int64_t pieces = ceil_div(p.N, bias_columns);
  with_float_type(p.dtype, "expert_bias_gradient", [&](auto type) {
    parallel_dynamic(p.E * pieces, [&](std::int64_t piece, std::int64_t) {
      const std::int64_t j = piece % pieces * bias_columns;
      sum_expert_rows<decltype(type)>(p, piece / pieces, j, std::min(bias_columns, p.N - j));
    });
  });
}

std::size_t expert_bias_gradient_workspace_bytes(const ExpertBiasGradient&) { return 0; }

void weigh_expert_bias(const Context&, const WeighExpertBias& p) {
  with_float_type(p.dtype, "weigh_expert_bias", [&](auto type) {
    using T = decltype(type);
    over_expert_rows(p, p.N, [&](std::int64_t row, std::int64_t expert) {
      const std::int64_t slot = bias_slot(p, row);
      if (slot < 0) return;
      const T *d_y = static_cast<const T*>(p.d_y) + row * p.N, *bias = static_cast<const T*>(p.bias) + expert * p.N;
      p.d_weights[slot] +=
          fold<T>(p.N, [&](std::int64_t i, auto n, f32x16& sum) { sum = fma(load_any(d_y + i, n), load_any(bias + i, n), sum); });
    });
  });
}

}  // namespace tessera::kernels::host
