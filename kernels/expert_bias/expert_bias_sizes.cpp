#include "kernels/expert_bias/expert_bias_sizes.hpp"

namespace tessera::kernels::cuda {

/// Sums of each piece of an expert's rows.
std::size_t expert_bias_gradient_workspace_bytes(const ExpertBiasGradient& p) {
  return static_cast<std::size_t>(expert_bias_sizes::most_bias_pieces(p) * p.N) * sizeof(float);
}

}  // namespace tessera::kernels::cuda
