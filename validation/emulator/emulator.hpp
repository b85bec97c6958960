// Runs CUDA kernels on a CPU thread, for tests: every GPU thread is a fiber, and barriers and warp functions are where fibers change. It
// checks what a GPU does not: that all threads of a barrier arrive, and (run forward, then backward) that results do not depend on the
// order of threads between two barriers. Built with the address sanitizer it finds accesses out of bounds, with the thread sanitizer
// (preset races) what threads of a block do to the same memory with no barrier between them. It says nothing about speed.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>

#undef __shared__
#define __shared__ static  // blocks run one after the other
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __global__
#define __global__
#undef __device__
#define __device__
#undef __forceinline__
#define __forceinline__ inline
#undef __grid_constant__
#define __grid_constant__

namespace tessera::emulator {

/// In which order the threads of a block run between two barriers, and blocks one after the other.
enum class Order { forward, backward };
void set_order(Order order);

/// Whether this is a build with the thread sanitizer, which takes twenty times as long.
bool watches_races();

/// Which GPU the runtime claims to be. At first 8.6, where blocks have the least shared memory, or TESSERA_EMULATED_CAPABILITY of the
/// environment: "9.0", "8.9".
void set_compute_capability(int major, int minor = 0);
/// Shared memory that a block of this GPU may ask for, in bytes (CUDA's programming guide, "Technical Specifications per Compute
/// Capability").
std::size_t shared_memory_limit();

/// Products that the stand-in for cuBLASLt has run with its algorithm `number`, 0 to 3. Of several that it offers the third is the fastest.
int products_of_algorithm(int number);
/// Multiprocessors that the product given to it last may take; 0: all.
int multiprocessors_of_product();

/// The device's place on the bus. With TESSERA_EMULATED_INSTANCES=n in the environment so many devices in a row are instances of one GPU.
int bus_of(int device);

/// Whether a kernel that is started now does nothing, since one has ended in a fault that every later call of the runtime returns: the n-th
/// of the process with TESSERA_EMULATED_FAULT=n in the environment.
bool kernel_faults();

/// Executable graphs that have not been destroyed.
int live_graphs();
/// Graphs made so far whose streams had unequal priorities, without the flag that keeps them: all their nodes run at the launch stream's.
int graphs_without_priorities();
/// Calls so far that took memory of the GPU, or pinned memory: cudaMalloc and its like.
std::int64_t allocations();

/// Passes of attention that the stand-in for cuDNN has run.
std::int64_t cudnn_executions();
/// While hidden, this machine has no cuDNN.
void hide_cudnn(bool hidden);
/// From now on questions to cuDNN (all but execution) go to the real library; `driver_stub` is the toolkit's stub of libcuda.so.1. Empty,
/// or why that failed.
std::string use_real_cudnn(const std::string& driver_stub);

/// Runs `body` once for each thread of each block. Throws what a thread throws, and an error that names block and thread where threads wait
/// for others that have ended or wait elsewhere.
void launch(dim3 grid, dim3 block, std::size_t shared_bytes, const std::function<void()>& body);
void* dynamic_shared();
/// How many blocks have begun: tells one from the next.
std::int64_t block_number();

/// Work of a stream: returns whether it is done, and is asked again until it is.
using Work = std::function<bool()>;
/// A stream does its work at once for as long as it can. Work that has to wait (a collective, another stream's event) holds what is issued
/// behind it on its stream until a call asks for a stream's or an event's state, or waits for it: a wait that is missing between two
/// streams shows. The null stream has its work done on return.
/// Of work that is captured, `launched` is called each time a graph that holds it is launched. Device memory is open while work runs, and
/// closed to all else: the host that reads it ends with a fault, as it does on a machine with a GPU.
void enqueue(cudaStream_t stream, Work work, std::function<void()> launched = {});
/// The same for what runs on the host in a stream's order.
void enqueue_on_host(cudaStream_t stream, Work work);
bool is_captured(cudaStream_t stream);
/// Whether a function has been called.
using Called = std::shared_ptr<const std::atomic<bool>>;
/// Calls it on the only thread that this GPU's driver has for host functions, those of NCCL's graphs too, behind all that it was given
/// before. CUDA promises no more.
Called call_on_host_thread(std::function<void()> function);
/// From now on every NCCL communicator of this process reports this error (an ncclResult_t); 0: none.
void set_nccl_error(int error);
/// From now on ncclCommRegister fails, or no longer.
void refuse_nccl_registration(bool refused);
/// Buffers that NCCL's collectives were given so far in this process: inside memory that is registered with their communicator, and others.
struct NcclBuffers {
  std::int64_t registered = 0, unregistered = 0;
  int registrations = 0;  ///< that are live now
};
NcclBuffers nccl_buffers();
/// Blocks that the communicator of NCCL made last may take at most; 0: as NCCL likes.
int nccl_most_blocks();

/// Someone relies on this memory until let_go: cudaFree of it, or of what it lies in, ends the program with a message.
void hold(const void* memory, std::size_t bytes);
void let_go(const void* memory);

void sync_block();
/// bar.sync and bar.arrive of a named barrier, 1 to 15: `threads` of the block meet, and those that arrive do not wait for the others. A
/// block that ends while some have arrived where the others have not is an error, and so are two numbers of threads at one meeting.
void sync_named(int barrier, int threads);
void arrive_named(int barrier, int threads);

/// Whether what lanes did to memory before they meet comes before what the others do afterwards. CUDA promises it of barriers alone.
enum class Orders { nothing, memory };
/// All lanes of `mask` give `bytes` (at most 128) and get everybody's: a pointer to 32 slots of `bytes`, valid until the lane's next
/// exchange.
const std::byte* exchange(unsigned mask, const void* value, std::size_t bytes, Orders orders = Orders::nothing);
int lane();

/// cp.async. Until the wait that covers it the target is 0xff bytes, and the source is read only there: a missing wait shows as NaN, and so
/// does a copy into memory that others still read.
void copy_async(void* to, const void* from, int size, int bytes);
void copy_async_commit();
/// Does the copies of all but the `left` youngest groups of this thread.
void copy_async_wait(int left);

/// Products of a warpgroup read shared memory by a way of their own (the PTX ISA's async proxy). Under the thread sanitizer they are
/// another thread beside this one: what this thread wrote it sees after products_see() and a barrier, and this thread comes after what it
/// read after products_done().
void products_see();
void products_read(const void* from, std::size_t bytes);
void products_done();

template <class T>
T exchanged(unsigned mask, T value, int from) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 128);
  T result;
  std::memcpy(static_cast<void*>(&result), exchange(mask, &value, sizeof value) + static_cast<std::size_t>(from & 31) * sizeof value,
              sizeof value);
  return result;
}

