// How far a stream has come, where the host can read it: for what runs inside a CUDA graph, whose events nobody can ask for.
#pragma once
#include <cstdint>

#include "kernels/cuda/runtime.hpp"

namespace tessera::cuda {

/// When the stream gets there, *to (pinned memory) becomes `value`.
void mark(cudaStream_t stream, std::int64_t* to, std::int64_t value);

}  // namespace tessera::cuda
