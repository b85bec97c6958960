// Rotary position embedding (Su et al., arXiv:2104.09864) in the half-split convention of Llama and Hugging Face, pairs (i, i + D/2), or of
// neighbouring features (GLM-4), of whole heads or of the first features of each.
#pragma once
#include <span>

#include "kernels/context.hpp"

namespace tessera::kernels {

/// How frequencies are changed for contexts longer than those that they were made for, as Hugging Face's classes do it.
enum class RopeMethod : std::uint8_t {
  none,
  llama3,   ///< of Llama 3.1: long waves are slowed by the factor, those between blend
  linear,   ///< all waves are slowed by the factor (Chen et al., arXiv:2306.15595)
  dynamic,  ///< NTK-aware: where sequences are longer than original_context, the base grows with them
  yarn,  ///< Peng et al., arXiv:2309.00071: waves that turn often are left, those that turn less than once slowed, and cos and sin scaled
  longrope  ///< Ding et al., arXiv:2402.13753: each wave is slowed by a factor of its own, and cos and sin scaled
};
struct RopeScaling {
  RopeMethod method = RopeMethod::none;
  double factor = 1;
  double low_freq_factor = 1, high_freq_factor = 4;  ///< of llama3
  std::int64_t original_context = 8192;              ///< of all but linear
  double beta_fast = 32, beta_slow = 1;              ///< of yarn: turns within original_context
  double attention_factor =
      0;  ///< what cos and sin are multiplied with; 0: of yarn 0.1 ln(factor) + 1, of longrope sqrt(1 + ln(factor) / ln(original_context))
  bool truncate = true;       ///< of yarn: the pairs between which waves are slowed in part are whole ones
  std::int64_t sequence = 0;  ///< of dynamic and longrope: positions that a sequence has
  /// Of longrope, (D/2): of sequences up to original_context and of longer ones.
  std::span<const double> short_factors = {}, long_factors = {};
};
/// Fills table (T, D/2, 2), where D features are turned, with cos and sin of position * frequency, positions first .. first+T-1. Computed
/// in fp64.
void rope_table(float* table, std::int64_t first, std::int64_t T, std::int64_t D, double theta, const RopeScaling&);

/// In place on the first `heads` heads of each token row (query and key heads lie together): x row m starts at m * stride; position is m %
/// T, counted from document_starts[m] on where they are given.
struct Rope {
  void* x = nullptr;
  const float* table = nullptr;  ///< (T, rotated/2, 2)
  std::int64_t M = 0, T = 0, heads = 0, D = 0, stride = 0;
  bool inverse = false;  ///< rotate back: the backward pass
  DType dtype = DType::f32;
  const std::int32_t* document_starts = nullptr;  ///< (M) or null: at most m % T each
  std::int64_t rotated = 0;                       ///< features of a head that are turned, an even number, its first ones; 0: all
  bool neighbours = false;                        ///< pairs (2i, 2i+1) in place of (i, i + rotated/2)
};
TESSERA_OP(rope, (const Context& context, const Rope& arguments), (context, arguments))

}  // namespace tessera::kernels
