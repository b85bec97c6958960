#include "kernels/cuda/host_worker.hpp"

#include <atomic>

namespace tessera::cuda {

HostWorker::HostWorker(std::int64_t* done) : done_(done), thread_([this] { run(); }) {}

HostWorker::~HostWorker() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  woken_.notify_one();
  thread_.join();
}

void HostWorker::wake(const HostCall& call) {
  {
    const std::lock_guard lock(mutex_);
    calls_.push_back(call);
  }
  woken_.notify_one();
}

void HostWorker::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    woken_.wait(lock, [this] { return ends_ || !calls_.empty(); });
    if (ends_) return;
    const HostCall call = calls_.front();
    calls_.pop_front();
    lock.unlock();
    call.function(call.data);
    std::atomic_ref(*done_).store(call.number, std::memory_order_release);
    lock.lock();
  }
}

}  // namespace tessera::cuda
