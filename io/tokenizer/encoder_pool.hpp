// Workers side by side: a process and a thread each.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "io/tokenizer/tokenizer.hpp"

namespace tessera::io {

class EncoderPool {
 public:
  using Work = std::function<std::vector<Encoded>(Tokenizer&)>;
  /// `workers`: 0: one a core. Starts the first worker; others start with the work that they take. Errors of a worker come with the future
  /// of its work.
  EncoderPool(TokenizerSource source, int workers);
  /// Waits for what is under way; what was not begun is dropped.
  ~EncoderPool();
  EncoderPool(const EncoderPool&) = delete;
  EncoderPool& operator=(const EncoderPool&) = delete;

  const TokenizerFacts& facts() const { return facts_; }
  std::size_t workers() const { return threads_.size(); }
  std::future<std::vector<Encoded>> submit(Work work);

 private:
  using Task = std::packaged_task<std::vector<Encoded>(std::optional<Tokenizer>&)>;
  void serve(std::optional<Tokenizer> tokenizer);
  TokenizerSource source_;
  TokenizerFacts facts_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  bool ends_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace tessera::io
