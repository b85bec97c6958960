// How the GPU's loss cuts its workspace.
#pragma once
#include "kernels/cross_entropy/chunks.hpp"

namespace tessera::kernels::cuda {

/// Throws Error(internal) where a size is not above 0.
LossLayout loss_layout(const LinearCrossEntropy& l);

}  // namespace tessera::kernels::cuda
