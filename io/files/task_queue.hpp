// A few pieces of disk work at once: the disk stays busy while checksums are computed.
#pragma once
#include <deque>
#include <future>
#include <utility>

namespace tessera::io {

/// Runs tasks on threads, at most `depth` at a time. push() and wait() pass on the first error of a task; the destructor waits for all.
class TaskQueue {
 public:
  template <class F>
  void push(F&& task) {
    if (under_way_.size() == depth) pop();
    under_way_.push_back(std::async(std::launch::async, std::forward<F>(task)));
  }
  void wait() {
    while (!under_way_.empty()) pop();
  }

 private:
  static constexpr std::size_t depth = 4;
  void pop() {
    auto first = std::move(under_way_.front());
    under_way_.pop_front();
    first.get();
  }
  std::deque<std::future<void>> under_way_;
};

}  // namespace tessera::io
