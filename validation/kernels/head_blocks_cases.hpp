// Shapes of head blocks, and where an element lies by definition.
#pragma once
#include "kernels/head_blocks/head_blocks.hpp"
#include "same_bits.hpp"

namespace tessera::kernels::testing {

struct HeadBlocksCase {
  std::int64_t B, T, N, H, G, D, Dv = D;
  std::int64_t width() const { return H * D + G * (D + Dv); }
  std::int64_t rows() const { return B * T * width(); }  ///< elements
  std::int64_t width_of_rank() const { return H / N * D + (G == 0 ? 0 : std::max<std::int64_t>(1, G / N)) * (D + Dv); }
  std::int64_t blocks() const { return B * N * T * width_of_rank(); }  ///< elements
};
/// One of each; grouped queries; several sequences; a context, which has queries alone; heads of odd bytes; a rank alone; key heads that
/// two, four and six ranks have; values narrower than keys, and wider.
inline const HeadBlocksCase head_blocks_cases[] = {{1, 1, 1, 1, 1, 2},      {1, 5, 2, 4, 2, 16},    {3, 7, 2, 6, 2, 64},
                                                   {2, 9, 4, 8, 0, 24},     {2, 3, 3, 6, 3, 10},    {2, 130, 1, 3, 1, 6},
                                                   {2, 5, 4, 8, 2, 16},     {1, 9, 4, 4, 1, 10},    {2, 3, 6, 6, 1, 64},
                                                   {2, 5, 2, 4, 4, 24, 16}, {1, 7, 4, 8, 2, 6, 10}, {2, 3, 2, 2, 1, 16, 64}};

inline HeadBlocks shape_of(const HeadBlocksCase& c, DType dtype) {
  return {.B = c.B, .T = c.T, .N = c.N, .H = c.H, .G = c.G, .D = c.D, .Dv = c.Dv, .dtype = dtype};
}

/// Calls f(element of rows (B T, width), element of blocks (B, N, T, W)) for each element of blocks, ranks in their order.
template <class F>
void each_element(const HeadBlocksCase& c, F f) {
  for (std::int64_t b = 0; b < c.B; ++b)
    for (std::int64_t n = 0; n < c.N; ++n)
      for (std::int64_t t = 0; t < c.T; ++t) {
        std::int64_t block = ((b * c.N + n) * c.T + t) * c.width_of_rank(), first = 0;
        for (const auto& [heads, D] : {std::pair(c.H, c.D), std::pair(c.G, c.D), std::pair(c.G, c.Dv)}) {
          const std::int64_t mine = heads == 0 ? 0 : std::max<std::int64_t>(1, heads / c.N);
          for (std::int64_t i = 0; i < mine; ++i)
            for (std::int64_t d = 0; d < D; ++d) {
              const std::int64_t head = heads >= c.N ? n * mine + i : n * heads / c.N;
              f((b * c.T + t) * c.width() + first + head * D + d, block++);
            }
          first += heads * D;
        }
      }
}

template <class T>
struct HeadBlocksResults {
  std::vector<T> blocks, rows;
};

/// Blocks of rows, and rows of other blocks, by definition: what several ranks have is added in fp32.
template <class T>
HeadBlocksResults<T> by_definition(const HeadBlocksCase& c, const std::vector<T>& rows, const std::vector<T>& blocks) {
  HeadBlocksResults<T> r{poisoned<T>(c.blocks()), poisoned<T>(c.rows())};
  std::vector<float> sums(r.rows.size());
  std::vector<bool> met(r.rows.size(), false);
  each_element(c, [&](std::int64_t at_row, std::int64_t at_block) {
    const auto row = static_cast<std::size_t>(at_row), block = static_cast<std::size_t>(at_block);
    r.blocks[block] = rows[row];
    sums[row] = met[row] ? sums[row] + static_cast<float>(blocks[block]) : static_cast<float>(blocks[block]);
    met[row] = true;
    r.rows[row] = T(sums[row]);
  });
  return r;
}

template <class T>
bool same_values(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

}  // namespace tessera::kernels::testing
