#include "base/progress_line.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#include "base/progress.hpp"

namespace tessera {

ProgressLine::ProgressLine(std::string what, double parts, double (*clock)())
    : what_(std::move(what)), clock_(clock), parts_(parts), begin_(clock()), terminal_(isatty(STDERR_FILENO)) {}

ProgressLine::~ProgressLine() {
  if (shown_ > 0) std::fputs("\r\033[K", stderr);
}

void ProgressLine::show(double share) {
  constexpr double silent_seconds = 1, pause_seconds = 0.1;
  const double now = clock_(), done = (done_ + share) / parts_;
  if (!terminal_ || done <= 0 || now - begin_ < silent_seconds || now - shown_ < pause_seconds) return;
  shown_ = now;
  std::fputs(fmt::format("\r\033[K{} {:.0f} %, {} left", what_, 100 * done, human_duration((now - begin_) * (1 - done) / done)).c_str(),
             stderr);
}

}  // namespace tessera
