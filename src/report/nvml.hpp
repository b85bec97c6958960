// The GPUs that NVIDIA's driver sees, in every build: through its management library, which is loaded where there is one.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

/// What a GPU says of itself now; nothing of what its driver does not tell.
struct GpuHealth {
  double temperature = 0;                       ///< degrees; 0: not said
  std::int64_t corrected = 0, uncorrected = 0;  ///< errors of its memory since the driver was loaded
  std::vector<std::string> slowed_by = {};      ///< "heat": why its clocks are below what they could be
  int link_width = 0, most_link_width = 0;      ///< lanes of PCIe; 0: not said
};

struct DriverView {
  std::string driver = {};             ///< "580.65.06"; empty where there is none
  std::vector<std::string> gpus = {};  ///< "NVIDIA H100 80GB HBM3, 79.65 GiB"
  std::vector<GpuHealth> health = {};  ///< of each
  std::string why = {};                ///< no GPU is seen
};

/// Of this node, whatever CUDA_VISIBLE_DEVICES says.
DriverView view_of_driver();

}  // namespace tessera
