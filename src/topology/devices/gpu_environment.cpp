#include "topology/devices/gpu_environment.hpp"

#include <fmt/format.h>

#include <set>

#include "deck/environment.hpp"

namespace tessera {
namespace {

struct GpuVariable {
  const char *name, *value, *why;
  bool for_bits = false;  ///< where bits are promised alone
};
constexpr GpuVariable variables[] = {
    // CUDA opens 8 queues otherwise: streams of several lanes share one, and a lane's wait becomes another's.
    {"CUDA_DEVICE_MAX_CONNECTIONS", "32", "a hardware queue for each stream"},
    // As NCCL connects later, its memory would be missing from what is measured before recompute takes the rest.
    {"NCCL_RUNTIME_CONNECT", "0", "NCCL connects at its start, and its memory is counted"},
    // With it NCCL adds two nodes to a graph for each captured collective, so that graphs and other calls may overlap (torchcomms' issue
    // 3358, vLLM's 32106). A program ends before the next one begins, and a communicator serves one lane, so ours never do.
    {"NCCL_GRAPH_MIXING_SUPPORT", "0", "a captured collective is one node of its graph"},
    // In-switch sums (NVLS) may differ between calls (NCCL's issue 1497), and go by the history of communicators (2360).
    {"NCCL_ALGO", "^NVLS,NVLSTree", "sums have the same bits in each call", true},
};

/// Names that this process has set, and not its user.
std::set<std::string>& ours() {
  static std::set<std::string> names;
  return names;
}

}  // namespace

void set_gpu_environment(bool reproducible) {
  for (const GpuVariable& variable : variables)
    if (ours().contains(variable.name) && environment(variable.name) == variable.value) clear_environment(variable.name);
  ours().clear();
  for (const GpuVariable& variable : variables) {
    if ((variable.for_bits && !reproducible) || environment(variable.name)) continue;
    default_environment(variable.name, variable.value);
    ours().insert(variable.name);
  }
}

std::vector<std::string> describe_gpu_environment() {
  std::vector<std::string> lines;
  for (const GpuVariable& variable : variables) {
    const auto value = environment(variable.name);
    if (!value) continue;
    lines.push_back(ours().contains(variable.name) ? fmt::format("{}={}: {}", variable.name, *value, variable.why)
                                                   : fmt::format("{}={} (as the environment says)", variable.name, *value));
  }
  return lines;
}

}  // namespace tessera
