// Products of rows that are grouped by experts.
#pragma once
#include <numeric>
#include <ostream>

#include "kernels/grouped_gemm/grouped_gemm.hpp"
#include "same_bits.hpp"

namespace tessera::kernels::testing {

struct GroupedGemmCase {
  std::vector<std::int32_t> counts;  ///< rows of each expert
  std::int64_t unused, N, K;
  std::int64_t E() const { return static_cast<std::int64_t>(counts.size()); }
  std::int64_t rows() const { return std::accumulate(counts.begin(), counts.end(), std::int64_t{0}) + unused; }
  std::vector<std::int32_t> offsets() const {
    std::vector<std::int32_t> at{0};
    for (const std::int32_t n : counts) at.push_back(at.back() + n);
    return at;
  }
};
inline std::ostream& operator<<(std::ostream& out, const GroupedGemmCase& c) {
  return out << c.E() << " experts, " << c.rows() << " rows, N " << c.N << ", K " << c.K;
}
/// Rows that are whole vectors and rows that are none, tiles that are not full, experts without rows, more experts than a warp has lanes.
inline std::vector<GroupedGemmCase> grouped_gemm_cases() {
  std::vector<std::int32_t> many(40, 0);
  for (std::size_t e = 0; e < many.size(); e += 3) many[e] = static_cast<std::int32_t>(e % 7);
  return {{{1}, 0, 1, 1},          {{3, 0, 70, 17}, 0, 40, 72}, {{3, 0, 40, 17}, 0, 37, 48},
          {{0, 5, 0}, 66, 65, 33}, {{0, 5, 0}, 4, 65, 33},      {{130, 20}, 0, 136, 24},
          {many, 1, 16, 48}};
}

/// For tiles of 128 rows and 128 or 256 columns, and more pieces of the depth than a ring of them has stages: experts whose rows just fill
/// a tile, or just do not; columns and depth that are no multiple of a tile's, those of one product the other's in the next.
inline std::vector<GroupedGemmCase> large_grouped_gemm_cases() {
  return {{{0, 1, 127, 128, 129}, 3, 264, 136}, {{5, 0, 130}, 200, 512, 248}, {{330}, 0, 232, 128}};
}

template <class T>
struct GroupedGemmInputs {
  GroupedGemmCase c;
  std::vector<std::int32_t> offsets;
  std::vector<T> x, w, d_y;
  explicit GroupedGemmInputs(const GroupedGemmCase& c)
      : c(c),
        offsets(c.offsets()),
        x(random_values<T>(c.rows() * c.K, 1)),
        w(random_values<T>(c.E() * c.N * c.K, 2)),
        d_y(random_values<T>(c.rows() * c.N, 3)) {}
};

}  // namespace tessera::kernels::testing
