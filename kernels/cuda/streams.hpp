// Streams that wait for each other's progress.
#pragma once
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "kernels/cuda/host_worker.hpp"
#include "kernels/cuda/runtime.hpp"

namespace tessera::cuda {

/// What streams were given while they were captured, to be given again by one call.
class Graph {
 public:
  Graph(cudaGraphExec_t graph, std::size_t nodes) : graph_(graph), nodes_(nodes) {}
  ~Graph();
  Graph(const Graph&) = delete;
  void launch(cudaStream_t stream) const;
  std::size_t nodes() const { return nodes_; }

 private:
  cudaGraphExec_t graph_;
  std::size_t nodes_;
};

/// Of a lane: none where it has no tasks, since each stream takes one of CUDA's hardware queues; urgent before usual ones, so that a
/// collective's few blocks need not wait until a product's have all been dealt out.
enum class StreamKind : std::uint8_t { none, usual, urgent };

/// A stream a lane, and for each a ring of events: event n is recorded after the lane's n-th task. The first lane has one.
class Streams {
 public:
  explicit Streams(const std::vector<StreamKind>& lanes);
  ~Streams();
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;

  cudaStream_t operator[](std::size_t lane) const { return lanes_[lane].stream; }
  /// Events of a lane that are kept: what is more than so many tasks behind the last one can no longer be asked for.
  static constexpr std::size_t ring = 256;

  /// The lane's `count`-th task of the run has been issued.
  void record(std::size_t lane, std::int64_t count) const;
  /// What is issued on `lane` from now on waits for the `count`-th task of `other`, which is among its last `ring` ones.
  void wait(std::size_t lane, std::size_t other, std::int64_t count) const;
  /// All lanes wait for what lane 0 has been given so far.
  void fork() const;
  /// Lane 0 waits for all lanes.
  void join() const;
  /// What `issue` gives the lanes, as a graph: nothing of it is done. Lanes must begin with fork and end with join. Throws what CUDA says
  /// where something was given that no graph can hold, and where there would be more nodes than `most`; lanes take work again then.
  std::unique_ptr<Graph> capture(const std::function<void()>& issue, std::size_t most = std::numeric_limits<std::size_t>::max()) const;

  /// When the lane gets there, a thread of its own makes the call, also inside a graph, and the lane goes on after it. The call must not
  /// call CUDA. Lanes that begin a run, a capture or the launch of a graph forget the calls before it, which have been made.
  void call(std::size_t lane, HostCall& call);
  void forget_calls();

  /// When the lane gets there, reached(lane) says `number`; also inside a graph.
  void mark(std::size_t lane, std::int64_t number) const;
  std::int64_t reached(std::size_t lane) const;
  void clear_marks() const;

  /// Whether the device has done the lane's `count`-th task.
  bool done(std::size_t lane, std::int64_t count) const;

 private:
  std::unique_ptr<Graph> end_capture(std::size_t most) const;

  struct Lane {
    cudaStream_t stream = nullptr;
    std::vector<cudaEvent_t> events;
    cudaEvent_t joined = nullptr;
    std::int64_t calls = 0;  ///< since forget_calls
    std::unique_ptr<HostWorker> worker;
  };
  std::vector<Lane> lanes_;
  std::int64_t *marks_ = nullptr, *made_ = nullptr;  ///< in pinned memory, one a lane; made_: calls of the host
};

}  // namespace tessera::cuda
