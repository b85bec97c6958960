#include "kernels/cross_entropy/cross_entropy_sizes.hpp"

#include "base/check.hpp"

namespace tessera::kernels::cuda {

LossLayout loss_layout(const LinearCrossEntropy& l) {
  TESSERA_REQUIRE(l.M > 0 && l.C > 0 && l.V > 0 && l.chunk > 0, "loss of M={} C={} V={} in chunks of {}", l.M, l.C, l.V, l.chunk);
  return {l, 256, cuda::gemm_workspace_bytes};
}

std::size_t linear_cross_entropy_workspace_bytes(const LinearCrossEntropy& l) { return loss_layout(l).bytes(); }

}  // namespace tessera::kernels::cuda
