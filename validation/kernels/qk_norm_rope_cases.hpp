// Query, key and value heads of rows, the first two normed and rotated.
#pragma once
#include <ostream>

#include "documents.hpp"
#include "kernels/qk_norm_rope/qk_norm_rope.hpp"
#include "kernels/rope/rope.hpp"
#include "same_bits.hpp"

namespace tessera::kernels::testing {

struct QkNormRopeCase {
  std::int64_t M, T, H, G, D;
  float offset = 0;
  std::int64_t rotated = 0;
  bool neighbours = false;
  std::int64_t turned() const { return rotated == 0 ? D : rotated; }
  std::int64_t heads() const { return H + G; }
  std::int64_t width() const { return (H + 2 * G) * D; }
};
/// Odd halves, positions that wrap (in the middle of the rows too), one key head and as many as query heads, heads that are no power of
/// two, several row blocks; on a GPU from a head on one thread to heads on whole warps. Then parts of heads, and neighbours: a pair, odd
/// halves, halves that are whole vectors or not.
inline const QkNormRopeCase qk_norm_rope_cases[] = {{1, 1, 1, 1, 2},
                                                    {6, 3, 2, 1, 6},
                                                    {9, 4, 3, 1, 6},
                                                    {45, 16, 6, 2, 18},
                                                    {10, 5, 4, 2, 30},
                                                    {33, 40, 5, 5, 48},
                                                    {77, 50, 8, 2, 128},
                                                    {21, 7, 3, 1, 256},
                                                    {130, 64, 4, 1, 64},
                                                    {77, 77, 3, 1, 64},
                                                    {45, 16, 6, 2, 18, 1},
                                                    {21, 7, 3, 1, 256, 1},
                                                    {9, 4, 3, 1, 6, 0, 2},
                                                    {45, 16, 6, 2, 18, 0, 6},
                                                    {77, 50, 8, 2, 128, 0, 32},
                                                    {21, 7, 3, 1, 256, 1, 128},
                                                    {77, 50, 8, 2, 128, 1, 96},
                                                    {33, 40, 5, 5, 48, 0, 22},
                                                    {10, 5, 4, 2, 30, 0, 2, true},
                                                    {33, 40, 5, 5, 48, 0, 0, true},
                                                    {130, 64, 4, 1, 64, 0, 32, true},
                                                    {45, 16, 6, 2, 18, 1, 10, true},
                                                    {21, 7, 3, 1, 256, 0, 192, true}};
/// Those whose positions restart with documents.
inline const QkNormRopeCase qk_norm_rope_document_cases[] = {{45, 15, 6, 2, 18},        {100, 50, 8, 2, 128},
                                                             {128, 64, 4, 1, 64},       {77, 77, 3, 1, 64},
                                                             {45, 15, 6, 2, 18, 0, 10}, {100, 50, 8, 2, 128, 0, 64, true}};
inline std::ostream& operator<<(std::ostream& out, const QkNormRopeCase& c) {
  return out << c.M << " rows, T " << c.T << ", H " << c.H << ", G " << c.G << ", D " << c.D << ", offset " << c.offset << ", of which "
             << c.turned() << (c.neighbours ? ", neighbours" : "");
}

/// `count` heads of each row from the first on.
template <class T>
std::vector<T> heads_of(const std::vector<T>& v, const QkNormRopeCase& c, std::int64_t first, std::int64_t count) {
  std::vector<T> out;
  for (std::int64_t m = 0; m < c.M; ++m) {
    const auto begin = v.begin() + m * c.width() + first * c.D;
    out.insert(out.end(), begin, begin + count * c.D);
  }
  return out;
}
/// The query and key heads of each row.
template <class T>
std::vector<T> turned_heads(const std::vector<T>& v, const QkNormRopeCase& c) {
  return heads_of(v, c, 0, c.heads());
}
template <class T>
std::vector<T> value_heads(const std::vector<T>& v, const QkNormRopeCase& c) {
  return heads_of(v, c, c.heads(), c.G);
}

template <class T>
struct QkNormRopeInputs {
  QkNormRopeCase c;
  std::vector<T> x, q_norm, k_norm, d_qkv;
  std::vector<float> table, d_q_norm, d_k_norm;
  explicit QkNormRopeInputs(const QkNormRopeCase& c)
      : c(c),
        x(random_values<T>(c.M * c.width(), 1)),
        q_norm(random_values<T>(c.D, 2)),
        k_norm(random_values<T>(c.D, 3)),
        d_qkv(random_values<T>(c.M * c.width(), 4)),
        table(poisoned<float>(c.T * c.turned())),
        d_q_norm(random_values<float>(c.D, 5)),
        d_k_norm(random_values<float>(c.D, 6)) {
    rope_table(table.data(), 3, c.T, c.turned(), 10000, {});
  }
  /// The gradient of value heads becomes poison: read, it would spoil what is near; written, it would change.
  void poison_value_heads() {
    const auto poison = poisoned<T>(c.G * c.D);
    for (std::int64_t m = 0; m < c.M; ++m) std::copy(poison.begin(), poison.end(), d_qkv.begin() + m * c.width() + c.heads() * c.D);
  }
  /// Document starts of rows that are whole sequences.
  std::vector<std::int32_t> starts() const { return random_documents(c.M / c.T, c.T, 3); }
  /// Without results.
  QkNormRopeForward forward_arguments() const {
    return {.x = x.data(),
            .q_norm = q_norm.data(),
            .k_norm = k_norm.data(),
            .table = table.data(),
            .M = c.M,
            .T = c.T,
            .H = c.H,
            .G = c.G,
            .D = c.D,
            .dtype = dtype_of<T>(),
            .offset = c.offset,
            .rotated = c.rotated,
            .neighbours = c.neighbours};
  }
  /// Without results and statistics.
  QkNormRopeBackward backward_arguments() const {
    return {.x = x.data(),
            .q_norm = q_norm.data(),
            .k_norm = k_norm.data(),
            .table = table.data(),
            .M = c.M,
            .T = c.T,
            .H = c.H,
            .G = c.G,
            .D = c.D,
            .dtype = dtype_of<T>(),
            .offset = c.offset,
            .rotated = c.rotated,
            .neighbours = c.neighbours};
  }
};

}  // namespace tessera::kernels::testing
