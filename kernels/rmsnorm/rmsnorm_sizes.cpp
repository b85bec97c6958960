#include "kernels/rmsnorm/rmsnorm_sizes.hpp"

namespace tessera::kernels::cuda {

std::size_t rmsnorm_backward_workspace_bytes(const RmsnormBackward& p) { return rmsnorm_sizes::backward_blocks(p).bytes(p.C); }

}  // namespace tessera::kernels::cuda
