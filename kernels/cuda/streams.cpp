#include "kernels/cuda/streams.hpp"

#include <cuda.h>

#include <algorithm>
#include <string>

#include "base/check.hpp"
#include "kernels/cuda/mark.hpp"

namespace tessera::cuda {
namespace {
cudaEvent_t make_event() {
  cudaEvent_t event = nullptr;
  TESSERA_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return event;
}

/// The stream goes on once *at has reached `value`. A call of the driver, which the program finds at run time: it also starts without one.
void wait_for_value(cudaStream_t stream, const std::int64_t* at, std::int64_t value) {
  using Call = CUresult(CUstream, CUdeviceptr, cuuint64_t, unsigned);
  static Call* const call = [] {
    void* address = nullptr;
    cudaDriverEntryPointQueryResult found{};
    TESSERA_CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuStreamWaitValue64", &address, 12000, cudaEnableDefault, &found));
    return found == cudaDriverEntryPointSuccess ? reinterpret_cast<Call*>(address) : nullptr;
  }();
  if (!call)
    throw Error(ExitCode::environment, "this driver has no cuStreamWaitValue64, by which a GPU waits for its host: install a newer one");
  const CUresult result = call(stream, reinterpret_cast<CUdeviceptr>(at), static_cast<cuuint64_t>(value), CU_STREAM_WAIT_VALUE_GEQ);
  if (result != CUDA_SUCCESS)
    throw Error(ExitCode::environment, "cuStreamWaitValue64 failed with the driver's error " + std::to_string(static_cast<int>(result)));
}
}  // namespace

Streams::Streams(const std::vector<StreamKind>& lanes) : lanes_(lanes.size()) {
  TESSERA_CUDA_CHECK(cudaHostAlloc(reinterpret_cast<void**>(&marks_), 2 * lanes.size() * sizeof(std::int64_t), cudaHostAllocDefault));
  made_ = marks_ + lanes.size();
  clear_marks();
  forget_calls();
  int least = 0, greatest = 0;  // the greatest priority is the lowest number
  TESSERA_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  for (std::size_t l = 0; l < lanes.size(); ++l) {
    if (lanes[l] == StreamKind::none) continue;
    Lane& lane = lanes_[l];
    const int priority = lanes[l] == StreamKind::urgent ? greatest : least;
    TESSERA_CUDA_CHECK(cudaStreamCreateWithPriority(&lane.stream, cudaStreamNonBlocking, priority));
    for (std::size_t i = 0; i < ring; ++i) lane.events.push_back(make_event());
    lane.joined = make_event();
  }
}

Streams::~Streams() {
  for (Lane& lane : lanes_) {
    for (cudaEvent_t event : lane.events) cudaEventDestroy(event);
    if (lane.joined) cudaEventDestroy(lane.joined);
    if (lane.stream) cudaStreamDestroy(lane.stream);
    lane.worker.reset();  // it writes to the memory that is freed next
  }
  if (marks_) cudaFreeHost(marks_);
}

void Streams::record(std::size_t lane, std::int64_t count) const {
  TESSERA_CUDA_CHECK(cudaEventRecord(lanes_[lane].events[static_cast<std::size_t>(count) % ring], lanes_[lane].stream));
}

void Streams::wait(std::size_t lane, std::size_t other, std::int64_t count) const {
  TESSERA_CUDA_CHECK(cudaStreamWaitEvent(lanes_[lane].stream, lanes_[other].events[static_cast<std::size_t>(count) % ring], 0));
}

void Streams::fork() const {
  TESSERA_CUDA_CHECK(cudaEventRecord(lanes_[0].joined, lanes_[0].stream));
  for (std::size_t l = 1; l < lanes_.size(); ++l)
    if (lanes_[l].stream) TESSERA_CUDA_CHECK(cudaStreamWaitEvent(lanes_[l].stream, lanes_[0].joined, 0));
}

void Streams::join() const {
  for (std::size_t l = 1; l < lanes_.size(); ++l) {
    if (!lanes_[l].stream) continue;
    TESSERA_CUDA_CHECK(cudaEventRecord(lanes_[l].joined, lanes_[l].stream));
    TESSERA_CUDA_CHECK(cudaStreamWaitEvent(lanes_[0].stream, lanes_[l].joined, 0));
  }
}

std::unique_ptr<Graph> Streams::capture(const std::function<void()>& issue, std::size_t most) const {
  // Of this thread: NCCL's and cuBLASLt's own threads go on as they like.
  TESSERA_CUDA_CHECK(cudaStreamBeginCapture(lanes_[0].stream, cudaStreamCaptureModeThreadLocal));
  try {
    issue();
    return end_capture(most);
  } catch (...) {  // whatever it was, the capture must not outlive it
    cudaGraph_t graph = nullptr;
    cudaStreamEndCapture(lanes_[0].stream, &graph);  // an error is on its way already; of a capture that has ended this one too
    if (graph) cudaGraphDestroy(graph);
    cudaGetLastError();  // or the next launch would report it
    throw;
  }
}

std::unique_ptr<Graph> Streams::end_capture(std::size_t most) const {
  cudaGraph_t graph = nullptr;
  TESSERA_CUDA_CHECK(cudaStreamEndCapture(lanes_[0].stream, &graph));
  cudaGraphExec_t made = nullptr;
  std::size_t nodes = 0;
  cudaError_t status = cudaGraphGetNodes(graph, nullptr, &nodes);
  if (status == cudaSuccess && nodes <= most) {
    // Without this flag all nodes run at the priority of the stream that launches the graph.
    status = cudaGraphInstantiate(&made, graph, cudaGraphInstantiateFlagUseNodePriority);
  }
  cudaGraphDestroy(graph);
  TESSERA_CUDA_CHECK(status);
  if (nodes > most)
    throw Error(ExitCode::environment,
                "its graph would have " + std::to_string(nodes) + " nodes, and " + std::to_string(most) + " are the most");
  auto whole = std::make_unique<Graph>(made, nodes);
  // Now, and not at the first launch: where its memory cannot be had, the tasks can still be issued one by one.
  TESSERA_CUDA_CHECK(cudaGraphUpload(made, lanes_[0].stream));
  return whole;
}

Graph::~Graph() { cudaGraphExecDestroy(graph_); }

void Graph::launch(cudaStream_t stream) const { TESSERA_CUDA_CHECK(cudaGraphLaunch(graph_, stream)); }

void Streams::call(std::size_t lane, HostCall& call) {
  Lane& on = lanes_[lane];
  if (!on.worker) on.worker = std::make_unique<HostWorker>(made_ + lane);
  call.worker = on.worker.get(), call.number = ++on.calls;
  const auto wake = [](void* data) {
    const auto& woken = *static_cast<const HostCall*>(data);
    woken.worker->wake(woken);
  };
  TESSERA_CUDA_CHECK(cudaLaunchHostFunc(on.stream, wake, &call));
  wait_for_value(on.stream, made_ + lane, call.number);
}

void Streams::forget_calls() {
  for (Lane& lane : lanes_) lane.calls = 0;
  std::fill_n(made_, lanes_.size(), 0);
}

void Streams::mark(std::size_t lane, std::int64_t number) const { cuda::mark(lanes_[lane].stream, marks_ + lane, number); }

std::int64_t Streams::reached(std::size_t lane) const { return *static_cast<volatile std::int64_t*>(marks_ + lane); }

void Streams::clear_marks() const { std::fill_n(marks_, lanes_.size(), 0); }

bool Streams::done(std::size_t lane, std::int64_t count) const {
  const cudaError_t status = cudaEventQuery(lanes_[lane].events[static_cast<std::size_t>(count) % ring]);
  if (status == cudaErrorNotReady) {
    cudaGetLastError();  // by the guide it is not kept as one; where it is, the next launch would report it
    return false;
  }
  TESSERA_CUDA_CHECK(status);
  return true;
}

}  // namespace tessera::cuda
