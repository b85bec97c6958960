// Which GPU a rank computes on.
#pragma once
#include <string>
#include <vector>

#include "topology/devices/binding.hpp"

namespace tessera {

/// A GPU as one rank sees it.
struct VisibleGpu {
  std::string id;    ///< the same for all ranks of the node; of each instance of a GPU (MIG) another
  std::string bus;   ///< place on the bus, which its instances share
  bool near = true;  ///< hangs on the memory that the rank's cores have; true also where that is not known
};

struct GpuBinding {
  int device = -1;  ///< number among those that this process sees; -1: none
  std::string id, bus;
  int sharing = 1;  ///< local ranks on this GPU or instance, this one included
};

/// Pure. `visible` holds what each local rank sees, in its own order: all GPUs of the node, or those that a launcher left it. Each rank
/// gets a GPU of its own as far as there are enough, a near one where one is free, else the first free one; then ranks share.
std::vector<GpuBinding> plan_gpu_binding(const std::vector<std::vector<VisibleGpu>>& visible);

/// Collective over the world, after bind_process and before anything else touches a GPU: this process uses its GPU from now on. Throws
/// AgreedError(usage) where ranks would share one and `share` is false. Every rank must see a GPU.
GpuBinding bind_gpu(const World& world, const Binding& cores, bool share);

/// Whether two ranks compute on one GPU, or on instances of one.
bool one_bus_has_several(const std::vector<GpuBinding>& gpus);

/// "GPU 3 (0000:4d:00.0)"
std::string describe(const GpuBinding& gpu);

}  // namespace tessera
