// Host code that a stream waits for, off the threads of the CUDA driver.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>

namespace tessera::cuda {

/// A piece of host code that a stream calls. Whoever gives it to Streams::call keeps it for as long as the stream may come to it.
struct HostCall {
  void (*function)(void*) = nullptr;
  void* data = nullptr;
  class HostWorker* worker = nullptr;  ///< set by Streams::call, as is
  std::int64_t number = 0;             ///< which of its lane's calls this is
};

/// A thread that makes the calls of one lane, in order. CUDA may run the host functions of all streams on one thread, and NCCL has such
/// functions inside graphs: a long one would hold collectives up, so streams only wake this thread and wait for `done`.
class HostWorker {
 public:
  /// `done`: in memory that the GPU reads; becomes the number of each call once it has been made.
  explicit HostWorker(std::int64_t* done);
  /// Finishes the call under way; those behind it are not made.
  ~HostWorker();
  HostWorker(const HostWorker&) = delete;
  HostWorker& operator=(const HostWorker&) = delete;

  void wake(const HostCall& call);

 private:
  void run();

  std::int64_t* done_;
  std::mutex mutex_;
  std::condition_variable woken_;
  std::deque<HostCall> calls_;
  bool ends_ = false;
  std::thread thread_;  ///< last: it reads the others
};

}  // namespace tessera::cuda
