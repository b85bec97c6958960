// The calls of the CUDA runtime that our code makes, on host memory: device memory is memory, a stream is a queue of functions that one
// thread runs.
#include "emulator.hpp"

#include <cuda.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

/// What an event was recorded as last.
struct CUevent_st {
  struct Moment {
    bool reached = false;
    double time = 0;
    CUgraph_st* graph = nullptr;    ///< recorded while this was captured: never reached itself
    CUstream_st* stream = nullptr;  ///< of the capture
    std::size_t after = 0;          ///< nodes that the stream had been given before
  };
  std::shared_ptr<Moment> last = std::make_shared<Moment>(Moment{.reached = true});
  bool timed = true, recorded = false;
};
using MomentRef = std::shared_ptr<CUevent_st::Moment>;
struct CUstream_st {
  std::deque<tessera::emulator::Work> queue;
  CUgraph_st* capturing = nullptr;
  std::size_t merged = 0;  ///< nodes of a capture that its origin waits for
  int priority = 0;
};

/// What streams were given during a capture: work, and events that are recorded and waited for.
struct CUgraph_st {
  struct Node {
    tessera::emulator::Work work;
    MomentRef record, wait;
    std::function<void()> launched;
  };
  CUstream_st* origin = nullptr;
  std::vector<std::pair<CUstream_st*, std::deque<Node>>> streams;

  std::deque<Node>& nodes(CUstream_st* stream) {
    for (auto& [known, list] : streams)
      if (known == stream) return list;
    stream->capturing = this;
    stream->merged = 0;
    return streams.emplace_back(stream, std::deque<Node>()).second;
  }
};
struct CUgraphExec_st {
  CUgraph_st graph;
};

