#include "base/end_report.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <iterator>
#include <random>
#include <string_view>

#include "base/clock.hpp"
#include "base/own_files.hpp"

namespace tessera {
namespace {

// The process's own: it ends once. All memory that report_end needs is there before.
std::string g_path, g_path_of_saves, g_unfinished;
std::atomic<bool> g_reported{false};
std::atomic<std::int64_t> g_saved{-1};
std::int64_t g_copied = -1;
double g_copied_told = 0;

char* append(char* at, std::string_view text) { return std::copy(text.begin(), text.end(), at); }

bool write_file(const char* path, std::string_view text) noexcept {
  const int file = create_file(path, 0644);
  if (file < 0) return false;
  const bool whole = write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  // Over a network the last error may come with close.
  return close(file) == 0 && whole;
}

void tell_progress() {
  std::string text;
  if (g_saved.load() >= 0) text += fmt::format("saved {}\n", g_saved.load());
  if (g_copied >= 0) text += fmt::format("copied {}\n", g_copied);
  if (write_file(g_unfinished.c_str(), text) && rename(g_unfinished.c_str(), g_path_of_saves.c_str()) == 0) return;
  unlink(g_unfinished.c_str());
}

}  // namespace

void prepare_end_report(const std::string& path) {
  char host[256] = {};
  gethostname(host, sizeof(host) - 1);
  // Processes in PID namespaces of their own may have one number.
  g_unfinished = fmt::format("{}.{}.{}.{:08x}", path, host, getpid(), std::random_device()());
  g_path = path, g_path_of_saves = path + ".saved";
  g_reported = false, g_saved = g_copied = -1, g_copied_told = 0;
}

void forget_end_report() {
  g_path.clear();
  g_reported = false, g_saved = -1;
}

void note_saved(std::int64_t step, bool told) {
  g_saved.store(step);
  if (!g_path.empty() && told) tell_progress();
}

void note_copied(std::int64_t step, bool told) {
  g_copied = step;
  if (g_path.empty() || !told || now_seconds() - g_copied_told < 1) return;
  g_copied_told = now_seconds();
  tell_progress();
}

void report_end(int status) noexcept {
  if (g_path.empty() || g_reported.exchange(true)) return;
  if (access(g_path.c_str(), F_OK) == 0) return;
  // Room for both words, two numbers of any size, and the end of each line.
  char text[80], *at = append(text, "status ");
  at = append(std::to_chars(at, at + 12, status).ptr, "\nsaved ");
  const std::int64_t saved = g_saved.load();
  at = saved < 0 ? append(at, "nothing") : std::to_chars(at, at + 20, saved).ptr;
  *at++ = '\n';
  // A link is made or refused in one step, also on NFS. A file system that has none gets the last end that was reported.
  if (write_file(g_unfinished.c_str(), {text, at}) && link(g_unfinished.c_str(), g_path.c_str()) != 0 && errno != EEXIST &&
      rename(g_unfinished.c_str(), g_path.c_str()) == 0)
    return;
  unlink(g_unfinished.c_str());
}

void leave_end_report_to_others() noexcept { g_reported.store(true); }

}  // namespace tessera