extern uint3 thread_index, block_index;
extern dim3 block_size, grid_size;

}  // namespace tessera::emulator

#define threadIdx (::tessera::emulator::thread_index)
#define blockIdx (::tessera::emulator::block_index)
#define blockDim (::tessera::emulator::block_size)
#define gridDim (::tessera::emulator::grid_size)

inline void __syncthreads() { ::tessera::emulator::sync_block(); }
inline void __syncwarp(unsigned mask = 0xffffffffu) {
  const int nothing = 0;
  ::tessera::emulator::exchange(mask, &nothing, sizeof nothing, ::tessera::emulator::Orders::memory);
}
template <class T>
T __shfl_sync(unsigned mask, T value, int from, int width = 32) {
  const int lane = ::tessera::emulator::lane();
  return ::tessera::emulator::exchanged(mask, value, (lane & ~(width - 1)) | (from & (width - 1)));
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
  const int lane = ::tessera::emulator::lane(), from = lane ^ bits;
  return ::tessera::emulator::exchanged(mask, value, (from & ~(width - 1)) <= (lane & ~(width - 1)) ? from : lane);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
  const int lane = ::tessera::emulator::lane(), from = lane + static_cast<int>(by);
  return ::tessera::emulator::exchanged(mask, value, (lane & (width - 1)) + static_cast<int>(by) < width ? from : lane);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
  const int lane = ::tessera::emulator::lane(), from = lane - static_cast<int>(by);
  return ::tessera::emulator::exchanged(mask, value, (lane & (width - 1)) >= static_cast<int>(by) ? from : lane);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  const std::byte* all = ::tessera::emulator::exchange(mask, &predicate, sizeof predicate);
  unsigned result = 0;
  for (unsigned i = 0; i < 32; ++i) {
    int value;
    std::memcpy(&value, all + i * sizeof value, sizeof value);
    if ((mask >> i & 1) && value) result |= 1u << i;
  }
  return result;
}
/// The lanes of the mask that have the same value.
template <class T>
unsigned __match_any_sync(unsigned mask, T value) {
  const std::byte* all = ::tessera::emulator::exchange(mask, &value, sizeof value);
  unsigned result = 0;
  for (unsigned i = 0; i < 32; ++i) {
    T other;
    std::memcpy(&other, all + i * sizeof other, sizeof other);
    if ((mask >> i & 1) && other == value) result |= 1u << i;
  }
  return result;
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }

