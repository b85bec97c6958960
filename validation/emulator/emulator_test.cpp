// The emulator itself: barriers, warp functions, and that it finds what it is there to find.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <thread>
#include <vector>

#include "kernels/cuda/devices.hpp"
#include "kernels/cuda/warpgroup.hpp"

namespace tessera {
namespace {

using cuda::launch;
using emulator::Order;

__global__ void reverse(int* out, const int* x, int n) {
  __shared__ int tile[256];
  const auto i = static_cast<int>(threadIdx.x);
  tile[i] = x[i];
  __syncthreads();
  out[i] = tile[n - 1 - i];
}

__global__ void reverse_without_barrier(int* out, const int* x, int n) {
  __shared__ int tile[256];
  const auto i = static_cast<int>(threadIdx.x);
  tile[i] = x[i];
  out[i] = tile[n - 1 - i];
}

__global__ void warp_sum(float* out, const float* x) {
  float v = x[blockIdx.x * blockDim.x + threadIdx.x];
  for (int bits = 16; bits > 0; bits /= 2) v += __shfl_xor_sync(cuda::all_lanes, v, bits);
  if (threadIdx.x % 32 == 0) out[blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32] = v;
}

__global__ void half_meets(int*) {
  if (threadIdx.x < 32) __syncthreads();
}

// Two warps take turns at a sum: sum = 2 sum + 1 by the first, 2 sum + 2 by the second. `kind`: whether the second
// announces one turn too many, or both take no turns.
enum class Turns { right, one_too_many, none };
__global__ void take_turns(int* out, Turns kind) {
  __shared__ int sum;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (threadIdx.x == 0) sum = 0;
  if (warp == 1 && kind != Turns::none) cuda::barrier_arrive<1, 64>();
  for (int turn = 0; turn < 3; ++turn) {
    if (kind != Turns::none) warp == 0 ? cuda::barrier_wait<1, 64>() : cuda::barrier_wait<2, 64>();
    if (threadIdx.x % 32 == 0) sum = 2 * sum + 1 + warp;
    if (kind != Turns::none && (warp == 0 || turn < 2 || kind == Turns::one_too_many))
      warp == 0 ? cuda::barrier_arrive<2, 64>() : cuda::barrier_arrive<1, 64>();
  }
  __syncthreads();
  if (threadIdx.x == 0) *out = sum;
}

__global__ void expects_different_numbers(int*) { threadIdx.x < 32 ? cuda::barrier_wait<1, 64>() : cuda::barrier_wait<1, 32>(); }

class EmulatorTest : public testing::TestWithParam<Order> {
 protected:
  void SetUp() override { emulator::set_order(GetParam()); }
  void TearDown() override { emulator::set_order(Order::forward); }
};
INSTANTIATE_TEST_SUITE_P(Orders, EmulatorTest, testing::Values(Order::forward, Order::backward));

TEST_P(EmulatorTest, ABarrierSeparates) {
  std::vector<int> x(256), out(256);
  for (int i = 0; i < 256; ++i) x[static_cast<std::size_t>(i)] = i;
  launch(nullptr, 1, 256, 0, reverse, out.data(), x.data(), 256);
  for (int i = 0; i < 256; ++i) EXPECT_EQ(out[static_cast<std::size_t>(i)], 255 - i);
}

TEST_P(EmulatorTest, NamedBarriersGiveTurns) {
  int sum = 0;
  for (unsigned blocks : {1u, 3u}) launch(nullptr, blocks, 64, 0, take_turns, &sum, Turns::right);
  EXPECT_EQ(sum, ((((1 * 2 + 2) * 2 + 1) * 2 + 2) * 2 + 1) * 2 + 2);
}

#ifndef TESSERA_RACES  // which ends the process over what these do on purpose, as the tests of Races below expect
// A panel whose copies arrive, or which is written again, while a product reads it.
enum class Panel { stays, arrives_late, is_written };
__global__ void product_of_a_changing_panel(const bf16* from, Panel kind) {
  auto* panel = cuda::dynamic_shared<bf16>();
  for (unsigned i = threadIdx.x; i < 64 * 8; i += blockDim.x) cuda::copy_async_16(panel + 8 * i, from + 8 * i, 16);
  cuda::copy_async_commit();
  if (kind != Panel::arrives_late) cuda::copy_async_wait<0>();
  cuda::shared_to_products();
  __syncthreads();
  float sums[8][4] = {};
  const std::uint32_t ones[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
  cuda::start_product<bf16, false>(sums, ones, cuda::panel_descriptor(cuda::shared_address(panel)), true);
  cuda::warpgroup_commit();
  cuda::copy_async_wait<0>();
  __syncthreads();
  if (kind == Panel::is_written && threadIdx.x == 0) panel[0] = bf16(2);
  __syncthreads();
  cuda::warpgroup_wait<0>();
}

TEST_P(EmulatorTest, WhatAProductReadsMustNotChange) {
  const std::vector<bf16> panel(64 * cuda::panel_columns, bf16(1));
  const auto start = [&](Panel kind) { launch(nullptr, 1, 128, 8192, product_of_a_changing_panel, panel.data(), kind); };
  EXPECT_NO_THROW(start(Panel::stays));
  EXPECT_THROW(start(Panel::arrives_late), std::logic_error);
  EXPECT_THROW(start(Panel::is_written), std::logic_error);
}

TEST(Emulator, AMissingBarrierShowsInOneOfTheOrders) {
  std::vector<int> x(256), forward(256), backward(256);
  for (int i = 0; i < 256; ++i) x[static_cast<std::size_t>(i)] = i + 1;
  emulator::set_order(Order::forward);
  launch(nullptr, 1, 256, 0, reverse_without_barrier, forward.data(), x.data(), 256);
  emulator::set_order(Order::backward);
  launch(nullptr, 1, 256, 0, reverse_without_barrier, backward.data(), x.data(), 256);
  emulator::set_order(Order::forward);
  EXPECT_NE(forward, backward);
}

__global__ void shift_by_blocks(int* x) {
  if (threadIdx.x == 0) x[blockIdx.x + 1] = x[blockIdx.x] + 1;
}

TEST(Emulator, ABlockThatReadsWhatAnotherWritesShowsInOneOfTheOrders) {
  std::vector<int> forward(5), backward(5);
  launch(nullptr, 4, 32, 0, shift_by_blocks, forward.data());
  emulator::set_order(Order::backward);
  launch(nullptr, 4, 32, 0, shift_by_blocks, backward.data());
  emulator::set_order(Order::forward);
  EXPECT_NE(forward, backward);
}
#else
__global__ void reverse_in_a_warp(int* out, const int* x, bool barrier) {
  __shared__ int tile[32];
  const unsigned i = threadIdx.x;
  tile[i] = x[i];
  const int first = __shfl_sync(cuda::all_lanes, x[i], 0);  // lanes meet here, and that orders nothing
  if (barrier) __syncwarp();
  out[i] = tile[31 - i] + first;
}

__global__ void copy_in_a_block(int* out, const int* x, bool barrier) {
  __shared__ __align__(16) int tile[256];
  if (threadIdx.x < 64) cuda::copy_async_16(tile + 4 * threadIdx.x, x + 4 * threadIdx.x, 16);
  cuda::copy_async_commit();
  cuda::copy_async_wait<0>();
  if (barrier) __syncthreads();
  out[threadIdx.x] = tile[threadIdx.x];
}

/// A warpgroup multiplies by a panel of its own making. `left_out`: what it does without.
enum class LeftOut { nothing, fence, barrier, wait };
__global__ void product_of_a_panel(int* out, LeftOut left_out) {
  auto* panel = cuda::dynamic_shared<bf16>();
  for (unsigned i = threadIdx.x; i < 64 * cuda::panel_columns; i += blockDim.x) panel[i] = bf16(1);
  if (left_out != LeftOut::fence) cuda::shared_to_products();
  if (left_out != LeftOut::barrier) __syncthreads();
  float sums[8][4] = {};
  const std::uint32_t ones[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
  cuda::warpgroup_fence();
  cuda::start_product<bf16, false>(sums, ones, cuda::panel_descriptor(cuda::shared_address(panel)), true);
  cuda::warpgroup_commit();
  if (left_out != LeftOut::wait) cuda::warpgroup_wait<0>();
  __syncthreads();
  panel[threadIdx.x] = bf16(2);
  if (left_out == LeftOut::wait) cuda::warpgroup_wait<0>();
  out[threadIdx.x] = static_cast<int>(sums[0][0]);
}

class Races : public testing::Test {
 protected:
  /// Whether the thread sanitizer ends a process that starts this with its status.
  template <class... Parameters, class... Arguments>
  void expect_race(bool race, unsigned threads, void (*kernel)(Parameters...), Arguments... arguments) {
    const auto start = [&] {
      for (unsigned blocks : {1u, 3u}) launch(nullptr, blocks, threads, 16384, kernel, arguments...);
      std::exit(0);
    };
    EXPECT_EXIT(start(), testing::ExitedWithCode(race ? 66 : 0), race ? "data race" : "");
  }
  std::vector<int> x_ = std::vector<int>(256, 1), out_ = std::vector<int>(256);
};

TEST_F(Races, AMissingBarrierIsARaceInEitherOrder) {
  for (Order order : {Order::forward, Order::backward}) {
    emulator::set_order(order);
    expect_race(true, 256, reverse_without_barrier, out_.data(), x_.data(), 256);
    expect_race(false, 256, reverse, out_.data(), x_.data(), 256);
  }
  emulator::set_order(Order::forward);
}

TEST_F(Races, ThreadsThatTakeTurnsAreOrderedByNamedBarriers) {
  for (Order order : {Order::forward, Order::backward}) {
    emulator::set_order(order);
    expect_race(true, 64, take_turns, out_.data(), Turns::none);
    expect_race(false, 64, take_turns, out_.data(), Turns::right);
  }
  emulator::set_order(Order::forward);
}

TEST_F(Races, AWarpFunctionIsNoBarrier) {
  expect_race(true, 32, reverse_in_a_warp, out_.data(), x_.data(), false);
  expect_race(false, 32, reverse_in_a_warp, out_.data(), x_.data(), true);
}

TEST_F(Races, ACopyThatHasArrivedHasForItsOwnThreadAlone) {
  expect_race(true, 256, copy_in_a_block, out_.data(), x_.data(), false);
  expect_race(false, 256, copy_in_a_block, out_.data(), x_.data(), true);
}

TEST_F(Races, ProductsNeedAFenceABarrierAndAWait) {
  expect_race(false, 128, product_of_a_panel, out_.data(), LeftOut::nothing);
  for (LeftOut left_out : {LeftOut::fence, LeftOut::barrier, LeftOut::wait})
    expect_race(true, 128, product_of_a_panel, out_.data(), left_out);
}
#endif

TEST_P(EmulatorTest, WarpsExchange) {
  std::vector<float> x(3 * 64), out(6);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
  launch(nullptr, 3, 64, 0, warp_sum, out.data(), x.data());
  for (std::size_t w = 0; w < 6; ++w) EXPECT_EQ(out[w], static_cast<float>(32 * 32 * w + 31 * 16));
}

TEST(Emulator, ABarrierThatSomeSkipIsAnError) {
  EXPECT_THROW(launch(nullptr, 1, 64, 0, half_meets, static_cast<int*>(nullptr)), std::logic_error);
}

TEST(Emulator, ANamedBarrierThatNobodyWaitsForIsAnError) {
  int sum = 0;
  EXPECT_THROW(launch(nullptr, 1, 64, 0, take_turns, &sum, Turns::one_too_many), std::logic_error);
  EXPECT_THROW(launch(nullptr, 1, 64, 0, expects_different_numbers, &sum), std::logic_error);
}

// What GPUs refuse is refused: by the shared memory of the capability, by whose memory it is, by the direction of a copy.
__global__ void write_one(int* to) { *to = 1; }

TEST(Emulator, SharedMemoryIsThatOfTheCapability) {
  int value = 0;
  const auto start = [&](std::size_t kibibytes) { launch(nullptr, 1, 32, kibibytes << 10, write_one, &value); };
  struct Gpu {
    int major, minor;
    std::size_t most;
  };
  for (const Gpu& gpu : {Gpu{8, 6, 98}, Gpu{8, 9, 98}, Gpu{8, 0, 162}, Gpu{9, 0, 226}}) {
    emulator::set_compute_capability(gpu.major, gpu.minor);
    EXPECT_NO_THROW(start(gpu.most)) << gpu.major << "." << gpu.minor;
    EXPECT_THROW(start(gpu.most + 1), std::logic_error) << gpu.major << "." << gpu.minor;
  }
  emulator::set_compute_capability(8, 6);
}

TEST(Emulator, TheHostCannotTouchDeviceMemory) {
  int *data = nullptr, *pinned = nullptr, value = 0;
  ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&data), sizeof(int)), cudaSuccess);
  ASSERT_EQ(cudaMallocHost(reinterpret_cast<void**>(&pinned), sizeof(int)), cudaSuccess);
  launch(nullptr, 1, 1, 0, write_one, data);
  EXPECT_DEATH(value = *static_cast<volatile int*>(data), "");
  ASSERT_EQ(cudaMemcpy(&value, data, sizeof(int), cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(value, 1);
  launch(nullptr, 1, 1, 0, write_one, pinned);
  EXPECT_EQ(*pinned, 1) << "pinned memory is the host's too";
  EXPECT_DEATH(launch(nullptr, 1, 1, 0, write_one, data + 64), "") << "and nothing lies behind an allocation";
  EXPECT_EQ(cudaFree(data), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
}

TEST(Emulator, WhatAStreamCallsOnTheHostIsTheHost) {
  int* data = nullptr;
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&data), sizeof(int)), cudaSuccess);
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  const auto write = [](void* p) { *static_cast<volatile int*>(p) = 2; };
  EXPECT_DEATH(cudaLaunchHostFunc(stream, write, data) == cudaSuccess ? cudaStreamSynchronize(stream) : cudaSuccess, "");
  cudaStreamDestroy(stream);
  EXPECT_EQ(cudaFree(data), cudaSuccess);
}

// The driver may have one thread for the host functions of all streams.
TEST(Emulator, HostFunctionsOfAllStreamsShareAThread) {
  cudaStream_t streams[2] = {};
  std::thread::id threads[2];
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cudaLaunchHostFunc(
                  streams[i], [](void* p) { *static_cast<std::thread::id*>(p) = std::this_thread::get_id(); }, &threads[i]),
              cudaSuccess);
  }
  for (cudaStream_t stream : streams) {
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    cudaStreamDestroy(stream);
  }
  EXPECT_NE(threads[0], std::thread::id());
  EXPECT_EQ(threads[0], threads[1]);
}

