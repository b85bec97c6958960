#include "schedule/plan/memory_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "schedule/plan/taken_addresses.hpp"

namespace tessera {
namespace {

/// Moments are numbers of tasks, counted through all sections.
using Lives = std::vector<std::vector<Moments>>;

std::int64_t moments_of(const Schedule& schedule) {
  std::int64_t count = 0;
  for (const Section& section : schedule.sections) count += static_cast<std::int64_t>(section.tasks.size());
  return count;
}

/// Of each buffer, from its first to its last use in each section that uses it.
Lives lives_of(const Schedule& schedule) {
  Lives lives(schedule.buffers.size());
  std::int64_t now = 0;
  for (const Section& section : schedule.sections) {
    const std::int64_t begin = now;
    for (const Task& task : section.tasks) {
      for (const Use& use : task.uses) {
        auto& life = lives[static_cast<std::size_t>(use.buffer)];
        const Buffer& buffer = schedule.buffers[static_cast<std::size_t>(use.buffer)];
        TESSERA_REQUIRE(use.offset >= 0 && use.offset + use.bytes <= buffer.bytes, "{} reads or writes outside {}", task.name, buffer.name);
        if (life.empty() || life.back().first < begin) {
          TESSERA_REQUIRE(buffer.persistent || use.access == Access::write, "{} reads {} before it is written", task.name, buffer.name);
          life.push_back({now, now});
        }
        life.back().last = now;
      }
      ++now;
    }
  }
  return lives;
}

std::int64_t placed_bytes(const Buffer& buffer) { return round_up(buffer.bytes, plan_alignment); }

void place_persistent(const Schedule& schedule, MemoryPlan& plan) {
  for (std::size_t b = 0; b < schedule.buffers.size(); ++b) {
    const Buffer& buffer = schedule.buffers[b];
    const auto tier = static_cast<std::size_t>(buffer.tier);
    if (!buffer.persistent) continue;
    plan.offset[b] = plan.bytes[tier];
    plan.bytes[tier] += placed_bytes(buffer);
    plan.by_category[tier][static_cast<std::size_t>(buffer.category)] += placed_bytes(buffer);
  }
  plan.persistent = plan.bytes;
}

/// Largest first, each at the lowest place that is free while it lives.
void place_transient(const Schedule& schedule, const Lives& lives, MemoryPlan& plan) {
  std::vector<std::size_t> falling;
  for (std::size_t b = 0; b < schedule.buffers.size(); ++b)
    if (!schedule.buffers[b].persistent && !lives[b].empty()) falling.push_back(b);
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
    if (!buffer.persistent) transient[static_cast<std::size_t>(buffer.tier)][static_cast<std::size_t>(buffer.category)].push_back(b);
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

std::string print_memory(const Schedule&, const MemoryPlan& plan) {
  std::string out;
  for (std::size_t t = 0; t < tier_count; ++t) {
    if (plan.bytes[t] == 0) continue;
    out += fmt::format("  {:8} {:>12}   ({} kept through the run, {} shared by what comes and goes)\n", name_of(static_cast<Tier>(t)),
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
