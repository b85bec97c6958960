#include "train/observe/rank_pace.hpp"

#include <string>

namespace tessera {
namespace {

double sum_of(const Spent& spent) {
  double sum = 0;
  for (const auto& [kind, seconds] : spent.seconds) sum += seconds;
  return sum;
}

}  // namespace

io::NamedNumbers RankPace::since_last(std::span<const Spent> ranks) {
  io::NamedNumbers paces;
  if (ranks.size() > most_paced_ranks) return paces;
  before_.resize(ranks.size());
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const std::int64_t steps = ranks[r].steps - before_[r].steps;
    if (steps > 0) paces.emplace_back(std::to_string(r), (sum_of(ranks[r]) - sum_of(before_[r])) / static_cast<double>(steps));
    before_[r] = ranks[r];
  }
  return paces;
}

}  // namespace tessera
