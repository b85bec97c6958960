// What a .cu file is written in: qualifiers, built-in variables, warp functions and launches. nvcc compiles it for GPUs; with
// TESSERA_EMULATED_GPU the same source is compiled for the host and runs under validation/emulator, so that its arithmetic, its barriers
// and its bounds are tested where there is no GPU.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "base/backend.hpp"
#include "base/types.hpp"
#include "kernels/context.hpp"
#include "kernels/cuda/runtime.hpp"

#ifdef TESSERA_EMULATED_GPU
#include <emulator.hpp>  // validation/emulator
#endif

namespace tessera::cuda {

inline constexpr int warp_lanes = 32;
inline constexpr unsigned all_lanes = 0xffffffffu;

inline cudaStream_t stream_of(const kernels::Context& context) { return static_cast<cudaStream_t>(context.stream); }

/// A broken invariant ends the kernel, and the next check of the CUDA runtime throws.
__device__ inline void require(bool condition) {
  if (!condition) __trap();
}

#ifdef TESSERA_EMULATED_GPU

/// Named barriers 1 to 15, for `threads` of the block that are whole warps: those who wait and those who only announce that they have come.
/// What both did to shared memory before comes before what those who waited do afterwards. Their numbers are known to the compiler: else a
/// block takes all sixteen from its multiprocessor.
template <int barrier, int threads>
void barrier_wait() {
  emulator::sync_named(barrier, threads);
}
template <int barrier, int threads>
void barrier_arrive() {
  emulator::arrive_named(barrier, threads);
}

/// Shared memory whose size the launch gives, 1024-byte aligned.
template <class T>
T* dynamic_shared() {
  return static_cast<T*>(emulator::dynamic_shared());
}

template <class... Parameters, class... Arguments>
void launch(cudaStream_t stream, dim3 grid, dim3 block, std::size_t shared_bytes, void (*kernel)(Parameters...), Arguments... arguments) {
  emulator::enqueue(stream, [=] {
    emulator::launch(grid, block, shared_bytes, [&] { kernel(arguments...); });
    return true;
  });
}

#else

template <int barrier, int threads>
__device__ __forceinline__ void barrier_wait() {
  asm volatile("bar.sync %0, %1;" ::"n"(barrier), "n"(threads) : "memory");
}
template <int barrier, int threads>
__device__ __forceinline__ void barrier_arrive() {
  asm volatile("bar.arrive %0, %1;" ::"n"(barrier), "n"(threads) : "memory");
}

template <class T>
__device__ T* dynamic_shared() {
  extern __shared__ __align__(1024) unsigned char tessera_dynamic_shared[];
  return reinterpret_cast<T*>(tessera_dynamic_shared);
}

/// Starts a kernel on the stream. More than 48 KiB of dynamic shared memory is asked for here.
template <class... Parameters, class... Arguments>
void launch(cudaStream_t stream, dim3 grid, dim3 block, std::size_t shared_bytes, void (*kernel)(Parameters...), Arguments... arguments) {
  if (shared_bytes > 48 * 1024)
    TESSERA_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)));
  // clang-format off
  kernel<<<grid, block, shared_bytes, stream>>>(arguments...);
  // clang-format on
  TESSERA_CUDA_CHECK(cudaGetLastError());
}

#endif

}  // namespace tessera::cuda
