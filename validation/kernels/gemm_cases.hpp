// Shapes of products, and the ways that layers multiply.
#pragma once
#include <ostream>

#include "kernels/gemm/gemm.hpp"

namespace tessera::kernels::testing {

struct GemmSize {
  std::int64_t M, N, K;
};
/// One element, rows and columns alone, whole vectors and none, a depth beyond a tile.
inline const GemmSize gemm_sizes[] = {{1, 1, 1},    {1, 64, 33},  {1, 77, 5},     {7, 1, 33},
                                      {77, 48, 64}, {64, 48, 96}, {64, 1013, 16}, {33, 7, 130}};
inline std::ostream& operator<<(std::ostream& out, const GemmSize& s) { return out << s.M << "x" << s.N << "x" << s.K; }

}  // namespace tessera::kernels::testing
