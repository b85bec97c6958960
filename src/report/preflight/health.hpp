// What processors, memory and GPUs of a node say of their health, as far as everybody may read it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "deck/deck.hpp"
#include "report/nodes/node_facts.hpp"
#include "report/nvml.hpp"
#include "report/preflight/judge.hpp"

namespace tessera {

struct NodeHealth {
  std::int64_t throttled = 0;                   ///< events of all processors since the node was started
  std::int64_t corrected = 0, uncorrected = 0;  ///< errors of its memory since then
  struct Sensor {
    std::string name;  ///< "coretemp Package id 0"
    double degrees = 0;
  };
  std::vector<Sensor> hot = {};        ///< the sensors, the hottest first
  std::vector<std::string> lost = {};  ///< local disks that do not work: "nvme1 is dead"
  std::vector<GpuHealth> gpus = {};    ///< by number
};
/// Of the system below `roots`, without its GPUs. What is not there counts nothing.
NodeHealth read_health(const NodeRoots& roots);

/// What is beyond the deck's limits, by the states of a node before and after work.
std::vector<PreflightFinding> judge_health(const std::string& node, const NodeHealth& before, const NodeHealth& after,
                                           const PreflightKeys& keys);

}  // namespace tessera