TEST(Emulator, ACopyInTheWrongDirectionIsRefused) {
  int *data = nullptr, value = 7;
  ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&data), sizeof(int)), cudaSuccess);
  EXPECT_EQ(cudaMemcpy(data, &value, sizeof(int), cudaMemcpyDeviceToHost), cudaErrorInvalidMemcpyDirection);
  EXPECT_EQ(cudaMemcpy(data, &value, sizeof(int), cudaMemcpyDeviceToDevice), cudaErrorInvalidMemcpyDirection);
  EXPECT_EQ(cudaMemcpy(&value, data, sizeof(int), cudaMemcpyHostToDevice), cudaErrorInvalidMemcpyDirection);
  EXPECT_EQ(cudaMemcpy(data, &value, sizeof(int), cudaMemcpyDefault), cudaSuccess);
  EXPECT_EQ(cudaFree(data), cudaSuccess);
}

// A vector of four floats that does not lie on 16 bytes.
__global__ void read_vector(float* to, const float* from) { *to = reinterpret_cast<const float4*>(from)->x; }

#ifndef TESSERA_RACES
TEST(Emulator, AVectorThatIsNotAlignedIsAFault) {
  float* data = nullptr;
  ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&data), 64), cudaSuccess);
  EXPECT_NO_THROW(launch(nullptr, 1, 1, 0, read_vector, data, static_cast<const float*>(data + 4)));
  EXPECT_DEATH(launch(nullptr, 1, 1, 0, read_vector, data, static_cast<const float*>(data + 1)), "misaligned");
  EXPECT_EQ(cudaFree(data), cudaSuccess);
}
#endif

