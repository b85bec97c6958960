// Products of a warpgroup (kernels/cuda/warpgroup.hpp) against plain ones: on a Hopper GPU this tests our reading of the PTX ISA, in the
// emulator its twins.
#include "kernels/cuda/warpgroup.hpp"

#include "validation/kernels/device_array.hpp"

namespace tessera::kernels::testing {
namespace {

using namespace tessera::cuda;

// c (64, 64) = c + a (64, 64) b, where b is (64 columns, 64) or, if transposed, (64, 64 columns): four products, started together.
template <bool transposed>
__global__ void multiply(float* c, const bf16* a, const bf16* b) {
  bf16* panel = dynamic_shared<bf16>();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % warp_lanes, warp = thread / warp_lanes;
  for (int i = thread; i < 64 * 8; i += warpgroup_lanes) copy_async_16(panel + panel_chunk_at<64>(i / 8, i % 8), b + i * 8, 16);
  copy_async_commit();
  copy_async_wait<0>();
  shared_to_products();
  __syncthreads();
  std::uint32_t left[4][4];
  float sums[8][4];
  const int row = 16 * warp + lane / 4, column = lane % 4 * 2;
  for (int k = 0; k < 4; ++k)
    for (int i = 0; i < 4; ++i) {
      const bf16* at = a + (row + i % 2 * 8) * 64 + 16 * k + i / 2 * 8 + column;
      left[k][i] = at[0].bits | static_cast<std::uint32_t>(at[1].bits) << 16;
    }
  for (int i = 0; i < 32; ++i) sums[i / 4][i % 4] = c[(row + i % 4 / 2 * 8) * 64 + i / 4 * 8 + column + i % 2];
  fence_registers(sums);
  fence_registers(left);
  warpgroup_fence();
#pragma unroll
  for (int k = 0; k < 4; ++k)
    start_product<transposed>(sums, left[k], panel_descriptor(shared_address(panel) + k * (transposed ? 16 * 128 : 32)), true);
  warpgroup_commit();
  warpgroup_wait<0>();
  fence_registers(sums);
  for (int i = 0; i < 32; ++i) c[(row + i % 4 / 2 * 8) * 64 + i / 4 * 8 + column + i % 2] = sums[i / 4][i % 4];
}

float whole(std::size_t i, std::size_t prime) { return static_cast<float>(static_cast<int>(i * prime % 31) - 15); }

// Small whole numbers: every sum is exact.
template <bool transposed>
void expect_product() {
  std::vector<bf16> a(4096), b(4096);
  std::vector<float> c(4096), want(4096);
  for (std::size_t i = 0; i < 4096; ++i) a[i] = bf16(whole(i, 7)), b[i] = bf16(whole(i, 11)), c[i] = whole(i, 13);
  for (std::size_t r = 0; r < 64; ++r)
    for (std::size_t n = 0; n < 64; ++n) {
      want[r * 64 + n] = c[r * 64 + n];
      for (std::size_t k = 0; k < 64; ++k) want[r * 64 + n] += whole(r * 64 + k, 7) * whole(transposed ? k * 64 + n : n * 64 + k, 11);
    }
  DeviceBytes on_a(8192), on_b(8192), on_c(16384);
  TESSERA_CUDA_CHECK(cudaMemcpy(on_a.data(), a.data(), 8192, cudaMemcpyHostToDevice));
  TESSERA_CUDA_CHECK(cudaMemcpy(on_b.data(), b.data(), 8192, cudaMemcpyHostToDevice));
  TESSERA_CUDA_CHECK(cudaMemcpy(on_c.data(), c.data(), 16384, cudaMemcpyHostToDevice));
  launch(nullptr, 1, warpgroup_lanes, 8192, multiply<transposed>, on_c.floats(), reinterpret_cast<const bf16*>(on_a.data()),
         reinterpret_cast<const bf16*>(on_b.data()));
  const std::vector<std::byte> bytes = on_c.download();
  std::memcpy(c.data(), bytes.data(), bytes.size());
  EXPECT_EQ(c, want);
}

class Warpgroup : public ::testing::Test {
 protected:
  void SetUp() override {
    TESSERA_NEEDS_DEVICE();
#ifndef TESSERA_EMULATED_GPU
    int major = 0;
    TESSERA_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    if (major != 9) GTEST_SKIP() << "not a Hopper GPU: its products are not tested";
#endif
  }
};

TEST_F(Warpgroup, MultipliesRowsByRows) { expect_product<false>(); }
TEST_F(Warpgroup, MultipliesRowsByColumns) { expect_product<true>(); }

}  // namespace
}  // namespace tessera::kernels::testing
