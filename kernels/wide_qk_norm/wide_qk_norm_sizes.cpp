#include "kernels/wide_qk_norm/wide_qk_norm_sizes.hpp"

namespace tessera::kernels::cuda {

std::size_t wide_qk_norm_backward_workspace_bytes(const WideQkNormBackward& p) {
  return wide_qk_norm_sizes::row_blocks(p.shape).bytes(p.shape.Q + p.shape.K);
}

}  // namespace tessera::kernels::cuda
