#include "base/log.hpp"

#include <fmt/format.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include "base/printable.hpp"

namespace tessera {
namespace {
int g_rank = 0, g_ranks = 1;
std::string g_host;  // of the rank, where there are several

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

void log_identity(int rank, int ranks, const std::string& host) { g_rank = rank, g_ranks = ranks, g_host = host; }

void log_stamps(const std::string& host) { logger().set_pattern(fmt::format("%Y-%m-%d %H:%M:%S {}: %v", host)); }

void log_threshold(LogLevel lowest) {
  logger().set_level(lowest == LogLevel::debug     ? spdlog::level::debug
                     : lowest == LogLevel::info    ? spdlog::level::info
                     : lowest == LogLevel::warning ? spdlog::level::warn
                                                   : spdlog::level::err);
}

void put_text(const std::string& text) { fmt::print("{}", printable(text)); }

void log_line(LogLevel level, const std::string& text) {
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

}  // namespace tessera
