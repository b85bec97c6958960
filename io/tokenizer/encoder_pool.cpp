#include "io/tokenizer/encoder_pool.hpp"

#include <algorithm>
#include <utility>

#include "base/check.hpp"
#include "base/control_groups.hpp"

namespace tessera::io {

EncoderPool::EncoderPool(TokenizerSource source, int workers) : source_(std::move(source)) {
  std::optional<Tokenizer> first(std::in_place, source_);
  facts_ = first->facts();
  const int cores = usable_threads();
  for (int i = 0; i < (workers > 0 ? workers : cores); ++i)
    threads_.emplace_back([this, tokenizer = std::exchange(first, std::nullopt)]() mutable { serve(std::move(tokenizer)); });
}

EncoderPool::~EncoderPool() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
    tasks_.clear();
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

std::future<std::vector<Encoded>> EncoderPool::submit(Work work) {
  Task task([this, work = std::move(work)](std::optional<Tokenizer>& tokenizer) {
    if (!tokenizer) {
      tokenizer.emplace(source_);
      if (tokenizer->facts().digest != facts_.digest)
        fail(ExitCode::data, "{}/tokenizer.json changed while it was used. Run again when it is complete.", source_.folder);
    }
    try {
      return work(*tokenizer);
    } catch (...) {
      tokenizer.reset();  // its worker may have ended: other work begins with a new one
      throw;
    }
  });
  std::future<std::vector<Encoded>> result = task.get_future();
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  changed_.notify_one();
  return result;
}

void EncoderPool::serve(std::optional<Tokenizer> tokenizer) {
  for (;;) {
    Task task;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return ends_ || !tasks_.empty(); });
      if (ends_) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task(tokenizer);
  }
}

}  // namespace tessera::io
