#include "schedule/memory_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace tessera {
namespace {

/// A buffer's life in one section: task numbers of first and last use.
struct Life {
  int section = 0, first = 0, last = 0;
};

std::vector<std::vector<Life>> lifetimes(const Schedule& schedule) {
  std::vector<std::vector<Life>> lives(schedule.buffers.size());
  for (int s = 0; s < static_cast<int>(schedule.sections.size()); ++s) {
    const Section& section = schedule.sections[static_cast<std::size_t>(s)];
    for (int t = 0; t < static_cast<int>(section.tasks.size()); ++t)
      for (const Use& use : section.tasks[static_cast<std::size_t>(t)].uses) {
        auto& life = lives[static_cast<std::size_t>(use.buffer)];
        const Buffer& buffer = schedule.buffers[static_cast<std::size_t>(use.buffer)];
        TESSERA_REQUIRE(use.offset >= 0 && use.offset + use.bytes <= buffer.bytes, "{} reads or writes outside {}",
                        section.tasks[static_cast<std::size_t>(t)].name, buffer.name);
        if (life.empty() || life.back().section != s) {
          TESSERA_REQUIRE(buffer.persistent || use.access == Access::write, "{} reads {} before it is written",
                          section.tasks[static_cast<std::size_t>(t)].name, buffer.name);
          life.push_back({s, t, t});
        }
        life.back().last = t;
      }
  }
  return lives;
}

bool meet(const std::vector<Life>& a, const std::vector<Life>& b) {
  for (const Life& x : a)
    for (const Life& y : b)
      if (x.section == y.section && x.first <= y.last && y.first <= x.last) return true;
  return false;
}

/// The most bytes that a category's transient buffers hold at one moment.
std::int64_t worst_moment(const Schedule& schedule, const std::vector<std::vector<Life>>& lives, Tier tier, Category category) {
  std::int64_t worst = 0;
  for (int s = 0; s < static_cast<int>(schedule.sections.size()); ++s) {
    std::vector<std::int64_t> change(schedule.sections[static_cast<std::size_t>(s)].tasks.size() + 1, 0);
    for (std::size_t b = 0; b < lives.size(); ++b) {
      const Buffer& buffer = schedule.buffers[b];
      if (buffer.persistent || buffer.tier != tier || buffer.category != category) continue;
      for (const Life& life : lives[b])
        if (life.section == s)
          change[static_cast<std::size_t>(life.first)] += buffer.bytes, change[static_cast<std::size_t>(life.last) + 1] -= buffer.bytes;
    }
    std::int64_t live = 0;
    for (std::int64_t c : change) worst = std::max(worst, live += c);
  }
  return worst;
}

}  // namespace

MemoryPlan place(const Schedule& schedule) {
  MemoryPlan plan;
  plan.offset.assign(schedule.buffers.size(), 0);
  const auto lives = lifetimes(schedule);
  for (std::size_t b = 0; b < schedule.buffers.size(); ++b) {
    const Buffer& buffer = schedule.buffers[b];
    const auto tier = static_cast<std::size_t>(buffer.tier);
    if (!buffer.persistent) continue;
    plan.offset[b] = plan.bytes[tier];
    plan.bytes[tier] += round_up(buffer.bytes, plan_alignment);
    plan.by_category[tier][static_cast<std::size_t>(buffer.category)] += round_up(buffer.bytes, plan_alignment);
  }
  plan.persistent = plan.bytes;

  std::vector<std::size_t> order;
  for (std::size_t b = 0; b < schedule.buffers.size(); ++b)
    if (!schedule.buffers[b].persistent && !lives[b].empty()) order.push_back(b);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return schedule.buffers[a].bytes > schedule.buffers[b].bytes; });
  std::vector<std::size_t> placed;
  for (std::size_t b : order) {
    const Buffer& buffer = schedule.buffers[b];
    const auto tier = static_cast<std::size_t>(buffer.tier);
    std::vector<std::pair<std::int64_t, std::int64_t>> taken;  // of those alive at the same time
    for (std::size_t other : placed)
      if (schedule.buffers[other].tier == buffer.tier && meet(lives[b], lives[other]))
        taken.push_back({plan.offset[other], plan.offset[other] + round_up(schedule.buffers[other].bytes, plan_alignment)});
    std::sort(taken.begin(), taken.end());
    std::int64_t at = plan.persistent[tier];
    for (auto [begin, end] : taken) {
      if (begin - at >= round_up(buffer.bytes, plan_alignment)) break;
      at = std::max(at, end);
    }
    plan.offset[b] = at;
    plan.bytes[tier] = std::max(plan.bytes[tier], at + round_up(buffer.bytes, plan_alignment));
    placed.push_back(b);
  }
  for (std::size_t t = 0; t < tier_count; ++t) {
    plan.transient[t] = plan.bytes[t] - plan.persistent[t];
    for (std::size_t c = 0; c < category_count; ++c)
      plan.by_category[t][c] += worst_moment(schedule, lives, static_cast<Tier>(t), static_cast<Category>(c));
  }
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
