#include "schedule/plan/memory_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

namespace tessera {

std::int64_t moments_of(const Schedule& schedule) {
  std::int64_t count = 0;
  for (const Section& section : schedule.sections) count += static_cast<std::int64_t>(section.tasks.size());
  return count;
}

namespace {

/// Moments of each section's tasks.
std::vector<Moments> moments_of_sections(const Schedule& schedule) {
  std::vector<Moments> moments;
  std::int64_t now = 0;
  for (const Section& section : schedule.sections) {
    const auto tasks = static_cast<std::int64_t>(section.tasks.size());
    moments.push_back({now, now + tasks - 1});
    now += tasks;
  }
  return moments;
}

void require_sound(const Task& task, const Use& use, const Buffer& buffer) {
  const std::int64_t room = use.in_slot ? buffer.slot_bytes() : buffer.bytes;
  TESSERA_REQUIRE(use.offset >= 0 && use.offset + use.bytes <= room, "{} reads or writes outside {}", task.name, buffer.name);
  TESSERA_REQUIRE(buffer.slots == 1 || (buffer.life != Life::section && buffer.bytes % buffer.slots == 0),
                  "{} has {} slots of {} bytes for a life that ends with a section, or unequal ones", buffer.name, buffer.slots,
                  buffer.bytes);
}

/// Of each buffer, from its first to its last use in each section that uses it.
Lives uses_by_section(const Schedule& schedule) {
  Lives lives(schedule.buffers.size());
  std::int64_t now = 0;
  for (const Section& section : schedule.sections) {
    const std::int64_t begin = now;
    for (const Task& task : section.tasks) {
      for (const Use& use : task.uses) {
        auto& life = lives[static_cast<std::size_t>(use.buffer)];
        const Buffer& buffer = schedule.buffers[static_cast<std::size_t>(use.buffer)];
        require_sound(task, use, buffer);
        if (life.empty() || life.back().first < begin) {
          TESSERA_REQUIRE(buffer.life != Life::section || use.access == Access::write, "{} reads {} before it is written", task.name,
                          buffer.name);
          life.push_back({now, now});
        }
        life.back().last = now;
      }
      ++now;
    }
  }
  return lives;
}

/// Whether the first task of a program that touches a buffer writes it.
bool written_first(const Schedule& schedule, const Program& program, std::size_t buffer) {
  for (const auto& phase : program.phases)
    for (const Task& task : schedule.sections[static_cast<std::size_t>(phase.section)].tasks)
      for (const Use& use : task.uses)
        if (static_cast<std::size_t>(use.buffer) == buffer) return use.access == Access::write;
  return true;
}

/// When a buffer lives that a program keeps over its sections: from the first phase that uses it to the last, where those between and those
/// that repeat count whole.
std::vector<Moments> life_in_program(const std::vector<Moments>& sections, const Program& program, const std::vector<Moments>& uses) {
  std::map<int, int> visits;
  for (const auto& phase : program.phases) ++visits[phase.section];
  const auto use_in = [&](const Program::Phase& phase) {
    const Moments& all = sections[static_cast<std::size_t>(phase.section)];
    const auto found = std::ranges::find_if(uses, [&](const Moments& u) { return all.first <= u.first && u.last <= all.last; });
    return found == uses.end() ? nullptr : &*found;
  };
  const auto used = [&](const Program::Phase& phase) { return use_in(phase) != nullptr; };
  const auto first = std::ranges::find_if(program.phases, used);
  if (first == program.phases.end()) return {};
  const auto last = std::ranges::find_if(program.phases.rbegin(), program.phases.rend(), used).base() - 1;
  std::map<int, Moments> life;  // by section
  for (auto phase = first; phase <= last; ++phase) {
    Moments moments = sections[static_cast<std::size_t>(phase->section)];
    const bool once = phase->repeat == 1 && visits[phase->section] == 1;
    if (once && phase == first) moments.first = use_in(*phase)->first;
    if (once && phase == last) moments.last = use_in(*phase)->last;
    life[phase->section] = moments;
  }
  std::vector<Moments> result;
  for (const auto& [section, moments] : life) result.push_back(moments);
  return result;
}

}  // namespace

Lives lives_of(const Schedule& schedule) {
  Lives lives = uses_by_section(schedule);
  const std::vector<Moments> sections = moments_of_sections(schedule);
  for (std::size_t b = 0; b < lives.size(); ++b) {
    if (schedule.buffers[b].life != Life::program) continue;
    std::map<std::int64_t, Moments> life;
    for (const ProgramRow& row : program_rows) {
      const Program& program = schedule.program(row.kind);
      TESSERA_REQUIRE(written_first(schedule, program, b), "{} reads {} before it is written", row.name, schedule.buffers[b].name);
      for (const Moments& moments : life_in_program(sections, program, lives[b])) life[moments.first] = moments;
    }
    lives[b].clear();
    for (const auto& [begin, moments] : life) lives[b].push_back(moments);
  }
  return lives;
}

TierBytes kept_bytes(const Schedule& schedule) {
  TierBytes bytes{};
  for (const Buffer& buffer : schedule.buffers)
    if (buffer.life == Life::run) bytes[static_cast<std::size_t>(buffer.tier)] += placed_bytes(buffer);
  return bytes;
}

std::int64_t placed_bytes(const Buffer& buffer) { return round_up(buffer.bytes, buffer.alignment); }

namespace {

/// The state lies first: another plan of the same run, whose batch is another one, finds it where it is.
void place_persistent(const Schedule& schedule, MemoryPlan& plan) {
  std::vector<bool> is_state(schedule.buffers.size());
  for (const Held& held : schedule.state) is_state[static_cast<std::size_t>(held.use.buffer)] = true;
  const auto place_those = [&](bool state) {
    for (std::size_t b = 0; b < schedule.buffers.size(); ++b) {
      const Buffer& buffer = schedule.buffers[b];
      const auto tier = static_cast<std::size_t>(buffer.tier);
      if (buffer.life != Life::run || is_state[b] != state) continue;
      plan.offset[b] = plan.bytes[tier];
      plan.bytes[tier] += placed_bytes(buffer);
      plan.by_category[tier][static_cast<std::size_t>(buffer.category)] += placed_bytes(buffer);
    }
  };
  place_those(true);
  plan.state = plan.bytes;
  place_those(false);
  plan.persistent = plan.bytes;
}

/// Largest first, each at the lowest place that is free while it lives.
void place_transient(const Schedule& schedule, const Lives& lives, MemoryPlan& plan) {
  std::vector<std::size_t> falling;
  for (std::size_t b = 0; b < schedule.buffers.size(); ++b)
    if (schedule.buffers[b].life != Life::run && !lives[b].empty()) falling.push_back(b);
  std::stable_sort(falling.begin(), falling.end(),
                   [&](std::size_t a, std::size_t b) { return schedule.buffers[a].bytes > schedule.buffers[b].bytes; });
  std::array<std::optional<TakenAddresses>, tier_count> taken;
  for (std::size_t b : falling) {
    const auto tier = static_cast<std::size_t>(schedule.buffers[b].tier);
    const std::int64_t bytes = placed_bytes(schedule.buffers[b]);
    if (!taken[tier]) taken[tier].emplace(moments_of(schedule));
    const std::int64_t at = taken[tier]->first_fit(lives[b], plan.persistent[tier], bytes);
    taken[tier]->take(lives[b], {at, at + bytes});
    plan.offset[b] = at;
    plan.bytes[tier] = std::max(plan.bytes[tier], at + bytes);
  }
}

/// Adds the most bytes that each category's transient buffers hold at one moment.
void count_worst_moments(const Schedule& schedule, const Lives& lives, MemoryPlan& plan) {
  std::array<std::array<std::vector<std::size_t>, category_count>, tier_count> transient;
  for (std::size_t b = 0; b < lives.size(); ++b) {
    const Buffer& buffer = schedule.buffers[b];
    if (buffer.life != Life::run) transient[static_cast<std::size_t>(buffer.tier)][static_cast<std::size_t>(buffer.category)].push_back(b);
  }
  const auto moments = static_cast<std::size_t>(moments_of(schedule));
  for (std::size_t t = 0; t < tier_count; ++t)
    for (std::size_t c = 0; c < category_count; ++c) {
      if (transient[t][c].empty()) continue;
      std::vector<std::int64_t> change(moments + 1, 0);
      for (std::size_t b : transient[t][c])
        for (const Moments& life : lives[b]) {
          change[static_cast<std::size_t>(life.first)] += schedule.buffers[b].bytes;
          change[static_cast<std::size_t>(life.last) + 1] -= schedule.buffers[b].bytes;
        }
      std::int64_t live = 0, worst = 0;
      for (std::int64_t by : change) worst = std::max(worst, live += by);
      plan.by_category[t][c] += worst;
    }
}

}  // namespace

MemoryPlan place(const Schedule& schedule) {
  MemoryPlan plan;
  plan.offset.assign(schedule.buffers.size(), 0);
  const Lives lives = lives_of(schedule);
  place_persistent(schedule, plan);
  place_transient(schedule, lives, plan);
  for (std::size_t t = 0; t < tier_count; ++t) plan.transient[t] = plan.bytes[t] - plan.persistent[t];
  count_worst_moments(schedule, lives, plan);
  return plan;
}

void raise(TierBytes& most, const TierBytes& bytes) {
  for (std::size_t t = 0; t < tier_count; ++t) most[t] = std::max(most[t], bytes[t]);
}

TierBytes touched_bytes(const Schedule& schedule, const MemoryPlan& plan) {
  TierBytes touched{};
  const auto touch = [&](const Use& use) {
    const Buffer& buffer = schedule.buffers[static_cast<std::size_t>(use.buffer)];
    const std::int64_t end = use.in_slot ? buffer.bytes : use.offset + use.bytes;
    auto& most = touched[static_cast<std::size_t>(buffer.tier)];
    most = std::max(most, round_up(plan.offset[static_cast<std::size_t>(use.buffer)] + end, buffer.alignment));
  };
  for (const Section& section : schedule.sections)
    for (const Task& task : section.tasks)
      for (const Use& use : task.uses) touch(use);
  // Padding at the end of frozen tensors that every rank has whole: no task reads it.
  for (const Held& held : schedule.state) touch(held.use);
  // Files, which whoever writes copies of the state fills.
  for (std::size_t b = 0; b < schedule.buffers.size(); ++b)
    if (schedule.buffers[b].tier == Tier::copies)
      touch({.buffer = static_cast<int>(b), .offset = 0, .bytes = schedule.buffers[b].bytes, .access = Access::write});
  return touched;
}

std::string print_memory(const Schedule&, const MemoryPlan& plan) {
  std::string out;
  for (std::size_t t = 0; t < tier_count; ++t) {
    if (plan.bytes[t] == 0) continue;
    out += fmt::format("  {:8} {:>12}   ({} kept through the run, {} shared by temporary buffers)\n", name_of(static_cast<Tier>(t)),
                       human_bytes(static_cast<double>(plan.bytes[t])), human_bytes(static_cast<double>(plan.persistent[t])),
                       human_bytes(static_cast<double>(plan.transient[t])));
    for (std::size_t c = 0; c < category_count; ++c)
      if (plan.by_category[t][c] > 0)
        out +=
            fmt::format("    {:14} {:>12}\n", name_of(static_cast<Category>(c)), human_bytes(static_cast<double>(plan.by_category[t][c])));
  }
  return out;
}

}  // namespace tessera
