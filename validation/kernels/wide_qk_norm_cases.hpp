// Query and key features of rows, normed over their whole width, which lies on one rank or is cut over some.
#pragma once
#include <ostream>

#include "kernels/wide_qk_norm/wide_qk_norm.hpp"
#include "same_bits.hpp"

namespace tessera::kernels::testing {

/// Features of a part; `others` follow them in a row.
struct WideQkCase {
  std::int64_t M, Q, K, others, parts = 1;
  float offset = 0;
  std::int64_t stride() const { return Q + K + others; }
};
/// Odd widths, no other features, several row blocks, rows of many vectors a thread, one to three parts.
inline const WideQkCase wide_qk_cases[] = {{1, 2, 2, 2},         {7, 200, 40, 40},      {33, 96, 96, 0},         {70, 256, 64, 64, 2},
                                           {9, 1013, 31, 31, 3}, {5, 4096, 1024, 1024}, {130, 64, 32, 32, 2, 1}, {21, 200, 40, 7, 1, 1}};
inline std::ostream& operator<<(std::ostream& out, const WideQkCase& c) {
  return out << c.M << " rows, Q " << c.Q << ", K " << c.K << ", others " << c.others << ", parts " << c.parts << ", offset " << c.offset;
}

inline constexpr float wide_qk_eps = 1e-5f;

/// Of one part.
template <class T>
struct WideQkInputs {
  WideQkCase c;
  std::vector<T> x, d, q_norm, k_norm;
  std::vector<float> d_q_norm, d_k_norm;  ///< what is there before
  WideQkInputs(const WideQkCase& c, unsigned seed)
      : c(c),
        x(random_values<T>(c.M * c.stride(), seed)),
        d(random_values<T>(c.M * c.stride(), seed + 1)),
        q_norm(random_values<T>(c.Q, seed + 2)),
        k_norm(random_values<T>(c.K, seed + 3)),
        d_q_norm(random_values<float>(c.Q, seed + 4)),
        d_k_norm(random_values<float>(c.K, seed + 5)) {}
  WideQkShape shape() const {
    return {.M = c.M,
            .Q = c.Q,
            .K = c.K,
            .stride = c.stride(),
            .parts = c.parts,
            .dtype = dtype_of<T>(),
            .eps = wide_qk_eps,
            .offset = c.offset};
  }
};

/// All parts of a width.
template <class T>
std::vector<WideQkInputs<T>> wide_qk_inputs(const WideQkCase& c) {
  std::vector<WideQkInputs<T>> all;
  for (std::int64_t part = 0; part < c.parts; ++part) all.emplace_back(c, static_cast<unsigned>(1 + 10 * part));
  return all;
}

}  // namespace tessera::kernels::testing
