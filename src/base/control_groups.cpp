#include "base/control_groups.hpp"

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>
#include <thread>

namespace tessera {
namespace {

/// Numbers of a file's first line, "max" and -1 as nothing.
std::vector<std::optional<std::uint64_t>> numbers_in(const std::string& path) {
  std::ifstream in(path);
  std::string line, word;
  std::getline(in, line);
  std::vector<std::optional<std::uint64_t>> numbers;
  for (std::istringstream words(line); words >> word;) {
    const bool digits = word.find_first_not_of("0123456789") == word.npos && word.size() < 20;
    numbers.push_back(digits ? std::optional<std::uint64_t>(std::stoull(word)) : std::nullopt);
  }
  return numbers;
}

std::optional<std::uint64_t> number_in(const std::string& path) {
  const auto numbers = numbers_in(path);
  return numbers.empty() ? std::nullopt : numbers.front();
}

std::uint64_t statistic(const std::string& path, const std::string& wanted) {
  std::ifstream in(path);
  std::string name;
  for (std::uint64_t value = 0; in >> name >> value;)
    if (name == wanted) return value;
  return 0;
}

/// A group's path and those above it, "" last. What a namespace does not show ("/../..") is taken for its root.
std::vector<std::string> with_those_above(std::string path) {
  if (path.find("/..") != path.npos || path == "/") path.clear();
  std::vector<std::string> all{path};
  while (!path.empty()) all.push_back(path = path.substr(0, path.rfind('/')));
  return all;
}

/// Where a hierarchy of groups is mounted, and this process's group in it.
struct Hierarchy {
  std::string folder, group;
  bool unified = false;
};

/// Of the controller: version 1 has a hierarchy for it, version 2 one for all.
std::vector<Hierarchy> hierarchies(const std::string& root, const std::string& controller) {
  std::vector<Hierarchy> found;
  std::ifstream in(root + "/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == line.npos || second == line.npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1), group = line.substr(second + 1);
    if (controllers.empty()) {
      for (const char* folder : {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}) found.push_back({root + folder, group, true});
    } else if (("," + controllers + ",").find("," + controller + ",") != std::string::npos) {
      for (const std::string& folder : {controllers, controller}) found.push_back({root + "/sys/fs/cgroup/" + folder, group, false});
    }
  }
  return found;
}

/// Values that stand for infinity in version 1.
constexpr std::uint64_t no_limit = std::uint64_t{1} << 60;

void read_memory(const std::string& root, GroupLimits& limits) {
  for (const Hierarchy& h : hierarchies(root, "memory"))
    for (const std::string& group : with_those_above(h.group)) {
      const std::string at = h.folder + group + "/memory.";
      const auto limit = number_in(at + (h.unified ? "max" : "limit_in_bytes"));
      if (!limit || *limit >= no_limit) continue;
      const std::uint64_t used = number_in(at + (h.unified ? "current" : "usage_in_bytes")).value_or(0);
      const std::uint64_t cached = std::min(used, statistic(at + "stat", h.unified ? "inactive_file" : "total_inactive_file"));
      const std::uint64_t left = *limit - std::min(*limit, used - cached);
      limits.memory_left = std::min(left, limits.memory_left.value_or(left));
      if (limits.memory && *limit >= *limits.memory) continue;
      limits.memory = *limit, limits.memory_group = group.empty() ? "/" : group;
    }
}

void read_cores(const std::string& root, GroupLimits& limits) {
  for (const Hierarchy& h : hierarchies(root, "cpu"))
    for (const std::string& group : with_those_above(h.group)) {
      const std::string at = h.folder + group + "/cpu.";
      std::uint64_t quota = 0, period = 0;
      if (const auto both = numbers_in(at + "max"); h.unified && both.size() == 2)
        quota = both[0].value_or(0), period = both[1].value_or(0);
      if (!h.unified) quota = number_in(at + "cfs_quota_us").value_or(0), period = number_in(at + "cfs_period_us").value_or(0);
      const std::string name = group.empty() ? "/" : group;
      const bool known = std::ranges::find(limits.cores, name, &GroupCores::group) != limits.cores.end();
      if (!known && quota > 0 && period > 0) limits.cores.push_back({name, static_cast<double>(quota) / static_cast<double>(period)});
    }
}

void read_processes(const std::string& root, GroupLimits& limits) {
  for (const Hierarchy& h : hierarchies(root, "pids"))
    for (const std::string& group : with_those_above(h.group))
      if (const auto most = number_in(h.folder + group + "/pids.max"); most && *most < no_limit)
        limits.processes = std::min(static_cast<std::int64_t>(*most), limits.processes.value_or(std::numeric_limits<std::int64_t>::max()));
}

}  // namespace

double GroupLimits::fewest_cores() const {
  const auto least = std::ranges::min_element(cores, {}, &GroupCores::cores);
  return least == cores.end() ? 0 : least->cores;
}

GroupLimits group_limits(const std::string& root) {
  GroupLimits limits;
  read_memory(root, limits);
  read_cores(root, limits);
  read_processes(root, limits);
  return limits;
}

int usable_threads() {
  const int units = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const double granted = group_limits().fewest_cores();
  return granted > 0 ? std::clamp(static_cast<int>(granted + 0.01), 1, units) : units;
}

}  // namespace tessera
