#include "base/log.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#include "base/own_files.hpp"

#include "base/printable.hpp"

namespace tessera {
namespace {
int g_rank = 0, g_ranks = 1;
bool g_identified = false;
std::string g_host;  // of the rank, where there are several

std::string g_afterwards;  // the file in which the log goes on without its reader

/// Puts the file in the place of standard error. False where there is none, or it cannot be written.
bool turn_to_file() {
  std::clearerr(stderr);
  if (g_afterwards.empty()) return false;
  const std::string path = std::exchange(g_afterwards, "");
  const int file = update_file(path.c_str(), 0644);
  if (file < 0) return false;
  const bool turned = fcntl(file, F_SETFL, O_APPEND) == 0 && dup2(file, STDERR_FILENO) >= 0;
  close(file);
  return turned;
}

spdlog::logger& logger() {
  static std::shared_ptr<spdlog::logger> l = [] {
    auto made = std::make_shared<spdlog::logger>("tessera", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("%v");
    made->flush_on(spdlog::level::debug);
    return made;
  }();
  return *l;
}
}  // namespace

void log_identity(int rank, int ranks, const std::string& host) { g_rank = rank, g_ranks = ranks, g_host = host, g_identified = true; }
bool log_knows_rank() { return g_identified; }

void log_outlives_its_reader(const std::string& path) { g_afterwards = path; }

void log_stamps(const std::string& host) { logger().set_pattern(fmt::format("%Y-%m-%d %H:%M:%S {}: %v", host)); }

void log_anew() {
  g_rank = 0, g_ranks = 1, g_host.clear(), g_identified = false;
  g_afterwards.clear();
  logger().set_pattern("%v");
  logger().set_level(spdlog::level::info);
}

void put_text(const std::string& text) { fmt::print("{}", printable(text)); }

namespace {
/// What was printed before stands before what is said, also in a file that takes both. It never waits: whoever reads a pipe may have
/// stopped, and then an error matters more.
void flush_output() {
  pollfd output{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
  if (poll(&output, 1, 0) != 1 || ftrylockfile(stdout) != 0) return;
  fflush_unlocked(stdout);
  funlockfile(stdout);
}

void write_line(LogLevel level, const std::string& text) {
  const std::string message = printable(text);
  std::string who = g_ranks > 1 ? fmt::format("rank {}{}{}: ", g_rank, g_host.empty() ? "" : " on ", g_host) : "";
  switch (level) {
    case LogLevel::debug:
      if (g_rank == 0) logger().debug("{}", message);
      break;
    case LogLevel::info:
      if (g_rank == 0) logger().info("{}", message);
      break;
    case LogLevel::warning:
      logger().warn("tessera: {}warning: {}", who, message);
      break;
    case LogLevel::error:
      logger().error("tessera: {}error: {}", who, message);
      break;
  }
}
}  // namespace

void log_line(LogLevel level, const std::string& message) {
  flush_output();
  write_line(level, message);
  if (!std::ferror(stderr) || !turn_to_file()) return;
  write_line(LogLevel::warning, "standard error can no longer be written, because its reader has ended: the log continues here");
  write_line(level, message);
}

}  // namespace tessera
