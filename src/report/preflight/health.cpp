#include "report/preflight/health.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>

#include "report/system_tree.hpp"

namespace tessera {
namespace {

std::int64_t count_in(const std::string& path) { return static_cast<std::int64_t>(number_of_file(path)); }

bool is_numbered(const std::string& name, std::string_view word) {
  return name.starts_with(word) && name.size() > word.size() && name.find_first_not_of("0123456789", word.size()) == name.npos;
}

/// A node's package counts once, and each of its processors says so: the highest counts, and cores are added.
std::int64_t throttled_below(const std::string& sys) {
  std::int64_t cores = 0, packages = 0;
  const std::string at = sys + "/devices/system/cpu/";
  for (const std::string& name : names_in(at)) {
    if (!is_numbered(name, "cpu")) continue;
    cores += count_in(at + name + "/thermal_throttle/core_throttle_count");
    packages = std::max(packages, count_in(at + name + "/thermal_throttle/package_throttle_count"));
  }
  return cores + packages;
}

void add_sensors(const std::string& sys, NodeHealth& health) {
  constexpr double least = 1, most = 250;  // degrees: what is not between them is a sensor that is not connected
  const auto add = [&](const std::string& name, const std::string& path) {
    const double degrees = number_of_file(path) / 1000;
    if (degrees > least && degrees < most) health.hot.push_back({name, degrees});
  };
  const std::string chips = sys + "/class/hwmon/", zones = sys + "/class/thermal/";
  for (const std::string& chip : names_in(chips))
    for (const std::string& file : names_in(chips + chip)) {
      if (!file.starts_with("temp") || !file.ends_with("_input")) continue;
      const std::string sensor = file.substr(0, file.find('_')), label = line_of_file(chips + chip + "/" + sensor + "_label");
      add(fmt::format("{} {}", line_of_file(chips + chip + "/name"), label.empty() ? sensor : label), chips + chip + "/" + file);
    }
  for (const std::string& zone : names_in(zones))
    if (is_numbered(zone, "thermal_zone")) add(line_of_file(zones + zone + "/type"), zones + zone + "/temp");
  std::ranges::stable_sort(health.hot, std::greater{}, &NodeHealth::Sensor::degrees);
}

}  // namespace

NodeHealth read_health(const NodeRoots& roots) {
  NodeHealth health{.throttled = throttled_below(roots.sys)};
  const std::string controllers = roots.sys + "/devices/system/edac/mc/", disks = roots.sys + "/class/nvme/";
  for (const std::string& name : names_in(controllers)) {
    if (!is_numbered(name, "mc")) continue;
    health.corrected += count_in(controllers + name + "/ce_count");
    health.uncorrected += count_in(controllers + name + "/ue_count");
  }
  for (const std::string& name : names_in(disks))
    if (const std::string state = line_of_file(disks + name + "/state"); !state.empty() && state != "live")
      health.lost.push_back(fmt::format("{} is {}", name, state));
  add_sensors(roots.sys, health);
  return health;
}

std::vector<PreflightFinding> judge_health(const std::string& node, const NodeHealth& before, const NodeHealth& after,
                                           const PreflightKeys& keys) {
  std::vector<PreflightFinding> findings;
  const auto add = [&](std::string what) {
    findings.push_back({.kind = PreflightFinding::Kind::health, .where = node, .what = std::move(what)});
  };
  const auto errors = [&](const std::string& whose, std::int64_t corrected, std::int64_t uncorrected) {
    if (uncorrected > keys.memory_errors)
      add(fmt::format("{} had {} error{} that could not be corrected: have it replaced", whose, uncorrected, uncorrected == 1 ? "" : "s"));
    if (corrected > keys.mended_errors) add(fmt::format("{} has corrected {} errors: it is wearing out", whose, corrected));
  };
  errors("memory", after.corrected, after.uncorrected);
  for (const std::string& lost : after.lost) add(fmt::format("the disk {}", lost));
  if (const std::int64_t events = after.throttled - before.throttled; events > keys.throttled)
    add(fmt::format("processors were slowed down by heat {} times during the measurement: look at its cooling", events));
  const auto is_hot = [&](double degrees) { return keys.temperature > 0 && degrees > keys.temperature; };
  if (!after.hot.empty() && is_hot(after.hot.front().degrees))
    add(fmt::format("{} is at {:.0f} degrees, above {:g}", after.hot.front().name, after.hot.front().degrees, keys.temperature));
  for (std::size_t number = 0; number < after.gpus.size(); ++number) {
    const GpuHealth& gpu = after.gpus[number];
    const std::string name = fmt::format("GPU {}", number);
    errors("memory of " + name, gpu.corrected, gpu.uncorrected);
    if (is_hot(gpu.temperature)) add(fmt::format("{} is at {:.0f} degrees, above {:g}", name, gpu.temperature, keys.temperature));
    if (!gpu.slowed_by.empty()) add(fmt::format("{} is slowed down by {}", name, fmt::join(gpu.slowed_by, ", ")));
    if (gpu.link_width < gpu.most_link_width)
      add(fmt::format("{} is linked by {} lanes of PCIe out of {}", name, gpu.link_width, gpu.most_link_width));
  }
  return findings;
}

}  // namespace tessera
