#include "schedule/trace/memory_by_part.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "schedule/plan/peak.hpp"

namespace tessera {
namespace {

/// The number of each section's first moment.
std::vector<std::size_t> first_moments(const Schedule& schedule) {
  std::vector<std::size_t> first;
  std::size_t moment = 0;
  for (const Section& section : schedule.sections) first.push_back(moment), moment += section.tasks.size();
  return first;
}

}  // namespace

MemoryByPart memory_by_part(const Schedule& schedule) {
  MemoryByPart most{};
  const std::vector<std::size_t> first = first_moments(schedule);
  const Lives lives = lives_of(schedule);
  for (std::size_t t = 0; t < tier_count; ++t) {
    const std::vector<std::int64_t> live = live_bytes(schedule, lives, static_cast<Tier>(t));
    for (const Program::Phase& phase : schedule.program(ProgramKind::train).phases) {
      const auto s = static_cast<std::size_t>(phase.section);
      const std::vector<Task>& tasks = schedule.sections[s].tasks;
      for (std::size_t i = 0; i < tasks.size(); ++i) {
        std::int64_t& of = most[static_cast<std::size_t>(part_of(tasks[i], schedule))][t];
        of = std::max(of, live[first[s] + i]);
      }
    }
  }
  return most;
}

std::string print_memory_by_part(const MemoryByPart& memory, const TierBytes& room) {
  const auto line = [&](std::string_view name, const auto& text_of) {
    std::string text = fmt::format("\n  {:16}", name);
    for (std::size_t t = 0; t < tier_count; ++t)
      if (room[t] > 0) text += fmt::format(" {:>12}", text_of(t));
    return text;
  };
  const auto human = [](const TierBytes& bytes) { return [&bytes](std::size_t t) { return human_bytes(static_cast<double>(bytes[t])); }; };
  std::string text = line("", [](std::size_t t) { return std::string(name_of(static_cast<Tier>(t))); });
  for (const TimePartRow& part : time_parts) {
    const TierBytes& of = memory[static_cast<std::size_t>(part.part)];
    if (std::ranges::any_of(of, [](std::int64_t bytes) { return bytes > 0; })) text += line(part.name, human(of));
  }
  return text + line("arena", human(room));
}

}  // namespace tessera
