// NCCL's first calls, made before memory is counted and before anything on a GPU waits for another rank.
#pragma once
#include "schedule/run/communicators.hpp"

namespace tessera {

/// Does on each communicator, with few elements, what the schedule will do there: NCCL connects what it connects at a first call, and its
/// kernels and those of ours that collectives use are loaded. CUDA may wait for the whole device while it loads a kernel, which must not
/// be when another rank's collective is under way. Collective over all ranks of the mesh. Throws Error(lost) as collectives do.
void connect(const Communicators& communicators, const Schedule& schedule);

}  // namespace tessera
