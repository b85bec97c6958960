// Variables of CUDA and NCCL: set where the user has not, told, and taken back for another run.
#include "topology/devices/gpu_environment.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "deck/environment.hpp"

namespace tessera::gpu_environment_test {
namespace {

class GpuEnvironment : public testing::Test {
 protected:
  void SetUp() override { clear(); }
  void TearDown() override { clear(); }
  static void clear() {
    for (const char* name : {"CUDA_DEVICE_MAX_CONNECTIONS", "NCCL_RUNTIME_CONNECT", "NCCL_GRAPH_MIXING_SUPPORT", "NCCL_ALGO"})
      unsetenv(name);
    set_gpu_environment(false);
  }
  static bool says(const std::string& part) {
    return std::ranges::any_of(describe_gpu_environment(), [&](const std::string& line) { return line.starts_with(part); });
  }
};

TEST_F(GpuEnvironment, IsSetAndTold) {
  set_gpu_environment(true);
  EXPECT_EQ(environment("CUDA_DEVICE_MAX_CONNECTIONS"), "32");
  EXPECT_EQ(environment("NCCL_RUNTIME_CONNECT"), "0");
  EXPECT_EQ(environment("NCCL_GRAPH_MIXING_SUPPORT"), "0");
  EXPECT_EQ(environment("NCCL_ALGO"), "^NVLS,NVLSTree");
  EXPECT_EQ(describe_gpu_environment().size(), 4u);
  EXPECT_TRUE(says("NCCL_ALGO=^NVLS,NVLSTree: "));
}

TEST_F(GpuEnvironment, AlgorithmsAreFreeWhereNoBitsArePromised) {
  set_gpu_environment(true);
  set_gpu_environment(false);
  EXPECT_EQ(environment("NCCL_ALGO"), std::nullopt) << "of another run in the same process";
  EXPECT_EQ(describe_gpu_environment().size(), 3u);
}

TEST_F(GpuEnvironment, TheUsersOwnStands) {
  setenv("NCCL_ALGO", "Ring", 1);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
  set_gpu_environment(true);
  set_gpu_environment(false);
  EXPECT_EQ(environment("NCCL_ALGO"), "Ring");
  EXPECT_EQ(environment("CUDA_DEVICE_MAX_CONNECTIONS"), "1");
  EXPECT_TRUE(says("NCCL_ALGO=Ring (as the environment says)"));
}

}  // namespace
}  // namespace tessera::gpu_environment_test
