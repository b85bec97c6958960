#include "schedule/run/poison.hpp"

#include <cstring>
#include <unordered_map>

namespace tessera {

TaskFunction poisoned(const Schedule& schedule, const MemoryPlan& plan, std::array<std::byte*, tier_count> bases, TaskFunction run) {
  std::vector<const Task*> tasks;
  for (const Section& section : schedule.sections)
    for (const Task& task : section.tasks) tasks.push_back(&task);
  std::unordered_map<const Task*, std::vector<std::span<std::byte>>> begins;
  const Lives lives = lives_of(schedule);
  for (std::size_t b = 0; b < lives.size(); ++b) {
    const Buffer& buffer = schedule.buffers[b];
    // What a program keeps may have been begun by an earlier phase, and places on disks are no addresses.
    if (buffer.life != Life::section || buffer.tier == Tier::nvme) continue;
    std::byte* at = bases[static_cast<std::size_t>(buffer.tier)] + plan.offset[b];
    for (const Moments& life : lives[b])
      begins[tasks[static_cast<std::size_t>(life.first)]].push_back({at, static_cast<std::size_t>(buffer.bytes)});
  }
  return [begins = std::move(begins), run = std::move(run)](const TaskRun& task) {
    if (const auto found = begins.find(&task.task); found != begins.end())
      for (const std::span<std::byte> bytes : found->second) std::memset(bytes.data(), 0xff, bytes.size());
    run(task);
  };
}

}  // namespace tessera
