// Asks the real cuDNN, without a GPU, whether it has engines for our graphs on GPUs that are described to it, within the workspace that
// plans count on. In a build for the emulator, where the library and the toolkit's stub of a driver are.
#include <emulator.hpp>

#include "kernels/attention/cudnn_attention.hpp"
#include "validation/kernels/gemm_test_support.hpp"

namespace tessera::kernels {
namespace {

/// What CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION holds, after NVIDIA's data sheets of the two.
std::string properties(const char* name, int version, int processors, std::int64_t memory, int shared, int cache) {
  return fmt::format(
      R"({{"deviceName": "{}", "deviceVer": {}, "multiProcessorCount": {}, "totalGlobalMem": {}, "maxSharedMemoryPerBlockOptin": {},
          "l2CacheSize": {}, "cudaDeviceId": 0, "driverVer": 13000, "maxGridSize": [2147483647, 65535, 65535],
          "maxBlockSize": [1024, 1024, 64], "regsPerBlock": 65536, "warpSize": 32, "maxThreadsPerBlock": 1024, "maxSharedMemoryPerBlock": 49152,
          "reservedSharedMemoryPerBlock": 1024, "maxRegistersPerSM": 65536, "maxCtasPerSM": 32, "maxThreadsPerSM": 2048, "pciDeviceId": 0,
          "isTccDriver": 0, "supportCoopLaunch": 1, "smClockRateKHz": 1500000, "memClockRateKHz": 2000000}})",
      name, version, processors, memory, shared, cache);
}

class CudnnSupport : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { reason = emulator::use_real_cudnn(TESSERA_DRIVER_STUB); }
  void SetUp() override {
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
  static std::string why_not(int major, const AttentionShape& s, cuda::AttentionPass pass) {
    emulator::set_compute_capability(major);
    static const std::string h200 = properties("NVIDIA H200", 900, 132, 150754820096, 232448, 62914560),
                             a100 = properties("NVIDIA A100-SXM4-80GB", 800, 108, 85899345920, 166912, 41943040);
    return cuda::why_not_cudnn_on(major == 9 ? h200 : a100, s, pass);
  }
  static inline std::string reason;
};

AttentionShape shape(std::int64_t B, std::int64_t T, std::int64_t H, std::int64_t G, std::int64_t D, bool deterministic = false) {
  return {.B = B, .T = T, .H = H, .G = G, .D = D, .dtype = DType::bf16, .path = AttentionPath::cudnn, .deterministic = deterministic};
}

TEST_F(CudnnSupport, OurShapesHaveEnginesWithinThePlannedWorkspace) {
  for (int major : {8, 9})
    for (bool deterministic : {false, true})
      for (const AttentionShape& s :
           {shape(8, 1024, 12, 12, 64, deterministic), shape(4, 4096, 25, 25, 64, deterministic), shape(1, 8192, 32, 8, 128, deterministic),
            shape(2, 2048, 16, 16, 96, deterministic), shape(1, 77, 7, 1, 128, deterministic), shape(3, 333, 8, 2, 40, deterministic),
            shape(1, 2, 4, 4, 64, deterministic)})
        for (auto pass : {cuda::AttentionPass::forward, cuda::AttentionPass::backward})
          EXPECT_EQ(why_not(major, s, pass), "") << major << " B" << s.B << " T" << s.T << " H" << s.H << " G" << s.G << " D" << s.D
                                                 << (deterministic ? " deterministic" : "");
}

TEST_F(CudnnSupport, Fp16IsLikeBf16) {
  for (int major : {8, 9})
    for (AttentionShape s : {shape(8, 1024, 12, 12, 64), shape(1, 8192, 32, 8, 128, true), shape(3, 333, 8, 2, 40)})
      for (auto pass : {cuda::AttentionPass::forward, cuda::AttentionPass::backward}) {
        s.dtype = DType::f16;
        EXPECT_EQ(why_not(major, s, pass), "") << major << " T" << s.T << " D" << s.D;
      }
}

TEST_F(CudnnSupport, WhatItHasNotIsSaidInItsWords) {
  EXPECT_NE(why_not(9, shape(1, 1, 4, 4, 64), cuda::AttentionPass::backward), "");
  EXPECT_NE(why_not(8, shape(1, 300, 4, 4, 256), cuda::AttentionPass::backward), "");
  EXPECT_EQ(why_not(9, shape(1, 300, 4, 4, 256), cuda::AttentionPass::forward), "");
}

}  // namespace
}  // namespace tessera::kernels
