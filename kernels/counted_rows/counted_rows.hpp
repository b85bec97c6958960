// Rows whose targets count, moved to the front, so that the head multiplies these alone. On the host alone: a GPU's products have as many
// rows as its schedule says, since the host that launches them does not know how many count.
#pragma once
#include "kernels/context.hpp"

namespace tessera::kernels::host {

/// Which of M rows have a weight other than 0, in their order, and the targets and weights of these.
struct CountRows {
  std::int32_t* count = nullptr;            ///< 1 value: n
  std::int32_t* rows = nullptr;             ///< (M): the first n, rising
  std::int32_t* counted_targets = nullptr;  ///< (M): the first n; 0 after them
  float* counted_weights = nullptr;         ///< (M): the first n; 0 after them
  const std::int32_t* targets = nullptr;    ///< (M)
  const float* weights = nullptr;           ///< (M)
  std::int64_t M = 0;
};
void count_rows(const CountRows& arguments);

/// Rows of x (M,N) in place.
struct MoveRows {
  void* x = nullptr;                   ///< (M,N)
  const std::int32_t* rows = nullptr;  ///< (n), rising
  std::int64_t n = 0, M = 0, N = 0;
  DType dtype = DType::f32;
};
/// Row k becomes row rows[k], for k < n; rows from n on become zeros.
void gather_counted_rows(const MoveRows& arguments);
/// Row rows[k] becomes row k, for k < n; all others become zeros.
void spread_counted_rows(const MoveRows& arguments);

}  // namespace tessera::kernels::host
