// The GPUs that NVIDIA's driver sees, in every build: through its management library, which is loaded where there is one.
#pragma once
#include <string>
#include <vector>

namespace tessera {

struct DriverView {
  std::string driver;             ///< "580.65.06"; empty where there is none
  std::vector<std::string> gpus;  ///< "NVIDIA H100 80GB HBM3, 79.65 GiB"
  std::string why;                ///< no GPU is seen
};

/// Of this node, whatever CUDA_VISIBLE_DEVICES says.
DriverView view_of_driver();

}  // namespace tessera
