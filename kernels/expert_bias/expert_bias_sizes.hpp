// How a GPU cuts the rows of experts whose biases it sums.
#pragma once
#include "kernels/expert_bias/expert_bias.hpp"

namespace tessera::kernels::cuda::expert_bias_sizes {

/// Rows of a piece: an expert's are cut from its first one on.
inline constexpr int bias_rows = 128;
/// Pieces that there can be.
inline std::int64_t most_bias_pieces(const ExpertBiasGradient& p) { return p.rows / bias_rows + p.E; }

}  // namespace tessera::kernels::cuda::expert_bias_sizes
