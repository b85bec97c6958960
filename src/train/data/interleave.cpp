#include "train/data/interleave.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

#include "base/check.hpp"
#include "base/types.hpp"

namespace tessera {
namespace {

constexpr std::int64_t most_slots = 1000000;  // of a period

/// The weights times `scale`, where they are whole numbers then, without their common divisor and not too many together; else nothing.
std::vector<std::int64_t> exact_shares(std::span<const double> weights, double scale) {
  std::vector<std::int64_t> shares;
  std::int64_t divisor = 0, sum = 0;
  for (const double weight : weights) {
    const double scaled = weight * scale, whole = std::round(scaled);
    if (whole < 1 || whole > 1e15 || std::abs(scaled - whole) > 1e-12 * whole) return {};
    shares.push_back(static_cast<std::int64_t>(whole));
    divisor = std::gcd(divisor, shares.back());
  }
  for (std::int64_t& share : shares) sum += share /= divisor;
  if (sum > most_slots) return {};
  return shares;
}

}  // namespace

std::vector<std::int64_t> whole_shares(std::span<const double> weights) {
  for (double scale = 1; scale <= 1e9; scale *= 10)
    if (std::vector<std::int64_t> shares = exact_shares(weights, scale); !shares.empty()) return shares;
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<std::int64_t> shares;
  for (const double weight : weights)
    shares.push_back(std::max<std::int64_t>(1, std::llround(weight / sum * static_cast<double>(most_slots))));
  const std::int64_t divisor = std::accumulate(shares.begin(), shares.end(), std::int64_t{0}, std::gcd<std::int64_t, std::int64_t>);
  for (std::int64_t& share : shares) share /= divisor;
  return shares;
}

Interleave::Interleave(std::vector<std::int64_t> shares) : shares_(std::move(shares)), slots_(shares_.size()) {
  const std::int64_t W = std::accumulate(shares_.begin(), shares_.end(), std::int64_t{0});
  TESSERA_REQUIRE(!shares_.empty() && std::ranges::min(shares_) > 0 && W < std::int64_t{1} << 31, "an interleave needs shares above 0");
  using Job = std::pair<std::int64_t, std::int32_t>;                        // a slot, source
  std::priority_queue<Job, std::vector<Job>, std::greater<>> later, ready;  // by their first slot, by the one before which they are done
  for (std::size_t k = 0; k < shares_.size(); ++k) later.emplace(0, static_cast<std::int32_t>(k));
  source_.reserve(static_cast<std::size_t>(W));
  for (std::int64_t slot = 0; slot < W; ++slot) {
    for (; !later.empty() && later.top().first <= slot; later.pop()) {
      const auto k = static_cast<std::size_t>(later.top().second);
      const auto job = static_cast<std::int64_t>(slots_[k].size());
      if (job < shares_[k]) ready.emplace(ceil_div((job + 1) * W, shares_[k]), later.top().second);
    }
    const std::int32_t source = ready.top().second;
    ready.pop();
    const auto k = static_cast<std::size_t>(source);
    source_.push_back(source);
    slots_[k].push_back(static_cast<std::int32_t>(slot));
    later.emplace(static_cast<std::int64_t>(slots_[k].size()) * W / shares_[k], source);
  }
}

Interleave::Place Interleave::at(std::int64_t cursor) const {
  const int source = source_[static_cast<std::size_t>(cursor % period())];
  return {source, count(source, cursor)};
}

std::int64_t Interleave::count(int source, std::int64_t cursor) const {
  const auto k = static_cast<std::size_t>(source);
  const std::vector<std::int32_t>& slots = slots_[k];
  const auto rest = static_cast<std::int32_t>(cursor % period());
  return cursor / period() * shares_[k] + (std::ranges::lower_bound(slots, rest) - slots.begin());
}

}  // namespace tessera
