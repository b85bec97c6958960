#include "topology/failure/stacks.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string_view>
#include <vector>

#include "base/clock.hpp"
#include "topology/failure/held_thread.hpp"
#include "topology/failure/unwind.hpp"

namespace tessera {
namespace {

constexpr std::size_t most_threads = 256, most_shown = 24;

std::string read_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// By the letter of /proc/PID/stat.
std::string_view state_word(char letter) {
  switch (letter) {
    case 'R':
      return "runs";
    case 'S':
      return "sleeps";
    case 'D':
      return "waits in the kernel, for a disk or a device";
    case 'T':
      return "stopped";
    case 't':
      return "held by a debugger";
    case 'Z':
    case 'X':
      return "has ended";
    default:
      return "in an unknown state";
  }
}

std::string state_of(const std::string& task) {
  const std::string stat = read_line(task + "/stat");
  const std::size_t end = stat.rfind(") ");
  if (end == stat.npos) return "has ended";
  const std::string where = read_line(task + "/wchan");
  std::string text(state_word(stat[end + 2]));
  if (!where.empty() && where != "0") text += " in " + where;
  return text;
}

std::vector<pid_t> threads_of(pid_t process) {
  std::vector<pid_t> threads;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(fmt::format("/proc/{}/task", process), error))
    if (threads.size() < most_threads) threads.push_back(std::atoi(entry.path().filename().c_str()));
  std::ranges::sort(threads);
  return threads;
}

}  // namespace

std::string read_stacks(pid_t process, double seconds) {
  const double deadline = now_seconds() + seconds;
  const std::vector<pid_t> threads = threads_of(process);
  if (threads.empty()) return fmt::format("\n  process {} is gone", process);
  // States first: who is held looks otherwise.
  std::vector<std::string> states;
  for (pid_t thread : threads) {
    const std::string task = fmt::format("/proc/{}/task/{}", process, thread);
    states.push_back(fmt::format("{}, {}", read_line(task + "/comm"), state_of(task)));
  }
  const std::unique_ptr<Unwinder> unwinder = make_unwinder(process);
  std::string why = unwinder ? "" : "this build has no libdw";
  // Threads of a pool are at the same.
  std::vector<std::pair<std::string, std::vector<pid_t>>> alike;
  for (std::size_t i = 0; i < threads.size(); ++i) {
    std::string text = states[i];
    if (unwinder && why.empty() && now_seconds() < deadline) {
      const HeldThread held(threads[i], deadline);
      if (held.held())
        text += unwinder->stack(threads[i]);
      else if (held.error() == EPERM)
        why = fmt::format("the system does not allow this process to read it (ptrace: {})", std::strerror(EPERM));
      else
        text += fmt::format(" (not to be held: {})", std::strerror(held.error()));
    }
    const auto same = std::ranges::find(alike, text, [](const auto& one) { return one.first; });
    if (same == alike.end())
      alike.push_back({std::move(text), {threads[i]}});
    else
      same->second.push_back(threads[i]);
  }
  std::string all;
  for (std::size_t i = 0; i < std::min(alike.size(), most_shown); ++i)
    all += fmt::format("\n  thread{} {}: {}", alike[i].second.size() == 1 ? "" : "s", fmt::join(alike[i].second, ", "), alike[i].first);
  if (alike.size() > most_shown) all += fmt::format("\n  and {} more", alike.size() - most_shown);
  if (!why.empty()) all += fmt::format("\n  no stacks: {}", why);
  return all;
}

}  // namespace tessera
