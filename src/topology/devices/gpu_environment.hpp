// Variables that CUDA and NCCL read at their start: what they are set to where the user has not.
#pragma once
#include <string>
#include <vector>

namespace tessera {

/// Sets them; a user's own value stands. Call before threads, CUDA and NCCL start. With `reproducible` NCCL leaves out the algorithms that
/// do not promise the same sums twice. Of another run in the same process, what it set is taken back first.
void set_gpu_environment(bool reproducible);

/// "NCCL_ALGO=^NVLS,NVLSTree: sums have the same bits in each call" a variable, and behind those that were set before "(as the environment
/// says)".
std::vector<std::string> describe_gpu_environment();

}  // namespace tessera
