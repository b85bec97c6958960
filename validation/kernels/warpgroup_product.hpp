// One product of a warpgroup by itself: what a Hopper GPU must do before any kernel with wgmma is worth looking at.
#pragma once
#include <vector>

#include "kernels/cuda/warpgroup.hpp"

namespace tessera::kernels::testing::warpgroup_product {

// c (64, 64) = c + a (64, 64) b, where b is (64 columns, 64) or, if transposed, (64, 64 columns): four products, started together.
template <class T, bool transposed>
__global__ void multiply(float* c, const T* a, const T* b) {
  using namespace tessera::cuda;
  T* panel = dynamic_shared<T>();
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
      const T* at = a + (row + i % 2 * 8) * 64 + 16 * k + i / 2 * 8 + column;
      left[k][i] = at[0].bits | static_cast<std::uint32_t>(at[1].bits) << 16;
    }
  for (int i = 0; i < 32; ++i) sums[i / 4][i % 4] = c[(row + i % 4 / 2 * 8) * 64 + i / 4 * 8 + column + i % 2];
  fence_registers(sums);
  fence_registers(left);
  warpgroup_fence();
#pragma unroll
  for (int k = 0; k < 4; ++k)
    start_product<T, transposed>(sums, left[k], panel_descriptor(shared_address(panel) + k * (transposed ? 16 * 128 : 32)), true);
  warpgroup_commit();
  warpgroup_wait<0>();
  fence_registers(sums);
  for (int i = 0; i < 32; ++i) c[(row + i % 4 / 2 * 8) * 64 + i / 4 * 8 + column + i % 2] = sums[i / 4][i % 4];
}

inline float whole(std::size_t i, std::size_t prime) { return static_cast<float>(static_cast<int>(i * prime % 31) - 15); }

/// Operands, and what the product makes of c: small whole numbers, so that every sum is exact.
template <class T>
struct Product {
  std::vector<T> a = std::vector<T>(4096), b = std::vector<T>(4096);
  std::vector<float> c = std::vector<float>(4096), want = std::vector<float>(4096);

  explicit Product(bool transposed) {
    for (std::size_t i = 0; i < 4096; ++i) a[i] = T(whole(i, 7)), b[i] = T(whole(i, 11)), c[i] = whole(i, 13);
    for (std::size_t r = 0; r < 64; ++r)
      for (std::size_t n = 0; n < 64; ++n) {
        want[r * 64 + n] = c[r * 64 + n];
        for (std::size_t k = 0; k < 64; ++k) want[r * 64 + n] += whole(r * 64 + k, 7) * whole(transposed ? k * 64 + n : n * 64 + k, 11);
      }
  }
};

}  // namespace tessera::kernels::testing::warpgroup_product
