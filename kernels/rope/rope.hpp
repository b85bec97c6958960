// Rotary position embedding (Su et al., arXiv:2104.09864) in the half-split convention of Llama and Hugging Face: pairs (i, i + D/2).
#pragma once
#include "kernels/context.hpp"

namespace tessera::kernels {

/// Frequency scaling of Llama 3.1 (factor, low and high frequency factors, original context); factor 0 means none.
struct RopeScaling {
  double factor = 0, low_freq_factor = 1, high_freq_factor = 4;
  std::int64_t original_context = 8192;
};
/// Fills table (T, D/2, 2) with cos and sin of position * frequency, positions first .. first+T-1. Computed in fp64.
void rope_table(float* table, std::int64_t first, std::int64_t T, std::int64_t D, double theta, const RopeScaling&);

/// In place on the first `heads` heads of each token row (query and key heads lie together): x row m starts at m * stride; position is m %
/// T.
struct Rope {
  void* x = nullptr;
  const float* table = nullptr;  ///< (T, D/2, 2)
  std::int64_t M = 0, T = 0, heads = 0, D = 0, stride = 0;
  bool inverse = false;  ///< rotate back: the backward pass
  DType dtype = DType::f32;
};
TESSERA_OP(rope, (const Context& context, const Rope& arguments), (context, arguments))

}  // namespace tessera::kernels
