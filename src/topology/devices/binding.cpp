#include "topology/devices/binding.hpp"

#include <hwloc.h>
#include <sched.h>

#include <fmt/format.h>
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <set>
#include <sstream>
#include <system_error>

#include "base/limits.hpp"
#include "base/log.hpp"

namespace tessera {
namespace {

/// hwloc's handles, freed with their owner.
class Hardware {
 public:
  Hardware() {
    if (hwloc_topology_init(&topology_) != 0 || hwloc_topology_load(topology_) != 0)
      fail(ExitCode::environment, "hwloc cannot read this node's topology: {}", std::strerror(errno));
  }
  ~Hardware() { hwloc_topology_destroy(topology_); }
  Hardware(const Hardware&) = delete;
  Hardware& operator=(const Hardware&) = delete;
  hwloc_topology_t get() const { return topology_; }

 private:
  hwloc_topology_t topology_ = nullptr;
};

class Bitmap {
 public:
  Bitmap() : bitmap_(hwloc_bitmap_alloc()) {}
  ~Bitmap() { hwloc_bitmap_free(bitmap_); }
  Bitmap(const Bitmap&) = delete;
  Bitmap& operator=(const Bitmap&) = delete;
  hwloc_bitmap_t get() const { return bitmap_; }

 private:
  hwloc_bitmap_t bitmap_;
};

std::vector<int> units_of(hwloc_const_bitmap_t set) {
  std::vector<int> units;
  for (int unit = hwloc_bitmap_first(set); unit >= 0; unit = hwloc_bitmap_next(set, unit)) units.push_back(unit);
  return units;
}

NodeCores read_node(const Hardware& hardware) {
  NodeCores node;
  node.packages = std::max(1, hwloc_get_nbobjs_by_type(hardware.get(), HWLOC_OBJ_PACKAGE));
  int depth = hwloc_get_type_or_below_depth(hardware.get(), HWLOC_OBJ_CORE);
  for (unsigned i = 0; i < hwloc_get_nbobjs_by_depth(hardware.get(), depth); ++i)
    node.cores.push_back(units_of(hwloc_get_obj_by_depth(hardware.get(), depth, i)->cpuset));
  return node;
}

std::vector<int> allowed_units(const Hardware& hardware, const NodeCores& node) {
  Bitmap set;
  if (hwloc_get_cpubind(hardware.get(), set.get(), HWLOC_CPUBIND_PROCESS) == 0) return units_of(set.get());
  // A system that does not tell: everything.
  std::vector<int> all;
  for (const auto& core : node.cores) all.insert(all.end(), core.begin(), core.end());
  std::sort(all.begin(), all.end());
  return all;
}

bool intersect(const std::vector<int>& a, const std::vector<int>& b) {
  return std::any_of(a.begin(), a.end(), [&](int unit) { return std::binary_search(b.begin(), b.end(), unit); });
}

/// The node's cores of which some unit is in `units`, each cut down to those units.
std::vector<std::vector<int>> cores_within(const NodeCores& node, const std::vector<int>& units) {
  std::vector<std::vector<int>> within;
  for (const auto& core : node.cores) {
    std::vector<int> kept;
    for (int unit : core)
      if (std::binary_search(units.begin(), units.end(), unit)) kept.push_back(unit);
    if (!kept.empty()) within.push_back(kept);
  }
  return within;
}

std::string write_units(const std::vector<int>& units) { return fmt::format("{}", fmt::join(units, " ")); }

std::vector<int> read_units(const std::string& text) {
  std::vector<int> units;
  const char *at = text.data(), *end = at + text.size();
  for (int unit = 0; at < end;) {
    auto [next, error] = std::from_chars(at, end, unit);
    TESSERA_REQUIRE(error == std::errc(), "a list of processing units reads '{}'", text);
    units.push_back(unit);
    at = next + 1;
  }
  return units;
}

/// Lets every thread of this process run on these units again.
void allow_threads(const std::vector<int>& units) {
  const auto count = static_cast<std::size_t>(units.back()) + 1;
  cpu_set_t* set = CPU_ALLOC(count);
  if (!set) return;  // the binding stays
  CPU_ZERO_S(CPU_ALLOC_SIZE(count), set);
  for (int unit : units) CPU_SET_S(static_cast<std::size_t>(unit), CPU_ALLOC_SIZE(count), set);
  std::error_code error;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task", error)) {
    int id = 0;
    const std::string name = thread.path().filename().string();
    std::from_chars(name.data(), name.data() + name.size(), id);
    sched_setaffinity(id, CPU_ALLOC_SIZE(count), set);  // fails for a thread that has just ended
  }
  CPU_FREE(set);
}

/// "2000000 /path" a line, in millionths of a core.
std::string write_groups(const std::vector<GroupCores>& groups) {
  std::string text;
  for (const GroupCores& g : groups) text += fmt::format("{} {}\n", std::llround(g.cores * 1e6), g.group);
  return text;
}

std::vector<GroupCores> read_groups(const std::string& text) {
  std::vector<GroupCores> groups;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t space = line.find(' ');
    groups.push_back({line.substr(space + 1), static_cast<double>(std::stoll(line.substr(0, space))) / 1e6});
  }
  return groups;
}

}  // namespace

