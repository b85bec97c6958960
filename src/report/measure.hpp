// This machine as a profile: rates that the simulator asks for, measured with the very kernels, copies and collectives of a run.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "deck/modes.hpp"
#include "machine/profile.hpp"
#include "topology/world.hpp"

namespace tessera {

/// Sizes at which rates are measured, and the memory that this takes.
struct MeasureSizes {
  std::vector<double> tokens, features, lengths, head_dims, bytes;
  std::int64_t bench_bytes = 0;       ///< of the memory that kernels use
  std::int64_t collective_bytes = 0;  ///< that all ranks end with
  std::int64_t disk_bytes = 0;
};
/// Large ones for GPUs, which need them to be busy.
MeasureSizes sizes_for(RunDevice device);

struct MeasureOptions {
  int threads = 0;                          ///< of a rank; 0: its cores
  RunDevice device = RunDevice::automatic;  ///< what there is
  std::vector<std::string> disks;           ///< folders on disks that shall be measured together; empty: none
  std::optional<MeasureSizes> sizes = {};   ///< else those for the device
};

/// Collective over the world, with the same options on all ranks. All ranks measure at once, as they compute at once in a run, so rates are
/// those of a rank among its neighbours. `progress` is told what is measured next. Takes some 20 s on two cores.
MachineProfile measure_machine(const World& world, const MeasureOptions& options, const std::function<void(const std::string&)>& progress);

}  // namespace tessera
