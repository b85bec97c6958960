#include "validation/smoke/kernels.hpp"

#include <stdexcept>

#include "validation/kernels/warpgroup_product.hpp"
#include "validation/smoke/device_values.hpp"

namespace tessera::smoke {
namespace {

using namespace tessera::cuda;
namespace product = kernels::testing::warpgroup_product;

__global__ void empty(int) {}

// The same as warpgroup_product's, b by rows, of four warps with mma.sync: each has 16 rows of c.
__global__ void multiply(float* c, const bf16* a, const bf16* b) {
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes, g = lane / 4, t = lane % 4;
  const int row = static_cast<int>(threadIdx.x) / warp_lanes * 16 + g;
  const auto pair = [](const bf16* at) { return at[0].bits | static_cast<std::uint32_t>(at[1].bits) << 16; };
  for (int n = 0; n < 64; n += 8) {
    float* const out = c + row * 64 + n + 2 * t;
    float sums[4] = {out[0], out[1], out[8 * 64], out[8 * 64 + 1]};
    for (int k = 0; k < 64; k += 16) {
      std::uint32_t left[4];
      for (int i = 0; i < 4; ++i) left[i] = pair(a + (row + i % 2 * 8) * 64 + k + i / 2 * 8 + 2 * t);
      const bf16* const right = b + (n + g) * 64 + k + 2 * t;
      multiply_add<bf16>(sums, left, pair(right), pair(right + 8));
    }
    out[0] = sums[0], out[1] = sums[1], out[8 * 64] = sums[2], out[8 * 64 + 1] = sums[3];
  }
}

void check(void (*kernel)(float*, const bf16*, const bf16*)) {
  const product::Product<bf16> x(false);
  const DeviceValues<bf16> a(x.a), b(x.b);
  const DeviceValues<float> c(x.c);
  launch(nullptr, 1, warpgroup_lanes, 8192, kernel, c.data(), static_cast<const bf16*>(a.data()), static_cast<const bf16*>(b.data()));
  std::size_t wrong = 0;
  const std::vector<float> got = c.host();
  for (std::size_t i = 0; i < got.size(); ++i) wrong += got[i] != x.want[i];
  if (wrong) throw std::runtime_error(std::to_string(wrong) + " of " + std::to_string(got.size()) + " sums are wrong");
}

}  // namespace

CodeVersions run_empty_kernel() {
  launch(nullptr, 1, 1, 0, empty, 0);
  TESSERA_CUDA_CHECK(cudaDeviceSynchronize());
  cudaFuncAttributes of{};
  TESSERA_CUDA_CHECK(cudaFuncGetAttributes(&of, reinterpret_cast<const void*>(empty)));
  return {of.binaryVersion, of.ptxVersion};
}

void check_warp_product() { check(multiply); }
void check_warpgroup_product() { check(product::multiply<bf16, false>); }

}  // namespace tessera::smoke
