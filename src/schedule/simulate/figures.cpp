#include "schedule/simulate/figures.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/glob.hpp"
#include "machine/keys.hpp"
#include "schedule/simulate/simulate.hpp"

namespace tessera {
namespace {

/// A profile whose figure is worse by half; false where the key is no figure, or not said.
bool worsen(const MachineKey& key, MachineProfile& profile) {
  switch (key.value) {
    case MachineValue::seconds:
      *std::get<double*>(key.field(profile)) *= 2;
      return true;
    case MachineValue::flops:
    case MachineValue::traffic:
      *std::get<double*>(key.field(profile)) /= 2;
      return true;
    case MachineValue::flops_list:
    case MachineValue::traffic_list: {
      std::vector<double>& rates = *std::get<std::vector<double>*>(key.field(profile));
      for (double& rate : rates) rate /= 2;
      return !rates.empty();
    }
    case MachineValue::watts:
      *std::get<double*>(key.field(profile)) /= 2;
      return true;
    case MachineValue::share: {  // of a rate that is reached, or of one that is lost
      double& share = *std::get<double*>(key.field(profile));
      share *= key.section() == "efficiency" ? 0.5 : 2;
      return share > 0;
    }
    case MachineValue::number:
    case MachineValue::text:
    case MachineValue::count:
    case MachineValue::bytes:
    case MachineValue::sizes:
    case MachineValue::amounts:
    case MachineValue::keys:
      return false;
  }
  return false;
}

/// Contention is between tasks: it makes none of them longer alone.
bool shares_compute(const Schedule& schedule, const TaskSeconds& seconds, const MachineProfile& machine, const Placement& placement) {
  if (machine.contention <= 0 || !placement.lanes_side_by_side) return false;
  for (std::size_t s = 0; s < seconds.size(); ++s)
    for (std::size_t t = 0; t < seconds[s].size(); ++t)
      if (info_of(schedule.sections[s].tasks[t].lane).collective && seconds[s][t] > machine.task_overhead) return true;
  return false;
}

}  // namespace

Figures figures_of(const Schedule& schedule, const MachineProfile& machine, const Placement& placement) {
  Figures figures;
  const auto seconds = task_seconds(schedule, machine, placement);
  for (const MachineKey& key : machine_keys()) {
    MachineProfile other = machine;
    if (!worsen(key, other)) continue;
    const bool between_tasks = key.value == MachineValue::share && key.section() == "contention";
    const bool counts =
        between_tasks ? shares_compute(schedule, seconds, machine, placement) : task_seconds(schedule, other, placement) != seconds;
    if (!counts) continue;
    figures.used.push_back(key.name);
    if (std::ranges::any_of(machine.assumed, [&](const std::string& pattern) { return matches_glob(pattern, key.name); }))
      figures.assumed.push_back(key.name);
  }
  return figures;
}

std::string describe_assumed(const Figures& figures) {
  if (figures.assumed.empty()) return "";
  return fmt::format("{} of the {} figures behind this prediction: {}", figures.assumed.size(), figures.used.size(),
                     fmt::join(figures.assumed, ", "));
}

}  // namespace tessera
