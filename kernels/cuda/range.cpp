#include "kernels/cuda/range.hpp"

#include <nvtx3/nvToolsExt.h>

namespace tessera::cuda {

Range::Range(const char* name) { nvtxRangePushA(name); }
Range::~Range() { nvtxRangePop(); }

}  // namespace tessera::cuda
