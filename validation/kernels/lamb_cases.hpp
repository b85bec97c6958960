// LAMB's two calls as one update of a whole tensor.
#pragma once
#include "kernels/lamb/lamb.hpp"
#include "update_cases.hpp"

namespace tessera::kernels::testing {

/// The first call changes no weight, so it makes no copy.
inline void lamb_of_tensor(void (*moments)(const Context&, const Update&), void (*apply)(const Context&, const Update&), FixedSum* sums,
                           Update p) {
  p.sums = sums;
  Update first = p;
  first.param = nullptr;
  moments({}, first);
  p.grad = nullptr;
  apply({}, p);
}

/// Exact sums, a square after the other.
inline FixedSum sum_of_each_square(const std::vector<float>& x) {
  FixedSum sum;
  for (const float v : x) sum.add(static_cast<double>(v) * static_cast<double>(v));
  return sum;
}

/// Weights whose squares are tiny, ordinary, and more than a block adds at once.
inline std::vector<float> weights_of_all_sizes(std::int64_t n) {
  std::vector<float> x = random_values<float>(n, 5);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::ldexp(x[i], i / 300 % 3 == 0 ? -30 : i % 1000 == 7 ? 20 : 0);
  return x;
}

}  // namespace tessera::kernels::testing
