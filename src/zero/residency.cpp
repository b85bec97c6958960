#include "zero/residency.hpp"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace tessera {
namespace {

using Events = std::vector<std::vector<int>>;
using Sizes = std::vector<std::int64_t>;

std::int64_t size_of_unit(const Sizes& elements, int unit) { return elements[static_cast<std::size_t>(unit)]; }

/// Elements live during each event.
std::vector<std::int64_t> live_elements(const std::vector<Residency>& residencies, const Sizes& elements, std::size_t events) {
  std::vector<std::int64_t> change(events + 1, 0);
  for (const Residency& r : residencies) {
    change[static_cast<std::size_t>(r.issue)] += size_of_unit(elements, r.unit);
    change[static_cast<std::size_t>(r.last) + 1] -= size_of_unit(elements, r.unit);
  }
  std::partial_sum(change.begin(), change.end(), change.begin());
  change.pop_back();
  return change;
}

/// Elements that each event reads.
std::vector<std::int64_t> read_elements(const Events& events, const Sizes& elements) {
  std::vector<std::int64_t> read;
  for (const std::vector<int>& units : events) {
    read.push_back(0);
    for (const int unit : units) read.back() += size_of_unit(elements, unit);
  }
  return read;
}

/// Elements of the units whose latest use so far lies after an event: a Fenwick tree over events, where a unit counts once, at its latest
/// use.
class LatestUses {
 public:
  LatestUses(const Sizes& elements, std::size_t events) : elements_(elements), latest_(elements.size(), -1), sums_(events + 1, 0) {}
  void use(int unit, int event) {
    int& latest = latest_[static_cast<std::size_t>(unit)];
    if (latest >= 0) add(latest, -size_of_unit(elements_, unit));
    add(latest = event, size_of_unit(elements_, unit));
  }
  int latest(int unit) const { return latest_[static_cast<std::size_t>(unit)]; }
  std::int64_t after(int event) const { return total_ - until(event); }

 private:
  void add(int event, std::int64_t n) {
    total_ += n;
    for (auto i = static_cast<std::size_t>(event) + 1; i < sums_.size(); i += i & (~i + 1)) sums_[i] += n;
  }
  std::int64_t until(int event) const {
    std::int64_t sum = 0;
    for (auto i = static_cast<std::size_t>(event) + 1; i > 0; i -= i & (~i + 1)) sum += sums_[i];
    return sum;
  }
  const Sizes& elements_;
  std::vector<int> latest_;
  std::vector<std::int64_t> sums_;
  std::int64_t total_ = 0;
};

/// Between a use of a unit and its next one.
struct Gap {
  std::int64_t distance;      ///< elements of other units that are used strictly between the two
  std::size_t before, after;  ///< numbers of the uses
};

std::vector<Gap> gaps_between(const Events& events, const Sizes& elements) {
  std::vector<Gap> gaps;
  std::vector<std::size_t> previous(elements.size());
  LatestUses uses(elements, events.size());
  std::size_t number = 0;
  for (int e = 0; e < static_cast<int>(events.size()); ++e) {
    const auto& units = events[static_cast<std::size_t>(e)];
    for (std::size_t k = 0; k < units.size(); ++k) {
      const auto unit = static_cast<std::size_t>(units[k]);
      if (uses.latest(units[k]) >= 0) gaps.push_back({uses.after(uses.latest(units[k])), previous[unit], number + k});
      previous[unit] = number + k;
    }
    for (int unit : units) uses.use(unit, e);
    number += units.size();
  }
  // Of equal gaps, the one that begins first goes first.
  std::sort(gaps.begin(), gaps.end(),
            [](const Gap& a, const Gap& b) { return std::tie(a.distance, a.before) < std::tie(b.distance, b.before); });
  return gaps;
}

/// One residency a use, in order of use.
std::vector<Residency> single_uses(const Events& events) {
  std::vector<Residency> uses;
  for (int e = 0; e < static_cast<int>(events.size()); ++e)
    for (int unit : events[static_cast<std::size_t>(e)]) uses.push_back({unit, e, e, e});
  return uses;
}

/// Joins uses of a unit across gaps, shortest gaps first, as far as both limits allow.
std::vector<Residency> join_uses(const Events& events, const Sizes& elements, const ResidencyLimits& limits) {
  const std::vector<Residency> uses = single_uses(events);
  std::vector<std::int64_t> live = live_elements(uses, elements, events.size());
  std::vector<bool> joined(uses.size(), false);  // to the unit's use before
  std::vector<std::size_t> next(uses.size(), 0);
  for (const Gap& gap : gaps_between(events, elements)) {
    if (gap.distance > limits.max_reuse_elements) break;
    const std::int64_t size = size_of_unit(elements, uses[gap.before].unit);
    const auto begin = live.begin() + uses[gap.before].last + 1, end = live.begin() + uses[gap.after].first;
    if (begin<end&& * std::max_element(begin, end) + size> limits.max_live_elements) continue;
    for (auto event = begin; event < end; ++event) *event += size;
    joined[gap.after] = true;
    next[gap.before] = gap.after;
  }
  std::vector<Residency> result;
  for (std::size_t i = 0; i < uses.size(); ++i) {
    if (joined[i]) continue;
    std::size_t last = i;
    while (next[last] != 0) last = next[last];
    result.push_back({uses[i].unit, uses[i].issue, uses[i].first, uses[last].last});
  }
  return result;
}

}  // namespace

std::vector<Residency> plan_residencies(const Events& events, const Sizes& elements, const ResidencyLimits& limits) {
  std::vector<Residency> result = join_uses(events, elements, limits);
  std::vector<std::int64_t> live = live_elements(result, elements, events.size());
  const std::vector<std::int64_t> read = read_elements(events, elements);
  std::vector<int> live_until(elements.size(), -1);  // of each unit, by the residencies so far
  for (std::size_t i = 0; i < result.size(); ++i) {
    Residency& r = result[i];
    const std::int64_t size = size_of_unit(elements, r.unit);
    const int earliest = i == 0 ? 0 : result[i - 1].issue;
    // Going back from the first use, ever more of the residencies before this one wait unused; all are issued at `earliest` or sooner.
    std::int64_t waiting = 0, with = 0;  // for the same event
    std::size_t used = i;
    while (r.issue > earliest && limits.prefetch_elements > 0) {
      const int e = r.issue - 1;
      for (; used > 0 && result[used - 1].first > e; --used) {
        waiting += size_of_unit(elements, result[used - 1].unit);
        if (result[used - 1].first == r.first) with += size_of_unit(elements, result[used - 1].unit);
      }
      const std::int64_t there = live[static_cast<std::size_t>(e)];
      const bool next = waiting == with, alone = there == read[static_cast<std::size_t>(e)] + with;
      if (waiting + size > limits.prefetch_elements && !next) break;
      if (there + size > limits.max_live_elements && !(next && alone)) break;
      // The same unit may still be live from its last residency: then it would exist twice.
      if (live_until[static_cast<std::size_t>(r.unit)] >= e) break;
      live[static_cast<std::size_t>(e)] += size;
      r.issue = e;
    }
    live_until[static_cast<std::size_t>(r.unit)] = std::max(live_until[static_cast<std::size_t>(r.unit)], r.last);
  }
  return result;
}

}  // namespace tessera
