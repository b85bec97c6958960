// AdamW on states and gradients drawn by a seed.
#pragma once
#include <ostream>

#include "kernels/adamw/adamw.hpp"
#include "same_bits.hpp"

namespace tessera::kernels::testing {

struct AdamwCase {
  std::int64_t n;
  bool copy = true;   ///< weights are copied in bf16
  bool skip = false;  ///< the step is left out, whatever the gradient
};
/// Less than a vector, whole ones, remainders, more than a block of threads; without a copy; steps that are skipped.
inline const AdamwCase adamw_cases[] = {{1}, {3}, {16}, {77}, {1013}, {4096}, {9001}, {1013, false}, {77, true, true}, {77, false, true}};
inline std::ostream& operator<<(std::ostream& out, const AdamwCase& c) {
  return out << c.n << " parameters, copy " << c.copy << ", skip " << c.skip;
}

inline constexpr double adamw_beta1 = 0.9, adamw_beta2 = 0.95;

inline UpdateScalars scalars_of_step(int step, float learning_rate, float grad_scale) {
  return {.learning_rate = learning_rate,
          .beta1 = static_cast<float>(adamw_beta1),
          .beta2 = static_cast<float>(adamw_beta2),
          .eps = 1e-8f,
          .bias_correction1 = static_cast<float>(1 - std::pow(adamw_beta1, step)),
          .bias_correction2 = static_cast<float>(1 - std::pow(adamw_beta2, step)),
          .grad_scale = grad_scale};
}

struct AdamwState {
  std::vector<float> master, m, v;
  std::vector<bf16> param;  ///< poisoned
  explicit AdamwState(std::int64_t n)
      : master(random_values<float>(n, 1)),
        m(random_values<float>(n, 2, 1e-3f)),
        v(random_values<float>(n, 3, 1e-6f)),
        param(poisoned<bf16>(n)) {
    for (float& x : v) x = std::abs(x);
  }
  Hash128 hash() const { return digest(master, m, v, param); }
};

/// Gradients that fp32 holds, as Grad has them.
template <class Grad>
std::vector<Grad> adamw_gradients(std::int64_t n, unsigned seed) {
  const auto g = random_values<float>(n, seed, 0.1f);
  if constexpr (std::is_same_v<Grad, std::int64_t>) {
    std::vector<std::int64_t> fixed;
    for (float x : g) fixed.push_back(std::llrint(static_cast<double>(x) * 0x1p44) * 1021 + 1);  // more digits than fp32 has
    return fixed;
  } else {
    return {g.begin(), g.end()};
  }
}

}  // namespace tessera::kernels::testing
