#include "topology/failure/stragglers.hpp"

#include <algorithm>

namespace tessera {
namespace {

// A window is long enough that a moment of another process does not count; a rank is slow in several of them, one after the other.
constexpr std::int64_t window_steps = 8;
constexpr double window_seconds = 2;
constexpr int slow_windows = 3;
constexpr double slow_ratio = 1.3, slow_seconds = 1e-3;

/// Seconds a step between two notes, by kind.
std::map<std::string, double> seconds_between(const Spent& before, const Spent& now) {
  std::map<std::string, double> seconds;
  for (const auto& [kind, sum] : now.seconds) {
    const auto found = before.seconds.find(kind);
    seconds[kind] = (sum - (found == before.seconds.end() ? 0 : found->second)) / static_cast<double>(now.steps - before.steps);
  }
  return seconds;
}

/// Of two the lower one: a rank is not compared with itself.
double lower_median(std::vector<double> values) {
  const auto middle = values.begin() + (std::ssize(values) - 1) / 2;
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace

std::vector<Straggler> Stragglers::judge(std::span<const Spent* const> ranks, double now) {
  std::map<int, std::vector<int>> roles;
  for (std::size_t r = 0; r < ranks.size(); ++r)
    if (ranks[r]) roles[ranks[r]->role].push_back(static_cast<int>(r));
  std::vector<Straggler> found;
  for (const auto& [role, members] : roles) {
    StragglerWindow& window = windows_[role];
    const auto at = [](int rank) { return static_cast<std::size_t>(rank); };
    if (window.before.empty()) {
      window = {.begun = now, .before = std::vector<Spent>(ranks.size())};
      for (int rank : members) window.before[at(rank)] = *ranks[at(rank)];
      continue;
    }
    if (now - window.begun < window_seconds || members.size() < 2) continue;
    if (std::ranges::any_of(members, [&](int r) { return ranks[at(r)]->steps - window.before[at(r)].steps < window_steps; })) continue;
    std::map<int, std::map<std::string, double>> seconds;
    std::map<std::string, std::vector<double>> by_kind;
    std::vector<double> totals;
    for (int rank : members) {
      seconds[rank] = seconds_between(window.before[at(rank)], *ranks[at(rank)]);
      double total = 0;
      for (const auto& [kind, s] : seconds[rank]) total += s, by_kind[kind].push_back(s);
      totals.push_back(total);
      window.before[at(rank)] = *ranks[at(rank)];
    }
    window.begun = now;
    const double median = lower_median(totals);
    for (std::size_t i = 0; i < members.size(); ++i) {
      StragglerRank& rank = ranks_[members[i]];
      const bool slow = totals[i] > slow_ratio * median && totals[i] - median > slow_seconds;
      rank.slow_windows = slow ? rank.slow_windows + 1 : 0;
      if (rank.slow_windows < slow_windows || rank.named) continue;
      rank.named = true;
      Straggler& straggler = found.emplace_back();
      straggler.rank = members[i], straggler.seconds = totals[i], straggler.median = median;
      double most = 0;
      for (const auto& [kind, s] : seconds[members[i]])
        if (const double more = s - lower_median(by_kind[kind]); more > most) most = more, straggler.kind = kind;
    }
  }
  return found;
}

}  // namespace tessera
