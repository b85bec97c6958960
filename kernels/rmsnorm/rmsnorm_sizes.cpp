#include "kernels/rmsnorm/rmsnorm_sizes.hpp"

#include "kernels/rmsnorm/rmsnorm.hpp"

namespace tessera::kernels::cuda {

std::size_t rmsnorm_backward_workspace_bytes(const RmsnormBackward& p) {
  return rmsnorm_sizes::backward_blocks(p.rows, p.C, p.dtype).bytes(p.C);
}

}  // namespace tessera::kernels::cuda
