#include "kernels/layer_norm/layer_norm.hpp"
#include "kernels/rmsnorm/rmsnorm_sizes.hpp"

namespace tessera::kernels::cuda {

std::size_t layer_norm_backward_workspace_bytes(const LayerNormBackward& p) {
  return 2 * rmsnorm_sizes::backward_blocks(p.rows, p.C, p.dtype).bytes(p.C);
}

}  // namespace tessera::kernels::cuda