namespace {
constexpr std::size_t device_memory = std::size_t{16} << 30;
std::int64_t g_allocations = 0;

/// What cudaMalloc gave: pages that are closed but for the work of streams. It ends where a closed page begins.
struct DeviceBlock {
  std::byte *begin, *data;
  std::size_t pages;  ///< bytes of them
  std::size_t size;
  bool holds(const void* p) const { return data <= p && p < data + size; }
};
std::vector<DeviceBlock> g_device_blocks;
int g_open = 0;
std::recursive_mutex g_device_mutex;  // of both: threads that save copy beside the one that issues steps

const DeviceBlock* device_block(const void* p) {
  const std::lock_guard lock(g_device_mutex);
  const auto found = std::ranges::find_if(g_device_blocks, [=](const DeviceBlock& block) { return block.holds(p); });
  return found == g_device_blocks.end() ? nullptr : &*found;
}

/// While one lives, device memory can be read and written.
struct DeviceAccess {
  DeviceAccess() {
    const std::lock_guard lock(g_device_mutex);
    if (g_open++ == 0) protect(PROT_READ | PROT_WRITE);
  }
  ~DeviceAccess() {
    const std::lock_guard lock(g_device_mutex);
    if (--g_open == 0) protect(PROT_NONE);
  }
  DeviceAccess(const DeviceAccess&) = delete;
  static void protect(int how) {
    for (const DeviceBlock& block : g_device_blocks) ::mprotect(block.begin, block.pages, how);
  }
};

constexpr std::size_t alignment = 256;  // of all memory that CUDA gives

cudaError_t give_device(void** p, std::size_t bytes) {
  ++g_allocations;
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t size = (std::max<std::size_t>(bytes, 1) + alignment - 1) / alignment * alignment,
                    pages = (size + page - 1) / page * page;
  void* begin = ::mmap(nullptr, pages + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (begin == MAP_FAILED) return cudaErrorMemoryAllocation;
  auto* first = static_cast<std::byte*>(begin);
  const std::lock_guard lock(g_device_mutex);
  const DeviceBlock block{.begin = first, .data = first + pages - size, .pages = pages, .size = size};
  g_device_blocks.push_back(block);
  if (g_open > 0) ::mprotect(begin, pages, PROT_READ | PROT_WRITE);
  const DeviceAccess open;
  std::memset(block.data, 0xff, size);  // NaN: reading what nobody wrote shows
  *p = block.data;
  return cudaSuccess;
}

cudaError_t give_pinned(void** p, std::size_t bytes) {
  ++g_allocations;
  constexpr std::size_t page = 4096;
  *p = std::aligned_alloc(page, (bytes + page - 1) / page * page);
  if (*p) std::memset(*p, 0xff, bytes);
  return *p ? cudaSuccess : cudaErrorMemoryAllocation;
}
struct Capability {
  int major = 8, minor = 6;
};
Capability first_capability() {
  Capability capability;
  if (const char* text = std::getenv("TESSERA_EMULATED_CAPABILITY"))
    capability.minor = 0, std::sscanf(text, "%d.%d", &capability.major, &capability.minor);
  return capability;
}
Capability g_capability = first_capability();
int g_device = 0;
cudaError_t g_fault = cudaSuccess;  // of a kernel: what every later call returns
std::vector<std::pair<const std::byte*, std::size_t>> g_held;
std::vector<CUstream_st*> g_streams;
std::atomic<int> g_graphs = 0, g_graphs_without_priorities = 0;

/// Lets every stream go on as far as it can.
void progress() {
  for (bool moved = true; moved;) {
    moved = false;
    for (CUstream_st* stream : g_streams)
      for (; !stream->queue.empty() && stream->queue.front()(); moved = true) stream->queue.pop_front();
  }
}
bool capturing() {
  return std::any_of(g_streams.begin(), g_streams.end(), [](auto* stream) { return stream->capturing != nullptr; });
}

/// A graph that runs: each stream in its order, the one that was met last first, so that what lacks a wait comes too early.
struct Replay {
  CUgraph_st graph;
  std::set<MomentRef> reached;

  bool step(const CUgraph_st::Node& node) {
    if (node.record) reached.insert(node.record);
    return node.work ? node.work() : !node.wait || reached.contains(node.wait);
  }
  bool work() {
    bool left = false;
    for (bool moved = true; moved;) {
      moved = left = false;
      for (auto stream = graph.streams.rbegin(); stream != graph.streams.rend(); ++stream) {
        for (auto& nodes = stream->second; !nodes.empty() && step(nodes.front()); moved = true) nodes.pop_front();
        left |= !stream->second.empty();
      }
    }
    return !left;
  }
};

template <class Condition>
cudaError_t wait_until(Condition condition) {
  if (capturing()) return cudaErrorStreamCaptureUnsupported;
  for (progress(); !condition(); progress()) sched_yield();
  return g_fault;
}
/// Gives a stream work.
void issue(cudaStream_t stream, tessera::emulator::Work work, std::function<void()> launched = {}) {
  if (!stream && capturing()) throw std::logic_error("the default stream is given work while another is captured");
  if (!stream)
    wait_until(work);
  else if (stream->capturing)
    stream->capturing->nodes(stream).push_back(
        {.work = std::move(work), .record = nullptr, .wait = nullptr, .launched = std::move(launched)});
  else if (!stream->queue.empty() || !work())
    stream->queue.push_back(std::move(work));
}

template <class F>
cudaError_t do_on(cudaStream_t stream, F f) {
  tessera::emulator::enqueue_on_host(stream, [f] { return f(), true; });
  return cudaSuccess;
}

/// The driver's thread for host functions. It lives as long as the process; a process that was forked has one of its own.
class HostThread {
 public:
  static HostThread& of_this_process() {
    static HostThread* made = nullptr;
    static pid_t owner = 0;
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    if (!made || owner != ::getpid()) made = new HostThread, owner = ::getpid();
    return *made;
  }
  tessera::emulator::Called give(std::function<void()> function) {
    auto called = std::make_shared<std::atomic<bool>>(false);
    {
      const std::lock_guard lock(mutex_);
      functions_.emplace_back(std::move(function), called);
    }
    given_.notify_one();
    return called;
  }
  void wait_until_idle() {
    while (!*give([] {})) sched_yield();
  }

 private:
  HostThread() {
    std::thread([this] { run(); }).detach();
  }
  [[noreturn]] void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      given_.wait(lock, [this] { return !functions_.empty(); });
      const auto [function, called] = std::move(functions_.front());
      functions_.pop_front();
      lock.unlock();
      function();
      *called = true;
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable given_;
  std::deque<std::pair<std::function<void()>, std::shared_ptr<std::atomic<bool>>>> functions_;
};

/// GPUs of the machine: TESSERA_EMULATED_GPUS, or one for each of eight ranks.
int device_count() {
  const char* count = std::getenv("TESSERA_EMULATED_GPUS");
  return count ? std::atoi(count) : 8;
}
double now() { return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
}  // namespace

namespace tessera::emulator {
int live_graphs() { return g_graphs; }
int graphs_without_priorities() { return g_graphs_without_priorities; }
int bus_of(int device) {
  const char* instances = std::getenv("TESSERA_EMULATED_INSTANCES");
  return device / std::max(1, instances ? std::atoi(instances) : 1);
}
std::int64_t allocations() { return g_allocations; }
void set_compute_capability(int major, int minor) { g_capability = {major, minor}; }
std::size_t shared_memory_limit() {
  switch (10 * g_capability.major + g_capability.minor) {
    case 80:
    case 87:
      return 163 << 10;
    case 86:
    case 89:
    case 120:
      return 99 << 10;
    case 90:
    case 100:
      return 227 << 10;
    default:
      throw std::logic_error("emulator: how much shared memory has a GPU of capability " + std::to_string(g_capability.major) + "." +
                             std::to_string(g_capability.minor) + "?");
  }
}
bool kernel_faults() {
  static const char* const asked = std::getenv("TESSERA_EMULATED_FAULT");
  static std::int64_t left = asked ? std::atoll(asked) : 0;
  if (left > 0 && --left == 0) g_fault = cudaErrorIllegalAddress;
  return g_fault != cudaSuccess;
}

void hold(const void* memory, std::size_t bytes) { g_held.emplace_back(static_cast<const std::byte*>(memory), bytes); }
void let_go(const void* memory) {
  const auto found = std::find_if(g_held.begin(), g_held.end(), [=](const auto& range) { return range.first == memory; });
  if (found != g_held.end()) g_held.erase(found);
}

Called call_on_host_thread(std::function<void()> function) { return HostThread::of_this_process().give(std::move(function)); }

bool is_captured(cudaStream_t stream) { return stream && stream->capturing; }

void enqueue(cudaStream_t stream, Work work, std::function<void()> launched) {
  issue(
      stream,
      [work = std::move(work)] {
        const DeviceAccess open;
        return work();
      },
      std::move(launched));
}
void enqueue_on_host(cudaStream_t stream, Work work) { issue(stream, std::move(work)); }
}  // namespace tessera::emulator

extern "C" {
cudaError_t cudaMalloc(void** p, std::size_t bytes) {
  if (g_fault != cudaSuccess) return g_fault;
  return capturing() ? cudaErrorStreamCaptureUnsupported : give_device(p, bytes);
}
cudaError_t cudaFree(void* p) {
  for (const auto& [memory, bytes] : g_held)
    if (p && memory <= p && p < memory + bytes) {
      std::fprintf(stderr, "emulator: memory is freed that is registered with NCCL\n");
      std::abort();
    }
  if (!p) return cudaSuccess;
  const std::lock_guard lock(g_device_mutex);
  const auto found = std::ranges::find_if(g_device_blocks, [=](const DeviceBlock& block) { return block.data == p; });
  if (found == g_device_blocks.end()) return cudaErrorInvalidValue;
  ::munmap(found->begin, found->pages + static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)));
  g_device_blocks.erase(found);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** p, std::size_t bytes, unsigned) { return give_pinned(p, bytes); }
cudaError_t cudaMallocHost(void** p, std::size_t bytes) { return give_pinned(p, bytes); }
cudaError_t cudaFreeHost(void* p) {
  if (p && device_block(p)) return cudaErrorInvalidValue;
  std::free(p);
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  const bool to_device = device_block(to), from_device = device_block(from);
  if (bytes > 0 && kind != cudaMemcpyDefault &&
      (to_device != (kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice) ||
       from_device != (kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice)))
    return cudaErrorInvalidMemcpyDirection;
  const DeviceAccess open;
  std::memmove(to, from, bytes);
  return g_fault;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return do_on(stream, [=] { cudaMemcpy(to, from, bytes, kind); });
}
cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_stride, const void* from, std::size_t from_stride, std::size_t bytes,
                              std::size_t rows, cudaMemcpyKind kind, cudaStream_t stream) {
  if (to_stride < bytes || from_stride < bytes) return cudaErrorInvalidPitchValue;
  return do_on(stream, [=] {
    for (std::size_t r = 0; r < rows; ++r)
      cudaMemcpy(static_cast<std::byte*>(to) + r * to_stride, static_cast<const std::byte*>(from) + r * from_stride, bytes, kind);
  });
}
cudaError_t cudaMemset(void* to, int value, std::size_t bytes) {
  const DeviceAccess open;
  std::memset(to, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  return do_on(stream, [=] { cudaMemset(to, value, bytes); });
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  tessera::emulator::enqueue_on_host(stream, [=, called = tessera::emulator::Called()]() mutable {
    if (!called) called = tessera::emulator::call_on_host_thread([=] { function(data); });
    if (!*called) return false;
    called.reset();  // in a graph it is called again and again
    return true;
  });
  return cudaSuccess;
}
/// What our code looks up in the driver.
static CUresult wait_for_value(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags) {
  if (flags != CU_STREAM_WAIT_VALUE_GEQ) return CUDA_ERROR_NOT_SUPPORTED;
  auto* at = reinterpret_cast<std::int64_t*>(address);
  tessera::emulator::enqueue_on_host(
      stream, [=] { return std::atomic_ref(*at).load(std::memory_order_acquire) - static_cast<std::int64_t>(value) >= 0; });
  return CUDA_SUCCESS;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** address, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  const bool known = std::string(name) == "cuStreamWaitValue64";
  *address = known ? reinterpret_cast<void*>(wait_for_value) : nullptr;
  *found = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = g_streams.emplace_back(new CUstream_st);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0, *greatest = -5;  // as GPUs have it
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  const cudaError_t status = cudaStreamCreateWithFlags(stream, flags);
  (*stream)->priority = priority;
  return status;
}
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  *priority = stream->priority;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  HostThread::of_this_process().wait_until_idle();  // a function that has been given may use what is freed next
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
  const MomentRef moment = event->last;
  if (moment->graph) {  // the stream joins the capture, where it is not in it yet
    if (stream->capturing && stream->capturing != moment->graph) return cudaErrorStreamCaptureMerge;
    moment->graph->nodes(stream).push_back({.work = nullptr, .record = nullptr, .wait = moment, .launched = nullptr});
    if (stream == moment->graph->origin) moment->stream->merged = std::max(moment->stream->merged, moment->after);
    return cudaSuccess;
  }
  if (stream && stream->capturing) return cudaErrorStreamCaptureIsolation;
  issue(stream, [moment] { return moment->reached; });
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (!stream || stream->capturing) return cudaErrorIllegalState;
  auto* graph = new CUgraph_st;
  graph->origin = stream;
  graph->nodes(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = stream->capturing;
  if (!*graph || (*graph)->origin != stream) return cudaErrorIllegalState;
  bool joined = true;
  for (auto& [captured, nodes] : (*graph)->streams) {
    captured->capturing = nullptr;
    joined &= captured == stream || captured->merged + 1 >= nodes.size();  // the record itself comes after what it stands for
  }
  return joined ? cudaSuccess : cudaErrorStreamCaptureUnjoined;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, std::size_t* count) {
  *count = 0;
  for (const auto& [stream, nodes] : graph->streams) *count += nodes.size();
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long flags) {
  *made = new CUgraphExec_st{*graph};
  const bool unequal = std::ranges::any_of(
      graph->streams, [&](const auto& entry) { return entry.first->priority != graph->streams.front().first->priority; });
  if (unequal && !(flags & cudaGraphInstantiateFlagUseNodePriority)) ++g_graphs_without_priorities;
  ++g_graphs;
  return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  for (const auto& [captured, nodes] : graph->graph.streams)
    for (const CUgraph_st::Node& node : nodes)
      if (node.launched) node.launched();
  auto replay = std::make_shared<Replay>(Replay{graph->graph, {}});
  issue(stream, [replay] { return replay->work(); });
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  --g_graphs;
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  return wait_until([] { return std::all_of(g_streams.begin(), g_streams.end(), [](auto* stream) { return stream->queue.empty(); }); });
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  *event = new CUevent_st;
  (*event)->timed = (flags & cudaEventDisableTiming) == 0;
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  event->last = std::make_shared<CUevent_st::Moment>();
  event->recorded = true;
  if (stream && stream->capturing) {
    auto& nodes = stream->capturing->nodes(stream);
    *event->last = {.graph = stream->capturing, .stream = stream, .after = nodes.size()};
    nodes.push_back({.work = nullptr, .record = event->last, .wait = nullptr, .launched = nullptr});
    return cudaSuccess;
  }
  return do_on(stream, [moment = event->last] { *moment = {.reached = true, .time = now()}; });
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return wait_until([=] { return event->last->reached; });
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (event->last->graph) return cudaErrorCapturedEvent;
  if (!event->last->reached) progress();
  return event->last->reached ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  for (cudaEvent_t event : {from, to})
    if (!event->timed || !event->recorded || event->last->graph) return cudaErrorInvalidResourceHandle;
  for (cudaEvent_t event : {from, to})
    if (cudaEventQuery(event) != cudaSuccess) return cudaErrorNotReady;
  *milliseconds = static_cast<float>(to->last->time - from->last->time);
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return g_fault; }
cudaError_t cudaPeekAtLastError() { return g_fault; }
const char* cudaGetErrorName(cudaError_t status) { return status == cudaErrorIllegalAddress ? "cudaErrorIllegalAddress" : "emulated"; }
const char* cudaGetErrorString(cudaError_t status) {
  return status == cudaErrorIllegalAddress ? "an illegal memory access was encountered" : "the emulated runtime ran out of memory";
}
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
  std::snprintf(id, static_cast<std::size_t>(length), "emulated:%02x:00.0", static_cast<unsigned>(tessera::emulator::bus_of(device)));
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  *properties = {};
  properties->uuid.bytes[15] = static_cast<char>(device);
  std::strcpy(properties->name, "emulator");
  properties->major = g_capability.major, properties->minor = g_capability.minor;
  properties->sharedMemPerBlockOptin = tessera::emulator::shared_memory_limit();
  properties->multiProcessorCount = 4;
  properties->totalGlobalMem = device_memory;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = 4;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = g_capability.major;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = g_capability.minor;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(tessera::emulator::shared_memory_limit());
      return cudaSuccess;
    default:
      return cudaErrorInvalidValue;  // one that nobody asked for so far
  }
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  attributes->binaryVersion = attributes->ptxVersion = 10 * g_capability.major + g_capability.minor;
  return g_fault;
}
cudaError_t cudaMemGetInfo(std::size_t* available, std::size_t* total) {
  *available = *total = device_memory;
  return cudaSuccess;
}
}
