// A few pieces of disk work at once: the disk stays busy while checksums are computed.
#pragma once
#include <array>
#include <deque>
#include <future>
#include <utility>

#include "io/files/page_buffer.hpp"

namespace tessera::io {

/// Runs tasks on threads, at most `depth` at a time, each with a memory that no other under way has. push() and wait() pass on the first
/// error of a task; the destructor waits for all.
class TaskQueue {
 public:
  /// A task takes a PageBuffer&.
  template <class F>
  void push(F&& task) {
    if (under_way_.size() == depth) pop();
    // They end in order, so that the one `depth` before has ended.
    under_way_.push_back(std::async(std::launch::async, std::forward<F>(task), std::ref(memory_[pushed_++ % depth])));
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
  std::size_t pushed_ = 0;
  std::array<PageBuffer, depth> memory_;
  std::deque<std::future<void>> under_way_;  // ends before the memory does
};

}  // namespace tessera::io
