// A progress line for work that is measured in bytes.
#pragma once
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.hpp"

namespace tessera::io {

/// One line on standard error, rewritten a few times a second and gone at the end; silent where that is no terminal.
class ByteProgress {
 public:
  /// 0 bytes in total: unknown, as of a pipe. Work in several passes over these bytes has a cost for each, relative to the others; only
  /// until a pass has shown its own rate does the time left go by them. `clock` says seconds: tests have one of their own.
  ByteProgress(std::string label, std::int64_t total_bytes, bool wanted = true, std::vector<double> costs = {1},
               double (*clock)() = now_seconds);
  ~ByteProgress();
  ByteProgress(const ByteProgress&) = delete;
  ByteProgress& operator=(const ByteProgress&) = delete;
  void add(std::int64_t bytes) { set(done_ + bytes); }
  void set(std::int64_t done_bytes);
  /// The pass under way is done.
  void next_pass();
  /// What the line says now: "tokenize:  40 %, 1.20 MiB/s, 12 s left".
  std::string line() const;
  bool shown() const { return shown_; }

 private:
  double work_rate() const;
  std::string label_;
  std::int64_t total_, done_ = 0;
  bool shown_;
  std::vector<double> costs_;  ///< of a byte in each pass
  std::size_t pass_ = 0;
  double (*clock_)();
  double last_ = 0;                                     ///< seconds
  std::deque<std::pair<double, std::int64_t>> recent_;  ///< seconds and bytes of this pass, over the last seconds
  double rate_before_ = 0;                              ///< of work, in the pass before
};

}  // namespace tessera::io
