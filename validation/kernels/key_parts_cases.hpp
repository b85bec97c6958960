// Shapes of key parts, and where an element lies by definition.
#pragma once
#include "kernels/key_parts/key_parts.hpp"
#include "same_bits.hpp"

namespace tessera::kernels::testing {

/// Two and four ranks that have one head; several heads, of which this rank has the first, a middle one or the last; parts of single
/// features and of odd ones; a part that is a whole head; one token; values narrower than keys, and wider.
inline const KeyParts key_parts_cases[] = {{.M = 5, .H = 2, .D = 16, .N = 2, .sharing = 2, .first = 0},
                                           {.M = 9, .H = 1, .D = 64, .N = 4, .sharing = 4, .first = 0},
                                           {.M = 7, .H = 3, .D = 64, .N = 4, .sharing = 2, .first = 2},
                                           {.M = 130, .H = 2, .D = 24, .N = 6, .sharing = 2, .first = 2},
                                           {.M = 3, .H = 2, .D = 4, .N = 8, .sharing = 4, .first = 4},
                                           {.M = 6, .H = 1, .D = 10, .N = 2, .sharing = 2, .first = 0},
                                           {.M = 4, .H = 2, .D = 16, .N = 3, .sharing = 1, .first = 1},
                                           {.M = 1, .H = 1, .D = 128, .N = 8, .sharing = 8, .first = 0},
                                           {.M = 9, .H = 2, .D = 24, .Dv = 16, .N = 4, .sharing = 4, .first = 0},
                                           {.M = 5, .H = 1, .D = 6, .Dv = 64, .N = 4, .sharing = 2, .first = 2}};

struct KeyPartsSizes {
  std::int64_t rows, made, mine, parts;  ///< elements
};
inline KeyPartsSizes sizes_of(const KeyParts& p) {
  return {p.M * (p.H * p.D + p.D + p.value_dim()), p.M * (p.H * p.D + p.part()), p.M * p.part(), p.N * p.M * p.part()};
}

template <class T>
struct KeyPartsInputs {
  std::vector<T> made, parts, d_rows, mine;
  explicit KeyPartsInputs(const KeyParts& p)
      : made(random_values<T>(sizes_of(p).made, 1)),
        parts(random_values<T>(sizes_of(p).parts, 2)),
        d_rows(random_values<T>(sizes_of(p).rows, 3)),
        mine(random_values<T>(sizes_of(p).mine, 4)) {}
};

template <class T>
struct KeyPartsResults {
  std::vector<T> taken, rows, spread, d_made;
  explicit KeyPartsResults(const KeyParts& p)
      : taken(poisoned<T>(sizes_of(p).mine)),
        rows(poisoned<T>(sizes_of(p).rows)),
        spread(poisoned<T>(sizes_of(p).parts)),
        d_made(poisoned<T>(sizes_of(p).made)) {}
};

/// Feature d of the key head (kind 0) or of the value head (1) is made by the rank `first + d / P`.
template <class T>
KeyPartsResults<T> by_definition(const KeyParts& p, const KeyPartsInputs<T>& in) {
  KeyPartsResults<T> r(p);
  const std::int64_t both = p.part(), queries = p.H * p.D, row = queries + p.D + p.value_dim(), made = queries + both;
  const auto at = [](auto& values, std::int64_t i) -> auto& { return values[static_cast<std::size_t>(i)]; };
  std::fill(r.spread.begin(), r.spread.end(), T(0.0f));
  for (std::int64_t m = 0; m < p.M; ++m) {
    for (std::int64_t i = 0; i < queries; ++i)
      at(r.rows, m * row + i) = at(in.made, m * made + i), at(r.d_made, m * made + i) = at(in.d_rows, m * row + i);
    for (std::int64_t kind = 0; kind < 2; ++kind) {
      const std::int64_t D = kind == 0 ? p.D : p.value_dim(), P = D / p.sharing, of_kind = kind * (p.D / p.sharing);
      for (std::int64_t d = 0; d < D; ++d) {
        const std::int64_t of_all = ((p.first + d / P) * p.M + m) * both + of_kind + d % P, in_row = m * row + queries + kind * p.D + d;
        at(r.rows, in_row) = at(in.parts, of_all), at(r.spread, of_all) = at(in.d_rows, in_row);
      }
      for (std::int64_t d = 0; d < P; ++d) {
        const std::int64_t of_mine = m * both + of_kind + d, of_made = m * made + queries + of_kind + d;
        at(r.taken, of_mine) = at(in.made, of_made), at(r.d_made, of_made) = at(in.mine, of_mine);
      }
    }
  }
  return r;
}

template <class T>
void expect_same(const KeyPartsResults<T>& got, const KeyPartsResults<T>& expected) {
  const auto same = [](const std::vector<T>& a, const std::vector<T>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
  };
  EXPECT_TRUE(same(got.taken, expected.taken));
  EXPECT_TRUE(same(got.rows, expected.rows));
  EXPECT_TRUE(same(got.spread, expected.spread));
  EXPECT_TRUE(same(got.d_made, expected.d_made));
}

}  // namespace tessera::kernels::testing
