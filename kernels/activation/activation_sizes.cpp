#include "kernels/activation/activation_sizes.hpp"

namespace tessera::kernels::cuda {

std::size_t activation_backward_workspace_bytes(const ActivationBackward& p) {
  return p.activation == PlainActivation::xielu ? activation_sizes::xielu_blocks(p).bytes(2) : 0;
}

}  // namespace tessera::kernels::cuda
