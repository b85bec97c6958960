#include "base/open_files.hpp"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>

namespace tessera {
namespace {

constexpr rlim_t most_files = 1 << 16;  // programs that are started may close all that there could be, one by one

}  // namespace

void raise_open_files() noexcept {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t wanted = std::min(limit.rlim_max, most_files);
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = wanted;
  setrlimit(RLIMIT_NOFILE, &limit);  // where it fails, the limit stays, and who meets it says so
}

std::string open_advice(int error_number) {
  if (error_number == ENFILE)
    return "The system has as many files open as it can (fs.file-max): end other programs, or ask the administrator.";
  if (error_number != EMFILE) return "Check the path and its permissions.";
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return "This process has as many files open as it may (ulimit -n): raise the limit.";
  return fmt::format(
      "This process may have {} files open, and the system lets it have {} (RLIMIT_NOFILE). Raise the limit before the start, for example "
      "ulimit -n {} (the administrator or the job's request sets more), or name fewer files.",
      limit.rlim_cur, limit.rlim_max, std::max<rlim_t>(4096, 4 * limit.rlim_max));
}

}  // namespace tessera
