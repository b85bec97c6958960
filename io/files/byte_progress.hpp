// A progress line for work that is measured in bytes.
#pragma once
#include <cstdint>
#include <string>

namespace tessera::io {

/// One line on standard error, rewritten a few times a second and gone at the end; silent where that is no terminal.
class ByteProgress {
 public:
  /// 0 bytes in total: unknown, as of a pipe.
  ByteProgress(std::string label, std::int64_t total_bytes, bool wanted = true);
  ~ByteProgress();
  ByteProgress(const ByteProgress&) = delete;
  ByteProgress& operator=(const ByteProgress&) = delete;
  void add(std::int64_t bytes) { set(done_ + bytes); }
  void set(std::int64_t done_bytes);
  bool shown() const { return shown_; }

 private:
  std::string label_;
  std::int64_t total_, done_ = 0;
  bool shown_;
  double start_, last_ = 0;  // seconds
};

}  // namespace tessera::io