// Their results are what a GPU may return, and seldom the nearest number.
TEST(Emulator, ApproximationsAreWithinTheirBoundsAndNotExact) {
  int exact = 0;
  for (int i = 1; i <= 1000; ++i) {
    const float x = -0.037f * static_cast<float>(i), e = __expf(x), q = __fdividef(1.0f, -x);
    const double true_e = std::exp(static_cast<double>(x)), ulp = std::ldexp(1.0, std::ilogb(true_e) - 23);
    EXPECT_LE(std::abs(static_cast<double>(e) - true_e), (2.5 + std::floor(std::abs(1.173 * static_cast<double>(x)))) * ulp) << x;
    const double true_q = -1 / static_cast<double>(x);
    EXPECT_LE(std::abs(static_cast<double>(q) - true_q), 2.5 * std::ldexp(1.0, std::ilogb(true_q) - 23)) << x;
    exact += e == static_cast<float>(true_e), exact += q == static_cast<float>(true_q);
  }
  EXPECT_LT(exact, 1000);
  EXPECT_EQ(__expf(0), 1.0f);
  EXPECT_EQ(__expf(-1000), 0.0f);
  EXPECT_EQ(__expf(-INFINITY), 0.0f);
}

TEST(Emulator, AGpuWithoutMachineCodeIsToldOf) {
  for (const auto& [major, minor] : {std::pair{8, 0}, {8, 6}, {8, 9}, {9, 0}}) {
    emulator::set_compute_capability(major, minor);
    EXPECT_EQ(cuda::describe_translation(), "") << major << "." << minor;
  }
  emulator::set_compute_capability(10, 0);
  EXPECT_NE(cuda::describe_translation().find("no machine code for compute capability 10.0"), std::string::npos);
  EXPECT_NE(cuda::describe_translation().find("=100-real"), std::string::npos);
  emulator::set_compute_capability(8, 6);
}

