// The libraries that kernels call, as they are found at run time: results may depend on them.
#pragma once
#include <string>

namespace tessera::kernels {

/// "3.6.0 (commit)"
std::string onednn_version();
/// The instructions that oneDNN chose for this processor, within ONEDNN_MAX_CPU_ISA: "AVX512_CORE".
std::string onednn_instructions();
/// "CUDA 13.0, cuBLASLt 130001"; of a build without CUDA empty. Needs no GPU.
std::string cuda_libraries();

}  // namespace tessera::kernels
