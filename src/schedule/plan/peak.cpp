#include "schedule/plan/peak.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace tessera {
namespace {

void name_moment(const Schedule& schedule, std::int64_t moment, Peak& peak) {
  for (const Section& section : schedule.sections) {
    const auto tasks = static_cast<std::int64_t>(section.tasks.size());
    if (moment < tasks) {
      peak.section = section.name, peak.task = section.tasks[static_cast<std::size_t>(moment)].name;
      return;
    }
    moment -= tasks;
  }
}

void add_part(Peak& peak, const Buffer& buffer) {
  auto part = std::ranges::find(peak.parts, buffer.category, &Peak::Part::category);
  if (part == peak.parts.end()) part = peak.parts.insert(part, {.category = buffer.category, .largest = {}});
  part->bytes += placed_bytes(buffer), ++part->buffers;
  if (placed_bytes(buffer) > part->largest_bytes) part->largest = buffer.name, part->largest_bytes = placed_bytes(buffer);
}

}  // namespace

std::vector<std::int64_t> live_bytes(const Schedule& schedule, const Lives& lives, Tier tier) {
  std::vector<std::int64_t> live(static_cast<std::size_t>(moments_of(schedule)) + 1, 0);
  for (std::size_t b = 0; b < lives.size(); ++b) {
    const Buffer& buffer = schedule.buffers[b];
    if (buffer.tier != tier) continue;
    if (buffer.life == Life::run) {
      live.front() += placed_bytes(buffer);
      continue;
    }
    for (const Moments& life : lives[b]) {
      live[static_cast<std::size_t>(life.first)] += placed_bytes(buffer);
      live[static_cast<std::size_t>(life.last) + 1] -= placed_bytes(buffer);
    }
  }
  for (std::size_t m = 1; m < live.size(); ++m) live[m] += live[m - 1];
  live.pop_back();
  return live;
}

Peak peak_of(const Schedule& schedule, Tier tier) {
  const Lives lives = lives_of(schedule);
  const std::vector<std::int64_t> live = live_bytes(schedule, lives, tier);
  const auto most = std::ranges::max_element(live);
  const std::int64_t kept = kept_bytes(schedule)[static_cast<std::size_t>(tier)];
  const std::int64_t moment = most == live.end() || *most == kept ? -1 : most - live.begin();
  Peak peak;
  if (moment >= 0) name_moment(schedule, moment, peak);
  for (std::size_t b = 0; b < lives.size(); ++b) {
    const Buffer& buffer = schedule.buffers[b];
    if (buffer.tier != tier) continue;
    const auto then = [&](const Moments& life) { return life.first <= moment && moment <= life.last; };
    if (buffer.life == Life::run || std::ranges::any_of(lives[b], then)) add_part(peak, buffer), peak.bytes += placed_bytes(buffer);
  }
  std::ranges::stable_sort(peak.parts, [](const Peak::Part& a, const Peak::Part& b) { return a.bytes > b.bytes; });
  return peak;
}

std::string print_peak(const Peak& peak, Tier tier) {
  std::string out = fmt::format("  {:8} {:>12}   {}\n", name_of(tier), human_bytes(static_cast<double>(peak.bytes)),
                                peak.task.empty() ? "always" : fmt::format("at \"{}\" of section \"{}\"", peak.task, peak.section));
  for (const Peak::Part& part : peak.parts)
    out += fmt::format("    {:14} {:>12}   {}\n", name_of(part.category), human_bytes(static_cast<double>(part.bytes)),
                       part.buffers == 1 ? part.largest
                                         : fmt::format("{} buffers, the largest {} of {}", part.buffers, part.largest,
                                                       human_bytes(static_cast<double>(part.largest_bytes))));
  return out;
}

}  // namespace tessera
