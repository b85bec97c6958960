// Scales of tensors from those of earlier steps (delayed scaling: Micikevicius et al., arXiv:2209.05433; the recipe of Transformer Engine).
// Each product of a linear layer has three histories: of its input, of its output's gradient, and of its weight.
#pragma once
#include "kernels/context.hpp"

namespace tessera::kernels {

/// Those of all inputs come first, in the order of their matrices, then those of all gradients, and of all weights: what others than
/// products look at is apart. Codes of gradients are e5m2, others e4m3.
enum class Fp8Tensor : std::uint8_t { input, gradient, weight };
inline constexpr std::int64_t fp8_tensors = 3;
constexpr std::int64_t fp8_history_of(std::int64_t matrix, Fp8Tensor tensor, std::int64_t matrices) {
  return static_cast<std::int64_t>(tensor) * matrices + matrix;
}

/// The largest magnitudes of a step enter the histories, and the oldest leave. The multiplier of a tensor is then the largest value of its
/// type over the largest magnitude of its history (fp8_quantize says how), over 2^margin; 1 where the history has none above 0.
struct Fp8Histories {
  float* history = nullptr;      ///< (3 matrices,length): of a tensor from the newest step to the oldest
  float* multipliers = nullptr;  ///< (3 matrices)
  float* largest = nullptr;      ///< (3 matrices): of the step; become 0
  std::int64_t matrices = 0, length = 0;
  int margin = 0;
  bool enters = true;  ///< false: histories stay, and the multipliers are made of them
};
TESSERA_OP(fp8_histories, (const Context& context, const Fp8Histories& arguments), (context, arguments))

}  // namespace tessera::kernels
