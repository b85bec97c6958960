// Histories of magnitudes, as a run fills them.
#pragma once
#include "kernels/fp8_history/fp8_history.hpp"
#include "same_bits.hpp"

namespace tessera::kernels::testing {

struct Histories {
  std::int64_t matrices = 0, length = 0;
  int margin = 0;
  std::vector<float> history, multipliers, largest;
  std::int64_t n() const { return fp8_tensors * matrices; }
};
/// Of shorter and longer ones than a GPU's block has threads.
inline Histories histories_of(std::int64_t matrices, std::int64_t length, int margin) {
  const std::int64_t n = fp8_tensors * matrices;
  Histories h{matrices, length, margin, std::vector<float>(static_cast<std::size_t>(n * length)), poisoned<float>(n), {}};
  return h;
}
/// A step's magnitudes; some tensors have none above 0 in it, the fifth never.
inline void draw_largest(Histories& h, unsigned step) {
  h.largest = random_values<float>(h.n(), 100 + step);
  for (std::int64_t i = 0; i < h.n(); ++i) {
    float& x = h.largest[static_cast<std::size_t>(i)];
    x = (i + step) % 3 == 0 || i == 5 ? 0 : std::ldexp(std::abs(x), static_cast<int>(i % 9) - 4);
  }
}
template <class Op>
void advance(Op&& op, const Histories& h, float* history, float* multipliers, float* largest, bool enters) {
  op(Context{}, Fp8Histories{.history = history,
                             .multipliers = multipliers,
                             .largest = largest,
                             .matrices = h.matrices,
                             .length = h.length,
                             .margin = h.margin,
                             .enters = enters});
}
inline void advance_on_host(Histories& h, bool enters) {
  advance(host::fp8_histories, h, h.history.data(), h.multipliers.data(), h.largest.data(), enters);
}

}  // namespace tessera::kernels::testing