TEST(Emulator, EventsTellTheTimeBetweenThem) {
  cudaStream_t stream = nullptr;
  cudaEvent_t begin = nullptr, end = nullptr, untimed = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  for (cudaEvent_t* event : {&begin, &end}) ASSERT_EQ(cudaEventCreate(event), cudaSuccess);
  ASSERT_EQ(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming), cudaSuccess);
  float milliseconds = -1;
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, begin, end), cudaErrorInvalidResourceHandle) << "not recorded";
  cudaEventRecord(begin, stream);
  bool open = false;
  emulator::enqueue(stream, [&] { return open; });
  cudaEventRecord(end, stream);
  cudaEventRecord(untimed, stream);
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, begin, end), cudaErrorNotReady);
  std::this_thread::sleep_for(std::chrono::milliseconds(3));
  open = true;
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, begin, end), cudaSuccess);
  EXPECT_GE(milliseconds, 3.0f);
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, begin, untimed), cudaErrorInvalidResourceHandle) << "made without a time";
  for (cudaEvent_t event : {begin, end, untimed}) cudaEventDestroy(event);
  cudaStreamDestroy(stream);
}

TEST(Emulator, RefusesWhatCudaRefuses) {
  EXPECT_THROW(launch(nullptr, 1, 2048, 0, half_meets, static_cast<int*>(nullptr)), std::logic_error);
}

TEST(Emulator, MemoryThatIsHeldMustNotBeFreed) {
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, 1000), cudaSuccess);
  emulator::hold(static_cast<std::byte*>(memory), 1000);
  EXPECT_DEATH(cudaFree(memory), "registered with NCCL");
  emulator::let_go(memory);
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
}

}  // namespace
}  // namespace tessera