// Fibers change at barriers alone, so any load and store would do. These tell the thread sanitizer that it is no race.
template <class T>
T atomicAdd(T* p, std::type_identity_t<T> x) {
  T old;
  __atomic_load(p, &old, __ATOMIC_RELAXED);
  x += old;
  __atomic_store(p, &x, __ATOMIC_RELAXED);
  return old;
}
template <class T>
T atomicOr(T* p, std::type_identity_t<T> x) {
  T old;
  __atomic_load(p, &old, __ATOMIC_RELAXED);
  x |= old;
  __atomic_store(p, &x, __ATOMIC_RELAXED);
  return old;
}
template <class T>
T atomicMax(T* p, std::type_identity_t<T> x) {
  T old;
  __atomic_load(p, &old, __ATOMIC_RELAXED);
  if (x < old) x = old;
  __atomic_store(p, &x, __ATOMIC_RELAXED);
  return old;
}
[[noreturn]] inline void __trap() { throw std::logic_error("emulator: a kernel called __trap"); }
inline void __threadfence() {}
inline void __threadfence_block() {}

template <class T>
T __ldg(const T* p) {
  return *p;
}
template <class T>
T __ldcs(const T* p) {
  return *p;
}
template <class T>
void __stcs(T* p, const T& value) {
  *p = value;
}

namespace tessera::emulator {
/// `exact`, moved by up to `ulps` units in the last place, as far as the digits of `of` say: what a GPU's approximation may return, and the
/// same for the same operand. 0, infinities and NaN stay.
inline float approximate(double exact, float of, int ulps) {
  const auto nearest = static_cast<float>(exact);
  if (!std::isnormal(nearest)) return nearest;
  const std::uint32_t mixed = (std::bit_cast<std::uint32_t>(of) * 0x9e3779b1u) >> 8;
  const auto by = static_cast<int>(mixed % static_cast<std::uint32_t>(2 * ulps + 1)) - ulps;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(nearest) + static_cast<std::uint32_t>(by));
}
/// ex2.approx.ftz: a relative error of 2^-22.5 at most, which is 2 ulp; 1 at 0; no subnormal results (PTX ISA, "ex2").
inline float exp2_approximate(float x) {
  if (x == 0) return 1;
  const float y = approximate(std::exp2(static_cast<double>(x)), x, 2);
  return y < 0x1p-126f ? 0 : y;
}
}  // namespace tessera::emulator

// Their errors are those of the CUDA programming guide, "Intrinsic Functions": 2 + floor(|1.173 x|) ulp, since the product with log2(e) is
// rounded, and 2 ulp.
inline float __expf(float x) { return ::tessera::emulator::exp2_approximate(x * 1.44269504f); }
inline float __fdividef(float x, float y) {
  return ::tessera::emulator::approximate(static_cast<double>(x) / static_cast<double>(y), y, 2);
}
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>((std::uint64_t{a} * b) >> 32); }
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline long long __float2ll_rn(float x) { return std::llrint(x); }
inline long long __double2ll_rn(double x) { return std::llrint(x); }
inline float __ll2float_rn(long long x) { return static_cast<float>(x); }
using std::isfinite;
using std::max;
using std::min;
