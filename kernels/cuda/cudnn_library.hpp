// cuDNN, opened at its first use: a program that was built with it starts on machines that have none.
#pragma once
#include <string>

namespace tessera::kernels::cuda::cudnn_library {

/// Why cuDNN cannot be called, in words for a user; empty where it can.
const std::string& why_not();

}  // namespace tessera::kernels::cuda::cudnn_library
