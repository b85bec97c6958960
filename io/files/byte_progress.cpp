#include "io/files/byte_progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/progress.hpp"
#include "base/types.hpp"

namespace tessera::io {

namespace {
constexpr double pause_seconds = 0.2, window_seconds = 5, least_window = 1;
}  // namespace

ByteProgress::ByteProgress(std::string label, std::int64_t total_bytes, bool wanted, std::vector<double> costs, double (*clock)())
    : label_(std::move(label)), total_(total_bytes), shown_(wanted && ::isatty(STDERR_FILENO)), costs_(std::move(costs)), clock_(clock) {
  recent_.emplace_back(clock_(), 0);
}

ByteProgress::~ByteProgress() {
  if (last_ > 0) std::fputs("\r\033[K", stderr);
}

void ByteProgress::set(std::int64_t done_bytes) {
  done_ = done_bytes;
  const double now = clock_();
  if (now - recent_.back().first < pause_seconds) return;
  recent_.emplace_back(now, done_);
  while (recent_.size() > 2 && now - recent_[1].first > window_seconds) recent_.pop_front();
  if (!shown_) return;
  last_ = now;
  std::fputs(("\r\033[K" + line()).c_str(), stderr);
}

void ByteProgress::next_pass() {
  rate_before_ = work_rate();
  done_ = 0, pass_ = std::min(pass_ + 1, costs_.size() - 1);
  recent_.assign(1, {clock_(), 0});
}

/// Bytes times their cost, a second: over the last seconds of this pass, or until it has run for long enough, of the pass before.
double ByteProgress::work_rate() const {
  const auto& [from, bytes] = recent_.front();
  const double seconds = recent_.back().first - from;
  if (seconds <= 0 || (seconds < least_window && rate_before_ > 0)) return rate_before_;
  return static_cast<double>(recent_.back().second - bytes) * costs_[pass_] / seconds;
}

std::string ByteProgress::line() const {
  const double work_a_second = work_rate();
  const std::string rate = human_bytes(work_a_second / costs_[pass_]) + "/s";
  if (total_ <= 0) return fmt::format("{}: {}, {}", label_, human_bytes(static_cast<double>(done_)), rate);
  const auto total = static_cast<double>(total_);
  double all = 0, left = std::max(total - static_cast<double>(done_), 0.0) * costs_[pass_];
  for (std::size_t pass = 0; pass < costs_.size(); ++pass) all += total * costs_[pass], left += pass > pass_ ? total * costs_[pass] : 0;
  const std::string text = fmt::format("{}: {:3.0f} %, {}", label_, 100 * (all - left) / all, rate);
  return work_a_second > 0 ? fmt::format("{}, {} left", text, human_duration(left / work_a_second)) : text;
}

}  // namespace tessera::io
