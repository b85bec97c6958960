// The kernels of gpu_smoke's first probes.
#pragma once
#include <string>

namespace tessera::smoke {

/// Runs a kernel that does nothing. "9.0" of the code that the driver took for it, and of the PTX behind that.
struct CodeVersions {
  int binary = 0, ptx = 0;  ///< major * 10 + minor
};
CodeVersions run_empty_kernel();

/// A 64 x 64 x 64 product of tensor cores by mma.sync, which every GPU from sm_80 on has, and by a warpgroup's wgmma. Throw what is wrong.
void check_warp_product();
void check_warpgroup_product();

}  // namespace tessera::smoke
