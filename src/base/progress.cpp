#include "base/progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>

#include "base/log.hpp"
#include "base/types.hpp"

namespace tessera {

std::string human_duration(double seconds) {
  const auto s = static_cast<std::int64_t>(seconds + 0.5);
  if (s >= 3600) return fmt::format("{} h {:02} min", s / 3600, s % 3600 / 60);
  if (s >= 60) return fmt::format("{} min {:02} s", s / 60, s % 60);
  return fmt::format("{} s", s);
}

Progress::Progress(std::int64_t first_step, std::int64_t steps, std::int64_t log_every, std::string memory,
                   std::function<double(std::int64_t)> left)
    : steps_(steps),
      done_(first_step),
      log_every_(log_every),
      memory_(std::move(memory)),
      terminal_(isatty(STDERR_FILENO)),
      left_(left ? std::move(left) : [steps](std::int64_t done) { return static_cast<double>(steps - done); }) {}

void Progress::step(const StepFigures& f, std::span<const std::pair<std::string, double>> loss_of_files) {
  done_ = f.step;
  const double seconds = f.seconds / (left_(done_ - 1) - left_(done_));
  seconds_of_unit_ = seconds_of_unit_ == 0 ? seconds : 0.9 * seconds_of_unit_ + 0.1 * seconds;
  if (f.step % log_every_ == 0 || f.step == steps_)
    note(fmt::format("step {:>{}}/{}  loss {:.4f}  grad norm {:.3f}  lr {:.2e}  {} tokens/s  {}  memory {}  left {}", f.step,
                     std::to_string(steps_).size(), steps_, f.loss, f.grad_norm, f.learning_rate, human_count(f.tokens_per_second),
                     mfu_text(f.mfu), memory_, human_duration(seconds_left())));
  if (!loss_of_files.empty() && (f.step % log_every_ == 0 || f.step == steps_)) {
    std::string line = "  loss of files";
    for (const auto& [path, loss] : loss_of_files)
      line += std::isfinite(loss) ? fmt::format("  {} {:.4f}", path, loss) : fmt::format("  {} -", path);
    note(line);
  }
  draw_bar();
}

void Progress::note(const std::string& line) {
  clear_bar();
  info("{}", line);
  draw_bar();
}

void Progress::warn(const std::string& line) {
  clear_bar();
  warning("{}", line);
  draw_bar();
}

void Progress::clear_bar() {
  if (terminal_) std::fputs("\r\033[K", stderr);
}

void Progress::draw_bar() {
  if (!terminal_ || steps_ == 0) return;
  constexpr int width = 30;
  const int filled = static_cast<int>(width * done_ / steps_);
  const std::string bar = std::string(static_cast<std::size_t>(filled), '#') + std::string(static_cast<std::size_t>(width - filled), '.');
  std::fputs(fmt::format("\r\033[K[{}] {}/{} steps, {} left", bar, done_, steps_, human_duration(seconds_left())).c_str(), stderr);
  std::fflush(stderr);
}

void Progress::finish() { clear_bar(); }

}  // namespace tessera