double granted_cores(const std::vector<std::vector<GroupCores>>& groups, int local_rank) {
  double least = 0;
  for (const GroupCores& mine : groups[static_cast<std::size_t>(local_rank)]) {
    const auto members = std::ranges::count_if(groups, [&](const std::vector<GroupCores>& of_rank) {
      return std::ranges::find(of_rank, mine.group, &GroupCores::group) != of_rank.end();
    });
    const double share = mine.cores / static_cast<double>(members);
    if (least == 0 || share < least) least = share;
  }
  return least;
}

Binding plan_binding(const NodeCores& node, const std::vector<std::vector<int>>& allowed, int local_rank, double granted) {
  auto local_ranks = static_cast<int>(allowed.size());
  Binding plan;
  plan.units = allowed[static_cast<std::size_t>(local_rank)];
  plan.node_packages = node.packages;
  plan.node_cores = static_cast<int>(node.cores.size());
  auto cores = cores_within(node, plan.units);
  plan.cores = static_cast<int>(cores.size());
  plan.sharing =
      static_cast<int>(std::count_if(allowed.begin(), allowed.end(), [&](const auto& other) { return intersect(plan.units, other); }));
  bool all_equal = std::all_of(allowed.begin(), allowed.end(), [&](const auto& other) { return other == plan.units; });
  if (!all_equal) {
    plan.source = Binding::Source::launcher;
  } else if (local_ranks > 1 && local_ranks <= plan.cores) {
    plan.source = Binding::Source::tessera;
    int first = plan.cores * local_rank / local_ranks, last = plan.cores * (local_rank + 1) / local_ranks;
    plan.units.clear();
    for (int core = first; core < last; ++core)
      plan.units.insert(plan.units.end(), cores[static_cast<std::size_t>(core)].begin(), cores[static_cast<std::size_t>(core)].end());
    std::sort(plan.units.begin(), plan.units.end());
    plan.cores = last - first;
    plan.sharing = 1;
  }
  plan.threads = std::clamp(plan.cores / std::max(1, plan.sharing), 1, most_threads);
  plan.granted = granted;
  if (granted > 0) plan.threads = std::clamp(static_cast<int>(granted + 0.01), 1, plan.threads);
  return plan;
}

Binding bind_process(const World& world, bool bind) {
  const Place& place = world.place();
  Hardware hardware;
  NodeCores node = read_node(hardware);
  std::vector<int> mine = allowed_units(hardware, node);
  // Local ranks are numbered by world rank, so the order of this node's texts is theirs.
  std::vector<std::vector<int>> allowed;
  std::vector<std::vector<GroupCores>> groups;
  for (const auto& text : world.gather_text(fmt::format("{}:{}\n{}", place.node, write_units(mine), write_groups(group_limits().cores)))) {
    const auto colon = text.find(':'), line = text.find('\n');
    if (text.substr(0, colon) != std::to_string(place.node)) continue;
    allowed.push_back(read_units(text.substr(colon + 1, line - colon - 1)));
    groups.push_back(read_groups(text.substr(line + 1)));
  }
  Binding plan = plan_binding(node, allowed, place.local_rank, granted_cores(groups, place.local_rank));
  if (plan.source != Binding::Source::tessera) return plan;

  Bitmap set;
  for (int unit : plan.units) hwloc_bitmap_set(set.get(), static_cast<unsigned>(unit));
  bool done = bind && hwloc_set_cpubind(hardware.get(), set.get(), HWLOC_CPUBIND_PROCESS) == 0;
  if (done) {
    world.at_end([mine] { allow_threads(mine); });
    return plan;
  }
  if (bind) warning("binding this rank to units {} failed: {}. It runs unbound.", unit_ranges(plan.units), std::strerror(errno));
  Binding unbound = plan;
  unbound.source = Binding::Source::none;
  unbound.units = mine;
  unbound.cores = static_cast<int>(cores_within(node, mine).size());
  unbound.sharing = place.local_ranks;
  return unbound;
}

std::string unit_ranges(const std::vector<int>& units) {
  std::string text;
  for (std::size_t first = 0, last = 0; first < units.size(); first = last + 1) {
    for (last = first; last + 1 < units.size() && units[last + 1] == units[last] + 1;) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ",", units[first]);
    if (last > first) text += fmt::format("-{}", units[last]);
  }
  return text;
}

std::string describe(const Binding& binding) {
  std::string how = binding.source == Binding::Source::launcher  ? "bound by the launcher"
                    : binding.source == Binding::Source::tessera ? "bound by local rank"
                    : binding.sharing > 1                        ? fmt::format("not bound, shared by {} ranks", binding.sharing)
                                                                 : "not bound";
  if (binding.source == Binding::Source::launcher && binding.sharing > 1) how += fmt::format(", shared by {} ranks", binding.sharing);
  if (binding.granted > 0) how += fmt::format(", {:.2g} cores' time granted by control groups", binding.granted);
  return fmt::format("{} of {} cores in {} package{} (units {}), {}, {} thread{}", binding.cores, binding.node_cores, binding.node_packages,
                     binding.node_packages == 1 ? "" : "s", unit_ranges(binding.units), how, binding.threads,
                     binding.threads == 1 ? "" : "s");
}

}  // namespace tessera
