// The calls of the CUDA runtime that our code makes, on host memory: device memory is memory, a stream is a queue of functions that one
// thread runs.
#include "emulator.hpp"

#include <sched.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

/// What an event was recorded as last.
struct CUevent_st {
  struct Moment {
    bool reached = false;
    double time = 0;
  };
  std::shared_ptr<Moment> last = std::make_shared<Moment>(Moment{.reached = true});
};
struct CUstream_st {
  std::deque<tessera::emulator::Work> queue;
};

namespace {
cudaError_t give(void** p, std::size_t bytes) {
  *p = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  if (*p) std::memset(*p, 0xff, bytes);  // NaN: reading what nobody wrote shows
  return *p ? cudaSuccess : cudaErrorMemoryAllocation;
}
int g_major = 8, g_device = 0;
std::vector<CUstream_st*> g_streams;

/// Lets every stream go on as far as it can.
void progress() {
  for (bool moved = true; moved;) {
    moved = false;
    for (CUstream_st* stream : g_streams)
      for (; !stream->queue.empty() && stream->queue.front()(); moved = true) stream->queue.pop_front();
  }
}
template <class Condition>
cudaError_t wait_until(Condition condition) {
  for (progress(); !condition(); progress()) sched_yield();
  return cudaSuccess;
}
template <class F>
cudaError_t do_on(cudaStream_t stream, F f) {
  tessera::emulator::enqueue(stream, [f] { return f(), true; });
  return cudaSuccess;
}

/// GPUs of the machine: TESSERA_EMULATED_GPUS, or one for each of eight ranks.
int device_count() {
  const char* count = std::getenv("TESSERA_EMULATED_GPUS");
  return count ? std::atoi(count) : 8;
}
double now() { return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
}  // namespace

namespace tessera::emulator {
void set_compute_capability(int major) { g_major = major; }

void enqueue(cudaStream_t stream, Work work) {
  if (!stream)
    wait_until(work);
  else if (!stream->queue.empty() || !work())
    stream->queue.push_back(std::move(work));
}
}  // namespace tessera::emulator

extern "C" {
cudaError_t cudaMalloc(void** p, std::size_t bytes) { return give(p, bytes); }
cudaError_t cudaFree(void* p) {
  std::free(p);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** p, std::size_t bytes, unsigned) { return give(p, bytes); }
cudaError_t cudaMallocHost(void** p, std::size_t bytes) { return give(p, bytes); }
cudaError_t cudaFreeHost(void* p) { return cudaFree(p); }
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
  std::memmove(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return do_on(stream, [=] { cudaMemcpy(to, from, bytes, kind); });
}
cudaError_t cudaMemset(void* to, int value, std::size_t bytes) {
  std::memset(to, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  return do_on(stream, [=] { cudaMemset(to, value, bytes); });
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = g_streams.emplace_back(new CUstream_st);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  std::erase(g_streams, stream);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return wait_until([=] { return !stream || stream->queue.empty(); });
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  progress();
  return !stream || stream->queue.empty() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  tessera::emulator::enqueue(stream, [moment = event->last] { return moment->reached; });
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  return wait_until([] { return std::all_of(g_streams.begin(), g_streams.end(), [](auto* stream) { return stream->queue.empty(); }); });
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  event->last = std::make_shared<CUevent_st::Moment>();
  return do_on(stream, [moment = event->last] { *moment = {.reached = true, .time = now()}; });
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return wait_until([=] { return event->last->reached; });
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (!event->last->reached) progress();
  return event->last->reached ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  *milliseconds = static_cast<float>(to->last->time - from->last->time);
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaPeekAtLastError() { return cudaSuccess; }
const char* cudaGetErrorName(cudaError_t) { return "emulated"; }
const char* cudaGetErrorString(cudaError_t) { return "the emulated runtime ran out of memory"; }
cudaError_t cudaGetDeviceCount(int* count) {
  *count = device_count();
  return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
}
cudaError_t cudaGetDevice(int* device) {
  *device = g_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= device_count()) return cudaErrorInvalidDevice;
  g_device = device;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int device) {
  std::snprintf(id, static_cast<std::size_t>(length), "emulated:%02x:00.0", static_cast<unsigned>(device));
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::strcpy(properties->name, "emulator");
  properties->major = g_major;
  properties->multiProcessorCount = 4;
  properties->totalGlobalMem = std::size_t{4} << 30;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrMultiProcessorCount ? 4 : attribute == cudaDevAttrComputeCapabilityMajor ? g_major : 0;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* available, std::size_t* total) {
  *available = *total = std::size_t{4} << 30;
  return cudaSuccess;
}
}
