// What attention is built from: 64 x 64 tiles of scores, kept transposed (row = key, lane = query), so that the softmax works down the
// lanes without horizontal sums and keys need no transposition. Tiles are fp32 whatever the input is.
#pragma once
#include <algorithm>

#include "kernels/attention/attention.hpp"
#include "kernels/gemm/vector.hpp"

namespace tessera::kernels::host {
/// Throws where the shape makes no sense.
void check_attention(const AttentionShape&);
}  // namespace tessera::kernels::host

namespace tessera::kernels::tiles {

inline constexpr std::int64_t tile = 64, tile_vectors = tile / lane_count;
// Rows and vectors that a block of sums keeps in registers: 4 x 4 sums and 4 + 1 operands of 32 registers, or 2 x 2 pairs of 16.
#ifdef __AVX512F__
inline constexpr int block_rows = 4, block_vectors = 4;
#else
inline constexpr int block_rows = 2, block_vectors = 2;
#endif

/// Head dims are padded with zeros to whole vectors inside tiles.
inline std::int64_t padded(std::int64_t D) { return round_up(D, lane_count); }
/// Rows that a product with D rows computes.
inline std::int64_t block_padded(std::int64_t D) { return round_up(D, block_rows); }

/// The left operand of a product: element (i, k) is data[i * row + k * column].
struct Left {
  const float* data;
  std::int64_t row, column;
};

/// Sums over k < depth of left(i, k) * right[k * stride + lanes] for rows x vectors; `begin(i, j)` starts a vector, `end(i, j, v)` takes
/// it.
template <int rows, int vectors, class Begin, class End>
[[gnu::always_inline]] inline void block(Left left, const float* right, std::int64_t stride, std::int64_t depth, Begin begin, End end) {
  Lanes sums[rows][vectors];
#pragma GCC unroll 8
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < vectors; ++j) sums[i][j] = begin(i, j);
  for (std::int64_t k = 0; k < depth; ++k) {
    Lanes r[vectors];
#pragma GCC unroll 8
    for (int j = 0; j < vectors; ++j) r[j] = load(right + k * stride + j * lane_count);
#pragma GCC unroll 8
    for (int i = 0; i < rows; ++i) {
      Lanes l = broadcast(left.data[i * left.row + k * left.column]);
#pragma GCC unroll 8
      for (int j = 0; j < vectors; ++j) sums[i][j] += l * r[j];
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < vectors; ++j) end(i, j, sums[i][j]);
}

/// The whole product: `rows` a multiple of block_rows, any number of vectors. begin and end are told absolute row and vector.
template <class Begin, class End>
inline void product(std::int64_t rows, std::int64_t vectors, Left left, const float* right, std::int64_t stride, std::int64_t depth,
                    Begin begin, End end) {
  for (std::int64_t j0 = 0; j0 < vectors; j0 += block_vectors)
    for (std::int64_t i0 = 0; i0 < rows; i0 += block_rows) {
      Left l{left.data + i0 * left.row, left.row, left.column};
      const float* r = right + j0 * lane_count;
      auto b = [&](int i, int j) { return begin(i0 + i, j0 + j); };
      auto e = [&](int i, int j, Lanes v) { end(i0 + i, j0 + j, v); };
      switch (std::min<std::int64_t>(block_vectors, vectors - j0)) {
        case 4:
          if constexpr (block_vectors >= 4) block<block_rows, 4>(l, r, stride, depth, b, e);
          break;
        case 3:
          if constexpr (block_vectors >= 3) block<block_rows, 3>(l, r, stride, depth, b, e);
          break;
        case 2:
          block<block_rows, 2>(l, r, stride, depth, b, e);
          break;
        default:
          block<block_rows, 1>(l, r, stride, depth, b, e);
      }
    }
}

/// The product added to `sums`, rows of `sums_stride`.
inline void add_product(float* sums, std::int64_t sums_stride, std::int64_t rows, std::int64_t vectors, Left left, const float* right,
                        std::int64_t stride, std::int64_t depth) {
  product(
      rows, vectors, left, right, stride, depth,
      [&](std::int64_t i, std::int64_t j) { return load(sums + i * sums_stride + j * lane_count); },
      [&](std::int64_t i, std::int64_t j, Lanes v) { store(sums + i * sums_stride + j * lane_count, v); });
}

/// Lane l of the result is i + l.
inline IntLanes indexes_from(std::int64_t i) {
  return IntLanes{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15} + static_cast<std::int32_t>(i);
}

/// Transposes 16 vectors in place: four rounds that exchange halves, quarters, ... of pairs of rows.
inline void transpose(Lanes (&v)[lane_count]) {
  auto round = [&](int distance, IntLanes low, IntLanes high) {
    for (int i = 0; i < lane_count; ++i) {
      if (i & distance) continue;
      Lanes a = v[i], b = v[i + distance];
      v[i] = __builtin_shuffle(a, b, low);
      v[i + distance] = __builtin_shuffle(a, b, high);
    }
  };
  round(8, IntLanes{0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23},
        IntLanes{8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31});
  round(4, IntLanes{0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27},
        IntLanes{4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31});
  round(2, IntLanes{0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29},
        IntLanes{2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31});
  round(1, IntLanes{0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30},
        IntLanes{1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31});
}

/// to (64, Dp) = the first n rows of `from` (rows of `stride`, D wide), zeros elsewhere.
template <class T>
inline void pack(float* to, const T* from, std::int64_t n, std::int64_t D, std::int64_t stride) {
  std::int64_t Dp = padded(D), whole = D / lane_count * lane_count;
  for (std::int64_t r = 0; r < n; ++r) {
    for (std::int64_t d = 0; d < whole; d += lane_count) store(to + r * Dp + d, load(from + r * stride + d));
    if (whole < D) store(to + r * Dp + whole, load_first(from + r * stride + whole, D - whole));
  }
  std::fill(to + n * Dp, to + tile * Dp, 0.f);
}

/// to (Dp, 64) = from (64, Dp) transposed, times factor.
inline void transpose_tile(float* to, const float* from, std::int64_t Dp, float factor) {
  for (std::int64_t q = 0; q < tile; q += lane_count)
    for (std::int64_t d = 0; d < Dp; d += lane_count) {
      Lanes v[lane_count];
      for (int i = 0; i < lane_count; ++i) v[i] = load(from + (q + i) * Dp + d);
      transpose(v);
      for (int i = 0; i < lane_count; ++i) store(to + (d + i) * tile + q, v[i] * factor);
    }
}

/// The first n columns of from (Dp, 64), times their factors, become rows of `to` in T.
template <class T>
inline void unpack_transposed(T* to, std::int64_t stride, const float* from, std::int64_t n, std::int64_t D, const float* factors) {
  for (std::int64_t q = 0; q < n; q += lane_count)
    for (std::int64_t d = 0; d < D; d += lane_count) {
      Lanes v[lane_count], factor = load(factors + q);
      for (int i = 0; i < lane_count; ++i) v[i] = load(from + (d + i) * tile + q) * factor;
      transpose(v);
      std::int64_t width = std::min(lane_count, D - d), rows = std::min(lane_count, n - q);
      for (std::int64_t i = 0; i < rows; ++i) {
        T* row = to + (q + i) * stride + d;
        width == lane_count ? store(row, v[i]) : store_first(row, v[i], width);
      }
    }
}

}  // namespace tessera::kernels::tiles
