// Tokens and features that dropout is tested on.
#pragma once
#include <ostream>

#include "kernels/dropout/dropout.hpp"

namespace tessera::kernels::testing {

struct DropoutCase {
  std::int64_t M, N, first;
  double rate;
};
/// Fewer features than a counter draws for, a first feature inside one, and more than sixteen counters.
inline const DropoutCase dropout_cases[] = {{1, 1, 0, 0.5},   {3, 2, 3, 0.1},   {5, 64, 0, 0.1},    {7, 64, 128, 0.9}, {2, 65, 64, 0.3},
                                            {4, 200, 2, 0.5}, {9, 96, 96, 0.0}, {33, 129, 1, 0.05}, {6, 256, 0, 0.25}};
inline std::ostream& operator<<(std::ostream& out, const DropoutCase& c) {
  return out << c.M << " x " << c.N << " from feature " << c.first << ", rate " << c.rate;
}

inline Dropout dropout_of(const DropoutCase& c, void* y, const void* x, const std::int64_t* tokens, DType dtype, bool accumulate) {
  return {.y = y,
          .x = x,
          .tokens = tokens,
          .M = c.M,
          .N = c.N,
          .first = c.first,
          .stream = 41,
          .seed = 0x123456789abcdef0u,
          .rate = c.rate,
          .accumulate = accumulate,
          .dtype = dtype};
}

/// Numbers of more than 32 bits, and one token of which nothing is dropped.
inline std::vector<std::int64_t> dropout_tokens(std::int64_t M) {
  std::vector<std::int64_t> tokens;
  for (std::int64_t m = 0; m < M; ++m) tokens.push_back(m % 5 == 3 ? -1 : (std::int64_t{1} << 33) * (m % 3) + 17 * m);
  return tokens;
}

}  // namespace tessera::kernels::testing
