// Rows whose first heads are rotated.
#pragma once
#include <ostream>

#include "documents.hpp"
#include "kernels/rope/rope.hpp"
#include "same_bits.hpp"

namespace tessera::kernels::testing {

struct RopeCase {
  std::int64_t M, T, heads, D, stride;
  std::int64_t rotated = 0;
  bool neighbours = false;
  std::int64_t turned() const { return rotated == 0 ? D : rotated; }
};
/// Positions that wrap, in the middle of the rows too; odd halves; rows without anything behind the heads, with value heads and with an odd
/// number of elements there. Then parts of heads, and neighbours: a pair, odd halves, halves that are whole vectors or not.
inline const RopeCase rope_cases[] = {{1, 1, 1, 2, 2},
                                      {6, 3, 2, 48, 3 * 48},
                                      {77, 77, 3, 64, 5 * 64},
                                      {77, 77, 3, 64, 5 * 64 + 1},
                                      {24, 8, 4, 128, 6 * 128},
                                      {10, 5, 2, 48, 101},
                                      {9, 9, 1, 6, 7},
                                      {3, 16, 5, 18, 96},
                                      {10, 5, 7, 30, 9 * 30},
                                      {300, 100, 2, 128, 256},
                                      {9, 9, 3, 6, 19, 2},
                                      {10, 5, 2, 48, 101, 6},
                                      {77, 77, 3, 64, 5 * 64, 32},
                                      {77, 77, 3, 64, 5 * 64 + 1, 32},
                                      {24, 8, 4, 128, 6 * 128, 96},
                                      {3, 16, 5, 18, 96, 18},
                                      {6, 3, 2, 6, 13, 2, true},
                                      {6, 3, 2, 48, 3 * 48, 0, true},
                                      {77, 77, 3, 64, 5 * 64, 32, true},
                                      {24, 8, 4, 128, 6 * 128 + 1, 64, true},
                                      {10, 5, 7, 30, 9 * 30, 10, true},
                                      {300, 100, 2, 128, 256, 96, true}};
inline std::ostream& operator<<(std::ostream& out, const RopeCase& c) {
  return out << c.M << " rows, T " << c.T << ", heads " << c.heads << ", D " << c.D << ", stride " << c.stride << ", of which "
             << c.turned() << (c.neighbours ? ", neighbours" : "");
}

template <class T>
struct RopeInputs {
  RopeCase c;
  std::vector<float> table;
  std::vector<T> x;
  explicit RopeInputs(const RopeCase& c) : c(c), table(poisoned<float>(c.T * c.turned())), x(random_values<T>(c.M * c.stride, 1)) {
    rope_table(table.data(), 3, c.T, c.turned(), 10000, {});
  }
  /// Document starts of the rows.
  std::vector<std::int32_t> starts() const { return random_documents(ceil_div(c.M, c.T), c.T, 3); }
  Rope arguments(bool inverse) {
    return {.x = x.data(),
            .table = table.data(),
            .M = c.M,
            .T = c.T,
            .heads = c.heads,
            .D = c.D,
            .stride = c.stride,
            .inverse = inverse,
            .dtype = dtype_of<T>(),
            .rotated = c.rotated,
            .neighbours = c.neighbours};
  }
};

}  // namespace tessera::kernels::testing
