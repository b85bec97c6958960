#include "kernels/wide_qk_norm/wide_qk_norm_sizes.hpp"

namespace tessera::kernels::cuda {

std::size_t wide_qk_norm_backward_workspace_bytes(const WideQkNormBackward& p) {
  const wide_qk_norm_sizes::WideBackwardTiles tiles = wide_qk_norm_sizes::wide_backward_tiles(p.shape);
  return tiles.query.rows.bytes(p.shape.Q) + tiles.key.rows.bytes(p.shape.K);
}

}  // namespace tessera::kernels::cuda
