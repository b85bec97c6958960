// Shapes of head blocks, and where an element lies by definition.
#pragma once
#include "kernels/head_blocks/head_blocks.hpp"
#include "same_bits.hpp"

namespace tessera::kernels::testing {

struct HeadCase {
  std::int64_t B, T, N, H, G, D;
  std::int64_t width() const { return (H + 2 * G) * D; }
};
/// One of each; grouped queries; several sequences; a context, which has queries alone; heads of odd bytes; a rank alone.
inline const HeadCase head_cases[] = {{1, 1, 1, 1, 1, 2},  {1, 5, 2, 4, 2, 16}, {3, 7, 2, 6, 2, 64},
                                      {2, 9, 4, 8, 0, 24}, {2, 3, 3, 6, 3, 10}, {2, 130, 1, 3, 1, 6}};

inline HeadBlocks shape_of(const HeadCase& c, DType dtype) {
  return {.B = c.B, .T = c.T, .N = c.N, .H = c.H, .G = c.G, .D = c.D, .dtype = dtype};
}

/// Calls f(element of rows (B T, W), element of blocks (B, N, T, W/N)) for each, by kinds of heads, heads and their elements.
template <class F>
void each_element(const HeadCase& c, F f) {
  const std::int64_t kinds[] = {c.H, c.G, c.G};
  for (std::int64_t b = 0; b < c.B; ++b)
    for (std::int64_t t = 0; t < c.T; ++t) {
      std::int64_t before = 0;
      for (const std::int64_t heads : kinds) {
        for (std::int64_t head = 0; head < heads; ++head)
          for (std::int64_t d = 0; d < c.D; ++d) {
            const std::int64_t n = head / (heads / c.N), of_rank = head % (heads / c.N);
            f((b * c.T + t) * c.width() + (before + head) * c.D + d,
              ((b * c.N + n) * c.T + t) * c.width() / c.N + (before / c.N + of_rank) * c.D + d);
          }
        before += heads;
      }
    }
}

template <class T>
struct HeadResults {
  std::vector<T> blocks, rows;
};

/// Blocks of random rows, and rows of random blocks, by definition.
template <class T>
HeadResults<T> by_definition(const HeadCase& c, const std::vector<T>& values) {
  HeadResults<T> r{poisoned<T>(c.B * c.T * c.width()), poisoned<T>(c.B * c.T * c.width())};
  each_element(c, [&](std::int64_t row, std::int64_t block) {
    r.blocks[static_cast<std::size_t>(block)] = values[static_cast<std::size_t>(row)];
    r.rows[static_cast<std::size_t>(row)] = values[static_cast<std::size_t>(block)];
  });
  return r;
}

template <class T>
bool same_values(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

}  // namespace tessera::kernels::testing
