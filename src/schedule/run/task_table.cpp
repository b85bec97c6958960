#include "schedule/run/task_table.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace tessera {
TaskTable::TaskTable(const Schedule& schedule, const MemoryPlan& plan, std::array<std::byte*, tier_count> bases, TaskFunction run)
    : schedule_(schedule), run_(std::move(run)) {
  for (const ProgramRow& row : program_rows)
    programs_[static_cast<std::size_t>(row.kind)] = order(schedule, plan, schedule.program(row.kind));
  for (const Section& section : schedule.sections) {
    auto& tasks = addresses_.emplace_back();
    for (const Task& task : section.tasks) {
      auto& addresses = tasks.emplace_back();
      for (const Use& use : task.uses) {
        const auto b = static_cast<std::size_t>(use.buffer);
        const Buffer& buffer = schedule.buffers[b];
        Address address{.base = use.bytes == 0 ? nullptr : bases[static_cast<std::size_t>(buffer.tier)] + plan.offset[b] + use.offset};
        if (use.in_slot) address.slot_bytes = buffer.slot_bytes(), address.shift = use.shift, address.slots = buffer.slots;
        addresses.push_back(address);
      }
      TESSERA_REQUIRE(addresses.size() <= most_uses, "{} has {} uses", task.name, addresses.size());
    }
  }
}

bool TaskTable::uses(Lane lane) const {
  return std::ranges::any_of(schedule_.sections, [&](const Section& section) {
    return std::ranges::any_of(section.tasks, [&](const Task& task) { return task.lane == lane; });
  });
}

std::array<void*, most_uses> TaskTable::addresses_of(int section, int task, std::int64_t micro) const {
  const std::vector<Address>& addresses = addresses_[static_cast<std::size_t>(section)][static_cast<std::size_t>(task)];
  std::array<void*, most_uses> at{};  // running allocates nothing
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    const Address& a = addresses[i];
    at[i] = a.base && a.slot_bytes > 0 ? a.base + slot_in(a.slots, micro + a.shift) * a.slot_bytes : a.base;
  }
  return at;
}

void TaskTable::run(int section, int task, std::int64_t micro) const {
  const std::array<void*, most_uses> at = addresses_of(section, task, micro);
  const Task& what = tasks(section)[static_cast<std::size_t>(task)];
  try {
    run_({what, {at.data(), what.uses.size()}});
  } catch (const Error& error) {
    throw Error(error.code, fmt::format("{} (in task `{}`)", error.what(), what.name));
  }
}

}  // namespace tessera
