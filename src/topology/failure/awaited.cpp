#include "topology/failure/awaited.hpp"

#include <algorithm>
#include <map>
#include <utility>

namespace tessera {
namespace {

constexpr std::size_t most_seen = 1024;  // a look a second
constexpr double nearly = 0.9;

}  // namespace

void AwaitedLog::keep(Seen seen) {
  seen_.push_back(std::move(seen));
  if (seen_.size() > most_seen) seen_.pop_front();
}

void AwaitedLog::add(double now, double seconds, std::span<const int> ranks) {
  if (!ranks.empty()) keep({.now = now, .seconds = seconds, .ranks = {ranks.begin(), ranks.end()}});
}

void AwaitedLog::add_own_stop(double now, double seconds) { keep({.now = now, .seconds = seconds, .ranks = {0}, .stopped = true}); }

AwaitedRanks AwaitedLog::since(double begin) const {
  std::map<int, double> seconds;
  double stopped = 0;
  for (const Seen& seen : seen_) {
    const double part = std::min(seen.seconds, seen.now - begin);
    if (part <= 0) continue;
    for (const int rank : seen.ranks) seconds[rank] += part;
    if (seen.stopped) stopped += part;
  }
  AwaitedRanks awaited;
  for (const auto& [rank, of] : seconds) awaited.seconds = std::max(awaited.seconds, of);
  for (const auto& [rank, of] : seconds)
    if (of >= nearly * awaited.seconds) awaited.ranks.push_back(rank);
  awaited.stopped = awaited.ranks == std::vector{0} && stopped > awaited.seconds / 2;
  return awaited;
}

}  // namespace tessera
