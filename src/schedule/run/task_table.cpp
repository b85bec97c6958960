#include "schedule/run/task_table.hpp"

#include "base/check.hpp"

namespace tessera {
namespace {
/// Uses per task are few; a task's addresses of one micro-batch fit here, so that running allocates nothing.
constexpr std::size_t max_uses = 64;
}  // namespace

TaskTable::TaskTable(const Schedule& schedule, const MemoryPlan& plan, std::array<std::byte*, tier_count> bases, TaskFunction run)
    : schedule_(schedule), run_(std::move(run)) {
  for (int kind = 0; kind < program_count; ++kind)
    programs_[static_cast<std::size_t>(kind)] = order(schedule, plan, schedule.program(static_cast<ProgramKind>(kind)));
  for (const Section& section : schedule.sections) {
    auto& tasks = addresses_.emplace_back();
    for (const Task& task : section.tasks) {
      auto& a = tasks.emplace_back();
      for (const Use& use : task.uses) {
        const auto b = static_cast<std::size_t>(use.buffer);
        std::byte* base = bases[static_cast<std::size_t>(schedule.buffers[b].tier)];
        a.base.push_back(use.bytes == 0 ? nullptr : base + plan.offset[b] + use.offset);
        a.stride.push_back(use.micro_stride);
      }
      TESSERA_REQUIRE(a.base.size() <= max_uses, "{} has {} uses", task.name, a.base.size());
    }
  }
}

void TaskTable::run(int section, int task, std::int64_t micro) const {
  const Addresses& a = addresses_[static_cast<std::size_t>(section)][static_cast<std::size_t>(task)];
  std::array<void*, max_uses> at;
  for (std::size_t i = 0; i < a.base.size(); ++i) at[i] = a.base[i] ? static_cast<std::byte*>(a.base[i]) + a.stride[i] * micro : nullptr;
  const Task& what = tasks(section)[static_cast<std::size_t>(task)];
  try {
    run_({what, {at.data(), a.base.size()}});
  } catch (const Error& error) {
    throw Error(error.code, fmt::format("{} (in task `{}`)", error.what(), what.name));
  }
}

}  // namespace tessera
