#include "topology/devices/gpu_binding.hpp"

#include <fmt/format.h>
#include <hwloc.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "base/backend.hpp"
#include "deck/environment.hpp"
#ifdef TESSERA_CUDA
#include "kernels/cuda/devices.hpp"
#endif

namespace tessera {
namespace {

#ifdef TESSERA_CUDA

/// The node's devices and the cores beside them.
class Devices {
 public:
  Devices() {
    hwloc_topology_init(&topology_);
    hwloc_topology_set_io_types_filter(topology_, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    known_ = hwloc_topology_load(topology_) == 0;
  }
  ~Devices() { hwloc_topology_destroy(topology_); }
  Devices(const Devices&) = delete;

  bool near(const std::string& id, const std::vector<int>& units) const {
    const hwloc_obj_t device = known_ ? hwloc_get_pcidev_by_busidstring(topology_, id.c_str()) : nullptr;
    const hwloc_obj_t beside = device ? hwloc_get_non_io_ancestor_obj(topology_, device) : nullptr;
    if (!beside || !beside->cpuset) return true;
    return std::any_of(units.begin(), units.end(),
                       [&](int unit) { return hwloc_bitmap_isset(beside->cpuset, static_cast<unsigned>(unit)); });
  }

 private:
  hwloc_topology_t topology_ = nullptr;
  bool known_ = false;
};

std::vector<VisibleGpu> visible_gpus(const std::vector<int>& units) {
  const Devices devices;
  std::vector<VisibleGpu> gpus;
  for (int device = 0; device < cuda::device_count(); ++device) {
    const cuda::DeviceName name = cuda::device_name(device);
    gpus.push_back({name.uuid, name.bus, devices.near(name.bus, units)});
  }
  return gpus;
}

using cuda::use_device;

#else

std::vector<VisibleGpu> visible_gpus(const std::vector<int>&) {
  fail(ExitCode::environment, "this build has no CUDA backend: build with the cuda preset, or set run.device = \"host\"");
}
void use_device(int) {}

#endif

/// node, then id, bus and near of each GPU, as words.
std::string write_gpus(int node, const std::vector<VisibleGpu>& gpus) {
  std::string text = std::to_string(node);
  for (const VisibleGpu& gpu : gpus) text += fmt::format(" {} {} {}", gpu.id, gpu.bus, gpu.near ? 1 : 0);
  return text;
}

/// What each rank of this node sees, by local rank: they are numbered by world rank.
std::vector<std::vector<VisibleGpu>> gather_gpus(const World& world, const std::vector<VisibleGpu>& mine) {
  std::vector<std::vector<VisibleGpu>> all;
  for (const std::string& text : world.gather_text(write_gpus(world.place().node, mine))) {
    std::istringstream words(text);
    int node = 0;
    words >> node;
    if (node != world.place().node) continue;
    all.emplace_back();
    for (VisibleGpu gpu; words >> gpu.id >> gpu.bus >> gpu.near;) all.back().push_back(gpu);
  }
  return all;
}

}  // namespace

std::vector<GpuBinding> plan_gpu_binding(const std::vector<std::vector<VisibleGpu>>& visible) {
  std::vector<GpuBinding> plan(visible.size());
  std::map<std::string, int> ranks;  // on each GPU
  // Who has the least choice chooses first.
  std::vector<std::size_t> order(visible.size());
  for (std::size_t r = 0; r < order.size(); ++r) order[r] = r;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return visible[a].size() < visible[b].size(); });
  auto assign = [&](std::size_t r, bool near_only, int most) {
    for (std::size_t d = 0; d < visible[r].size() && plan[r].device < 0; ++d) {
      const VisibleGpu& gpu = visible[r][d];
      if ((near_only && !gpu.near) || ranks[gpu.id] > most) continue;
      ++ranks[gpu.id];
      plan[r].device = static_cast<int>(d), plan[r].id = gpu.id, plan[r].bus = gpu.bus;
    }
  };
  for (int most = 0; most < static_cast<int>(visible.size()); ++most)
    for (bool near_only : {true, false})
      for (std::size_t r : order) assign(r, near_only, most);
  for (GpuBinding& gpu : plan) gpu.sharing = ranks[gpu.id];
  return plan;
}

bool one_bus_has_several(const std::vector<GpuBinding>& gpus) {
  std::map<std::string, int> ranks;
  return std::any_of(gpus.begin(), gpus.end(), [&](const GpuBinding& gpu) { return gpu.device >= 0 && ++ranks[gpu.bus] > 1; });
}

GpuBinding bind_gpu(const World& world, const Binding& cores, bool share) {
  const Place& place = world.place();
  std::vector<VisibleGpu> mine;
  world.together([&] {
    mine = visible_gpus(cores.units);
    TESSERA_REQUIRE(!mine.empty(), "rank {} was assigned a GPU of {} but finds none", place.rank, place.host);
  });
  const auto visible = gather_gpus(world, mine);
  const auto plan = plan_gpu_binding(visible);
  const GpuBinding gpu = plan[static_cast<std::size_t>(place.local_rank)];
  const bool shared = std::any_of(plan.begin(), plan.end(), [](const GpuBinding& other) { return other.sharing > 1; });
  world.together([&] {
    // NCCL refuses two ranks of one host on one GPU, by its place on the bus; ranks of different hosts it does not compare.
    if (one_bus_has_several(plan)) default_environment("NCCL_HOSTID", fmt::format("rank{}", place.rank).c_str());
    if (!shared || share) return;
    std::map<std::string, int> ids;
    for (const auto& of_rank : visible)
      for (const VisibleGpu& seen : of_rank) ++ids[seen.id];
    fail(ExitCode::usage,
         "{} ranks on {} have {} GPU{} in all, but each rank needs its own. Start at most {} rank{} on a node, or set run.device = "
         "\"host\". For tests, topology.share_gpu = true lets ranks share a GPU, which is slow",
         place.local_ranks, place.host, ids.size(), ids.size() == 1 ? "" : "s", ids.size(), ids.size() == 1 ? "" : "s");
  });
  use_device(gpu.device);
  return gpu;
}

std::string describe(const GpuBinding& gpu) {
  return fmt::format("GPU {} ({}){}", gpu.device, gpu.bus, gpu.sharing > 1 ? fmt::format(", shared by {} ranks", gpu.sharing) : "");
}

}  // namespace tessera
