// The instructions of kernels/cuda/tensor_core.hpp against their definitions: on a GPU this tests our reading of the PTX ISA, in the
// emulator its twins.
#include "base/backend.hpp"
#include "kernels/cuda/tensor_core.hpp"

#include <cmath>
#include <limits>

#include "validation/kernels/device_array.hpp"

namespace tessera::kernels::testing::tensor_core_cuda_test {
namespace {

using namespace tessera::cuda;

template <class T>
std::vector<std::byte> bytes_of(const std::vector<T>& v) {
  std::vector<std::byte> b(v.size() * sizeof(T));
  std::memcpy(b.data(), v.data(), b.size());
  return b;
}
template <class T>
std::vector<T> values_of(const DeviceBytes& a) {
  const std::vector<std::byte> b = a.download();
  std::vector<T> v(b.size() / sizeof(T));
  std::memcpy(static_cast<void*>(v.data()), b.data(), b.size());
  return v;
}

// c (16, 8) += a (16, 16) b (16, 8), fragments by the layouts in tensor_core.hpp, without load_matrices.
template <class T>
__global__ void multiply(float* c, const std::uint16_t* a, const std::uint16_t* b) {
  const int g = static_cast<int>(threadIdx.x) / 4, t = static_cast<int>(threadIdx.x) % 4;
  auto pair = [](std::uint16_t low, std::uint16_t high) { return low | static_cast<std::uint32_t>(high) << 16; };
  std::uint32_t left[4], right[2];
  for (int i = 0; i < 4; ++i) {
    const std::uint16_t* at = a + (g + i % 2 * 8) * 16 + 2 * t + i / 2 * 8;
    left[i] = pair(at[0], at[1]);
  }
  for (int i = 0; i < 2; ++i) right[i] = pair(b[(2 * t + 8 * i) * 8 + g], b[(2 * t + 8 * i + 1) * 8 + g]);
  float sums[4];
  for (int i = 0; i < 4; ++i) sums[i] = c[(g + i / 2 * 8) * 8 + 2 * t + i % 2];
  multiply_add<T>(sums, left, right[0], right[1]);
  for (int i = 0; i < 4; ++i) c[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = sums[i];
}

template <class T>
void expect_product() {
  // Small whole numbers: every sum is exact.
  std::vector<std::uint16_t> a(256), b(128);
  std::vector<float> c(128), want(128);
  auto whole = [](std::size_t i, std::size_t prime) { return static_cast<float>(static_cast<int>(i * prime % 31) - 15); };
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = T(whole(i, 7)).bits;
  for (std::size_t i = 0; i < b.size(); ++i) b[i] = T(whole(i, 11)).bits;
  for (std::size_t i = 0; i < c.size(); ++i) c[i] = whole(i, 13);
  for (std::size_t r = 0; r < 16; ++r)
    for (std::size_t n = 0; n < 8; ++n) {
      want[r * 8 + n] = c[r * 8 + n];
      for (std::size_t k = 0; k < 16; ++k) want[r * 8 + n] += whole(r * 16 + k, 7) * whole(k * 8 + n, 11);
    }
  DeviceBytes on_c(bytes_of(c)), on_a(bytes_of(a)), on_b(bytes_of(b));
  launch(nullptr, 1, 32, 0, multiply<T>, on_c.floats(), reinterpret_cast<const std::uint16_t*>(on_a.data()),
         reinterpret_cast<const std::uint16_t*>(on_b.data()));
  EXPECT_EQ(values_of<float>(on_c), want);
}
TEST(TensorCore, MultiplyAddIsAProductOfMatrices) {
  TESSERA_NEEDS_DEVICE();
  expect_product<bf16>();
  expect_product<f16>();
}

// Shared memory holds element i = i; matrix m is rows 8m.. of a (32, 8) array.
__global__ void load(std::uint32_t* plain, std::uint32_t* transposed) {
  alignas(16) __shared__ std::uint16_t shared[256];
  const int lane = static_cast<int>(threadIdx.x);
  for (int i = lane; i < 256; i += 32) shared[i] = static_cast<std::uint16_t>(i);
  __syncthreads();
  std::uint32_t r[4];
  load_matrices(r, shared + lane * 8);
  for (int i = 0; i < 4; ++i) plain[lane * 4 + i] = r[i];
  load_matrices_transposed(r, shared + lane * 8);
  for (int i = 0; i < 4; ++i) transposed[lane * 4 + i] = r[i];
}

TEST(TensorCore, LoadMatricesHandsOutPairs) {
  TESSERA_NEEDS_DEVICE();
  DeviceBytes plain(512), transposed(512);
  launch(nullptr, 1, 32, 0, load, reinterpret_cast<std::uint32_t*>(plain.data()), reinterpret_cast<std::uint32_t*>(transposed.data()));
  const auto rows = values_of<std::uint16_t>(plain), columns = values_of<std::uint16_t>(transposed);
  for (std::size_t lane = 0; lane < 32; ++lane)
    for (std::size_t m = 0; m < 4; ++m)
      for (std::size_t half = 0; half < 2; ++half) {
        const std::size_t g = lane / 4, k = 2 * (lane % 4) + half, at = (lane * 4 + m) * 2 + half;
        EXPECT_EQ(rows[at], m * 64 + g * 8 + k);
        EXPECT_EQ(columns[at], m * 64 + k * 8 + g);
      }
}

// Two groups: 16 bytes a thread, cut after `bytes` of them, then 4 bytes a thread, every other thread none. `early` is what the first
// group's target holds once all but one group have arrived.
__global__ void copy(float* early, float* out, const float* x, int bytes) {
  alignas(16) __shared__ float first[128], second[32];
  const int lane = static_cast<int>(threadIdx.x);
  copy_async_16(first + 4 * lane, x + 4 * lane, bytes);
  copy_async_commit();
  copy_async_4(second + lane, x + 128 + lane, lane % 2 * 4);
  copy_async_commit();
  copy_async_wait<1>();
  for (int i = 0; i < 4; ++i) early[4 * lane + i] = first[4 * lane + i];
  copy_async_wait<0>();
  __syncthreads();
  for (int i = lane; i < 128; i += 32) out[i] = first[i];
  out[128 + lane] = second[lane];
}

TEST(TensorCore, CopiesArriveAndTheRestIsZero) {
  TESSERA_NEEDS_DEVICE();
  std::vector<float> x(160);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i + 1);
  for (int bytes : {0, 4, 12, 16}) {
    DeviceBytes from(bytes_of(x)), early(512), to(640);
    launch(nullptr, 1, 32, 0, copy, early.floats(), to.floats(), static_cast<const float*>(from.floats()), bytes);
    std::vector<float> want = x;
    for (std::size_t i = 0; i < 128; ++i)
      if (static_cast<int>(i % 4) * 4 >= bytes) want[i] = 0;
    for (std::size_t i = 128; i < 160; ++i)
      if (i % 2 == 0) want[i] = 0;
    EXPECT_EQ(values_of<float>(to), want) << bytes;
    EXPECT_EQ(values_of<float>(early), std::vector<float>(want.begin(), want.begin() + 128)) << bytes;
  }
}

template <class T>
__global__ void arithmetic(std::uint32_t* packed, float* powers, const float* x) {
  const int i = static_cast<int>(threadIdx.x);
  packed[i] = pack<T>(x[i], -x[i]);
  powers[i] = exp2_approximate(x[i]);
}

template <class T>
void expect_packs_and_powers() {
  std::vector<float> x(32);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = 0.731f * static_cast<float>(i) - 20;
  x[0] = -std::numeric_limits<float>::infinity();
  x[1] = -127.5f;
  x[2] = 1 + 0x1.8p-8f;        // halfway between two bf16
  x[3] = 1 + 0x1.8p-11f;       // and two f16
  x[4] = 0x1.8p-25f;           // of f16 a subnormal
  x[5] = 65519, x[6] = 65520;  // its largest value, and infinity
  DeviceBytes from(bytes_of(x)), packed(128), powers(128);
  launch(nullptr, 1, 32, 0, arithmetic<T>, reinterpret_cast<std::uint32_t*>(packed.data()), powers.floats(),
         static_cast<const float*>(from.floats()));
  const auto pairs = values_of<std::uint16_t>(packed);
  const auto y = values_of<float>(powers);
  for (std::size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(pairs[2 * i], T(x[i]).bits);
    EXPECT_EQ(pairs[2 * i + 1], T(-x[i]).bits);
    if (x[i] > 100) continue;
    const float want = i < 2 ? 0.0f : std::exp2(x[i]);
    EXPECT_NEAR(y[i], want, 3e-7 * want) << x[i];
  }
}
TEST(TensorCore, PacksAndPowers) {
  TESSERA_NEEDS_DEVICE();
  expect_packs_and_powers<bf16>();
  expect_packs_and_powers<f16>();
}

#ifdef TESSERA_EMULATED_GPU
__global__ void copy_without_wait(float* out, const float* x) {
  alignas(16) __shared__ float tile[128];
  copy_async_16(tile + 4 * threadIdx.x, x + 4 * threadIdx.x, 16);
  copy_async_commit();
  out[threadIdx.x] = tile[4 * threadIdx.x];
}

TEST(TensorCore, AMissingWaitShows) {
  DeviceBytes from(512), to(128);
  TESSERA_CUDA_CHECK(cudaMemset(from.data(), 0, 512));
  launch(nullptr, 1, 32, 0, copy_without_wait, to.floats(), static_cast<const float*>(from.floats()));
  for (float v : values_of<float>(to)) EXPECT_TRUE(std::isnan(v));
}

TEST(TensorCore, AMisalignedCopyIsAnError) {
  DeviceBytes from(1024), to(128);
  EXPECT_THROW(launch(nullptr, 1, 32, 0, copy_without_wait, to.floats(), static_cast<const float*>(from.floats() + 1)), std::logic_error);
}
#endif

}  // namespace
}  // namespace tessera::kernels::testing::tensor_core_cuda_test
