#include "io/files/byte_progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/clock.hpp"
#include "base/progress.hpp"
#include "base/types.hpp"

namespace tessera::io {

ByteProgress::ByteProgress(std::string label, std::int64_t total_bytes, bool wanted)
    : label_(std::move(label)), total_(total_bytes), shown_(wanted && ::isatty(STDERR_FILENO)), start_(now_seconds()) {}

ByteProgress::~ByteProgress() {
  if (last_ > 0) std::fputs("\r\033[K", stderr);
}

void ByteProgress::set(std::int64_t done_bytes) {
  done_ = done_bytes;
  double now = now_seconds();
  if (!shown_ || now - std::max(last_, start_) < 0.2) return;
  last_ = now;
  double rate = static_cast<double>(done_) / (now - start_), left = static_cast<double>(std::max<std::int64_t>(total_ - done_, 0));
  std::string line = fmt::format("\r\033[K{}: ", label_);
  if (total_ > 0)
    line += fmt::format("{:3.0f} %, {}/s", 100.0 * static_cast<double>(done_) / static_cast<double>(total_), human_bytes(rate));
  else
    line += fmt::format("{}, {}/s", human_bytes(static_cast<double>(done_)), human_bytes(rate));
  if (total_ > 0 && rate > 0) line += fmt::format(", {} left", human_duration(left / rate));
  std::fputs(line.c_str(), stderr);
}

}  // namespace tessera::io
