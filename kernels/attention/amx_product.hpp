// The products of attention by AMX (kernels/vector/amx.hpp), between the same operands as those by pairs.
#pragma once
#include <algorithm>
#include <cstring>

#include "kernels/vector/amx.hpp"
#include "kernels/vector/transpose.hpp"

namespace tessera::kernels::amx {

/// A tile's words, where they do not lie so in memory: rows and words that an operand does not have are zeros.
struct alignas(64) TileWords {
  Pair at[rows][words];
};

/// Rows [0, n) and pairs [0, m) of left(i, k) = data[i * row + k * column], where row or column is 1: where they lie, or in `spare`. Gives
/// their stride.
inline const Pair* left_tile(TileWords& spare, const Pair* data, std::int64_t row, std::int64_t column, std::int64_t n, std::int64_t m,
                             std::int64_t& stride) {
  if (column == 1 && n == rows && m == words) {
    stride = row;
    return data;
  }
  stride = words;
  if (column == 1) {
    if (n < rows || m < words) std::memset(&spare, 0, sizeof spare);
    for (std::int64_t i = 0; i < n; ++i) std::memcpy(spare.at[i], data + i * row, static_cast<std::size_t>(m) * sizeof(Pair));
    return &spare.at[0][0];
  }
  f32x16 v[lanes];
  for (std::int64_t k = 0; k < words; ++k) v[k] = k < m ? bits_as<f32x16>(load_pairs(data + k * column, static_cast<int>(n))) : f32x16{};
  transpose(v);
  for (std::int64_t i = 0; i < rows; ++i) store_pairs(spare.at[i], bits_as<PairVector>(v[i]));
  return &spare.at[0][0];
}

/// Pairs [k, k + m) of sixteen columns.
inline const Pair* right_tile(TileWords& spare, const Pair* data, std::int64_t of_row, std::int64_t m, std::int64_t& stride) {
  stride = of_row;
  if (m == words) return data;
  std::memset(&spare, 0, sizeof spare);
  for (std::int64_t k = 0; k < m; ++k) std::memcpy(spare.at[k], data + k * of_row, sizeof spare.at[k]);
  stride = words;
  return &spare.at[0][0];
}

/// Tiles of sums that a block of 2 x 2 keeps: 0 to 3; 4 and 5 are of the left operand, 6 and 7 of the right one.
template <int i, int j>
inline constexpr int sum_tile = 2 * i + j;

/// Sums over k < depth of left(i, k) right[k * stride + lanes] for n_rows x vectors, in blocks of 32 x 2; `begin(i, j)` starts a vector,
/// `end(i, j, v)` takes it. In a TileScope.
template <class Begin, class End>
void product(std::int64_t n_rows, std::int64_t vectors, const Pair* left, std::int64_t left_row, std::int64_t left_column,
             const Pair* right, std::int64_t stride, std::int64_t depth, Begin begin, End end) {
  struct alignas(64) Sums {
    float at[rows][words];
  } sums[2][2];
  TileWords of_left[2], of_right[2];
  for (std::int64_t i0 = 0; i0 < n_rows; i0 += 2 * rows)
    for (std::int64_t j0 = 0; j0 < vectors; j0 += 2) {
      const std::int64_t n[2] = {std::min(rows, n_rows - i0), std::clamp<std::int64_t>(n_rows - i0 - rows, 0, rows)};
      const bool wide = j0 + 1 < vectors, tall = n[1] > 0;
      const auto for_sums = [&](auto&& f) {
        for (int i = 0; i < 1 + tall; ++i)
          for (int j = 0; j < 1 + wide; ++j)
            for (std::int64_t r = 0; r < n[i]; ++r) f(sums[i][j].at[r], i0 + i * rows + r, j0 + j);
      };
      for_sums([&](float* at, std::int64_t i, std::int64_t j) { store(at, begin(i, j)); });
      load_tile<sum_tile<0, 0>>(&sums[0][0], words);
      if (wide) load_tile<sum_tile<0, 1>>(&sums[0][1], words);
      if (tall) load_tile<sum_tile<1, 0>>(&sums[1][0], words);
      if (wide && tall) load_tile<sum_tile<1, 1>>(&sums[1][1], words);
      for (std::int64_t k = 0; k < depth; k += words) {
        const std::int64_t m = std::min(words, depth - k);
        std::int64_t apart = 0;
        const Pair* l = left + i0 * left_row + k * left_column;
        const Pair* r = right + k * stride + j0 * lanes;
        const Pair* tile = left_tile(of_left[0], l, left_row, left_column, n[0], m, apart);
        load_tile<4>(tile, apart);
        tile = right_tile(of_right[0], r, stride, m, apart);
        load_tile<6>(tile, apart);
        multiply_tiles<sum_tile<0, 0>, 4, 6>();
        if (wide) {
          tile = right_tile(of_right[1], r + lanes, stride, m, apart);
          load_tile<7>(tile, apart);
          multiply_tiles<sum_tile<0, 1>, 4, 7>();
        }
        if (tall) {
          tile = left_tile(of_left[1], l + rows * left_row, left_row, left_column, n[1], m, apart);
          load_tile<5>(tile, apart);
          multiply_tiles<sum_tile<1, 0>, 5, 6>();
          if (wide) multiply_tiles<sum_tile<1, 1>, 5, 7>();
        }
      }
      store_tile<sum_tile<0, 0>>(&sums[0][0]);
      if (wide) store_tile<sum_tile<0, 1>>(&sums[0][1]);
      if (tall) store_tile<sum_tile<1, 0>>(&sums[1][0]);
      if (wide && tall) store_tile<sum_tile<1, 1>>(&sums[1][1]);
      for_sums([&](const float* at, std::int64_t i, std::int64_t j) { end(i, j, load(at)); });
    }
}

}  // namespace tessera::kernels::amx
