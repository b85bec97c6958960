#include "train/engine/fit.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <limits>

#include "base/backend.hpp"
#include "base/check.hpp"
#include "kernels/cuda/devices.hpp"
#include "memory/arena.hpp"
#include "schedule/plan/remedies.hpp"
#include "schedule/run/disk.hpp"

namespace tessera {
namespace {

/// Free memory of the GPU, where this build can ask for it.
std::optional<MemoryLimit> gpu_limit([[maybe_unused]] const Deck& deck, [[maybe_unused]] int sharing) {
#ifdef TESSERA_CUDA
  if (deck.run.device == RunDevice::cuda) {
    const auto share = static_cast<std::int64_t>(cuda::free_memory()) / sharing;
    const std::int64_t reserve = GpuReserve{}.libraries;  // the context is there, and NCCL has connected
    return MemoryLimit{std::max<std::int64_t>(0, share - reserve),
                       fmt::format("the free memory of the GPU ({}{}) without {} for libraries", human_bytes(static_cast<double>(share)),
                                   sharing > 1 ? fmt::format(" for each of the {} ranks that share it", sharing) : "",
                                   human_bytes(static_cast<double>(reserve)))};
  }
#endif
  return std::nullopt;
}

/// Room in the folders of a disk tier, whose files are as large in each.
std::optional<MemoryLimit> disk_limit(const Deck& deck, int sharing) {
  const std::vector<std::string> folders = spill_options(deck, 0).folders;
  std::optional<MemoryLimit> least;
  for (const std::string& folder : folders) {
    std::error_code ignored;  // a folder that cannot be asked is refused when the file is made
    const auto room = std::filesystem::space(folder, ignored);
    if (ignored) continue;
    const auto share =
        static_cast<std::int64_t>(std::min<std::uintmax_t>(room.available, std::numeric_limits<std::int64_t>::max() / 64)) / sharing;
    lower(least, {share * static_cast<std::int64_t>(folders.size()),
                  fmt::format("the free space of {} for each of the node's {} ranks{}", folder, sharing,
                              folders.size() > 1 ? fmt::format(", in each of {} folders", folders.size()) : "")});
  }
  return least;
}

}  // namespace

MemoryLimits limits_here(const Deck& deck, int ranks, const Sharing& sharing) {
  MemoryLimits limits = stated_limits(deck, ranks);
  auto &gpu = limits[static_cast<std::size_t>(MemoryKind::device)], &host = limits[static_cast<std::size_t>(MemoryKind::host)];
  if (deck.memory.host == 0) {
    const MemoryLimit share{static_cast<std::int64_t>(node_memory().available) / sharing.node,
                            fmt::format("the share of this node's free memory ({} ranks on the node; if the system assigns a machine's "
                                        "memory only when it is used, set memory.host to the real limit)",
                                        sharing.node)};
    lower(host, share);
    if (deck.run.device != RunDevice::cuda) lower(limits[static_cast<std::size_t>(kernel_memory(deck))], share);  // the same chips
  }
  if (const auto found = gpu_limit(deck, sharing.gpu)) lower(gpu, *found);
  if (const auto found = disk_limit(deck, sharing.node)) lower(limits[static_cast<std::size_t>(MemoryKind::nvme)], *found);
  return limits;
}

void require_fits(const RunPlan& plan, const MemoryLimits& limits, const std::string& advice) {
  const BuildRequest& request = plan.request;
  const std::vector<Shortfall> lacking = shortfalls(request.deck, plan.memory.bytes, limits);
  if (lacking.empty()) return;
  fail(ExitCode::memory, "{}{}", print_shortfalls(lacking),
       advice.empty() ? print_remedies(find_remedies(request, limits), request.deck) : advice);
}

}  // namespace tessera
