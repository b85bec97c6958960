// Forward copies rows. Backward sorts token positions by id (a stable counting sort), so that each table row is summed by one thread in
// token order: no atomics, and the same bits for any number of threads.
#include "kernels/embedding/embedding.hpp"

#include "kernels/parallel.hpp"
#include "kernels/vector/vector.hpp"

namespace tessera::kernels::host {
namespace {

/// Work is handed out as (group of rows, block of columns): the columns share the work of a token that is most of the batch.
constexpr std::int64_t row_groups = 64, column_block = 256;

/// starts (V+1): positions of id v are order[starts[v]] .. order[starts[v+1]-1], ascending.
struct SortedTokens {
  std::int32_t* starts;  ///< (V+1)
  std::int32_t* order;   ///< (M)
};

SortedTokens sort_tokens(std::span<std::byte> workspace, const EmbeddingBackward& p) {
  // Counts are taken one place up, so that placing the tokens moves each row's start to the next row's, one place down.
  auto* counts = reinterpret_cast<std::int32_t*>(workspace.data());  // (V+2)
  SortedTokens sorted{.starts = counts, .order = counts + p.V + 2};
  const auto row_of = [&](std::int64_t i) { return p.tokens[i] - p.slice.first; };
  const auto here = [&](std::int64_t row) { return row >= 0 && row < p.V; };
  std::fill_n(counts, p.V + 2, 0);
  for (std::int64_t i = 0; i < p.M; ++i) {
    const std::int64_t row = row_of(i);
    TESSERA_REQUIRE(here(row) || !p.slice.whole, "embedding_backward: token id {} at position {} of a vocabulary of {}", p.tokens[i], i,
                    p.V);
    if (here(row)) ++counts[row + 2];
  }
  for (std::int64_t v = 2; v < p.V + 2; ++v) counts[v] += counts[v - 1];
  for (std::int64_t i = 0; i < p.M; ++i)
    if (const std::int64_t row = row_of(i); here(row)) sorted.order[counts[row + 1]++] = static_cast<std::int32_t>(i);
  return sorted;
}

/// d_row[0, C) += the rows of d_out named by positions, times `scale` where they are scaled, in their order. A group of registers holds 64
/// columns over all positions.
template <bool scaled, class T>
void add_rows(float* d_row, const T* d_out, std::span<const std::int32_t> positions, std::int64_t columns, std::int64_t C, float scale) {
  const auto plus = [&](const f32x16& sum, const f32x16& d) __attribute__((always_inline)) {
    if constexpr (scaled) return fma(splat(scale), d, sum);
    return sum + d;
  };
  std::int64_t j = 0;
  for (; j + 4 * lanes <= columns; j += 4 * lanes) {
    f32x16 sum[4];
    for (int k = 0; k < 4; ++k) sum[k] = load(d_row + j + k * lanes, Whole{});
    for (std::int32_t at : positions) {
      for (int k = 0; k < 4; ++k) sum[k] = plus(sum[k], load(d_out + at * C + j + k * lanes, Whole{}));
    }
    for (int k = 0; k < 4; ++k) store(d_row + j + k * lanes, sum[k], Whole{});
  }
  for_vectors(j, columns, [&](std::int64_t i, auto n) {
    f32x16 sum = load(d_row + i, n);
    for (std::int32_t at : positions) sum = plus(sum, load(d_out + at * C + i, n));
    store(d_row + i, sum, n);
  });
}

template <class T>
void backward(const EmbeddingBackward& p, const SortedTokens& sorted) {
  const T* d_out = static_cast<const T*>(p.d_out);
  auto* add = p.scale == 1 ? add_rows<false, T> : add_rows<true, T>;
  std::int64_t groups = std::min(row_groups, p.M), column_blocks = ceil_div(p.C, column_block);
  parallel_dynamic(groups * column_blocks, [&](std::int64_t piece, std::int64_t) {
    std::int64_t group = piece / column_blocks, j = piece % column_blocks * column_block;
    // The rows whose first position lies in this group's share of the sorted positions.
    const std::int32_t *first = sorted.starts, *last = sorted.starts + p.V;
    const std::int32_t* row = std::lower_bound(first, last, p.M * group / groups);
    const std::int32_t* end = std::lower_bound(first, last, p.M * (group + 1) / groups);
    for (; row < end; ++row) {
      std::span<const std::int32_t> positions{sorted.order + row[0], sorted.order + row[1]};
      if (!positions.empty()) add(p.d_table + (row - first) * p.C + j, d_out + j, positions, std::min(column_block, p.C - j), p.C, p.scale);
    }
  });
}

template <class T>
void scaled_row(T* out, const T* row, std::int64_t C, float scale) {
  for_vectors(0, C, [&](std::int64_t i, auto n) { store_any(out + i, load_any(row + i, n) * scale, n); });
}

/// out = the table's rows of the tokens, by write_row(out's row, table's row).
template <class WriteRow>
void forward(const EmbeddingForward& p, WriteRow&& write_row) {
  const std::size_t row_bytes = static_cast<std::size_t>(p.C) * size_of(p.dtype);
  if (p.M == 0 || row_bytes == 0) return;
  auto* out = static_cast<std::byte*>(p.out);
  const auto* table = static_cast<const std::byte*>(p.table);
  std::int64_t grain = std::max<std::int64_t>(1, 16384 / p.C);
  parallel_ranges(p.M, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t row = p.tokens[i] - p.slice.first;
      if (p.slice.whole || (row >= 0 && row < p.V))
        write_row(out + static_cast<std::size_t>(i) * row_bytes, table + static_cast<std::size_t>(row) * row_bytes);
      else
        std::memset(out + static_cast<std::size_t>(i) * row_bytes, 0, row_bytes);
    }
  });
}

}  // namespace

void embedding_forward(const Context&, const EmbeddingForward& p) {
  if (p.scale == 1) {
    const std::size_t row_bytes = static_cast<std::size_t>(p.C) * size_of(p.dtype);
    return forward(p, [&](std::byte* to, const std::byte* from) { std::memcpy(to, from, row_bytes); });
  }
  with_float_type(p.dtype, "embedding_forward", [&](auto type) {
    using T = decltype(type);
    forward(p, [&](std::byte* to, const std::byte* from) {
      scaled_row(reinterpret_cast<T*>(to), reinterpret_cast<const T*>(from), p.C, p.scale);
    });
  });
}

void embedding_backward(const Context& context, const EmbeddingBackward& p) {
  if (p.M == 0 || p.C == 0) return;
  std::size_t needed = host::embedding_backward_workspace_bytes(p);
  TESSERA_REQUIRE(context.workspace.size() >= needed, "embedding_backward needs {} bytes of workspace, has {}", needed,
                  context.workspace.size());
  SortedTokens sorted = sort_tokens(context.workspace, p);
  with_float_type(p.dtype, "embedding_backward", [&](auto type) { backward<decltype(type)>(p, sorted); });
}

std::size_t embedding_backward_workspace_bytes(const EmbeddingBackward& p) {
  return static_cast<std::size_t>(p.V + 2 + p.M) * sizeof(std::int32_t);
}

}  // namespace tessera::kernels::host
