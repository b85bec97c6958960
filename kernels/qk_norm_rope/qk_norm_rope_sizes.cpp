#include "kernels/qk_norm_rope/qk_norm_rope_sizes.hpp"

namespace tessera::kernels::cuda {

std::size_t qk_norm_rope_backward_workspace_bytes(const QkNormRopeBackward& p) {
  const qk_norm_rope_sizes::HeadBlocks blocks = qk_norm_rope_sizes::head_blocks(p);
  return blocks.query.bytes(p.D) + blocks.key.bytes(p.D);
}

}  // namespace tessera::kernels::cuda
