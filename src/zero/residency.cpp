#include "zero/residency.hpp"

#include <algorithm>
#include <set>

namespace tessera {
namespace {

using Events = std::vector<std::vector<int>>;
using Sizes = std::vector<std::int64_t>;

std::int64_t size_of_unit(const Sizes& elements, int unit) { return elements[static_cast<std::size_t>(unit)]; }

/// Elements live during each event.
std::vector<std::int64_t> live_elements(const std::vector<Residency>& residencies, const Sizes& elements, std::size_t events) {
  std::vector<std::int64_t> live(events, 0);
  for (const Residency& r : residencies)
    for (int e = r.issue; e <= r.last; ++e) live[static_cast<std::size_t>(e)] += size_of_unit(elements, r.unit);
  return live;
}

/// Elements of other units that are used strictly between two events.
std::int64_t distance(const Events& events, const Sizes& elements, int unit, int from, int to) {
  std::set<int> seen;
  for (int e = from + 1; e < to; ++e)
    for (int u : events[static_cast<std::size_t>(e)])
      if (u != unit) seen.insert(u);
  std::int64_t sum = 0;
  for (int u : seen) sum += size_of_unit(elements, u);
  return sum;
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
  std::vector<Residency> result = single_uses(events);
  struct Gap {
    std::int64_t distance;
    int unit, from, to;
  };
  std::vector<Gap> gaps;
  for (std::size_t i = 0; i < result.size(); ++i)
    for (std::size_t j = i + 1; j < result.size(); ++j)
      if (result[j].unit == result[i].unit) {
        gaps.push_back(
            {distance(events, elements, result[i].unit, result[i].last, result[j].first), result[i].unit, result[i].last, result[j].first});
        break;
      }
  std::stable_sort(gaps.begin(), gaps.end(), [](const Gap& a, const Gap& b) { return a.distance < b.distance; });
  std::vector<std::int64_t> live = live_elements(result, elements, events.size());
  for (const Gap& gap : gaps) {
    if (gap.distance > limits.max_reuse_elements) break;
    bool fits = true;
    for (int e = gap.from + 1; e < gap.to; ++e)
      fits &= live[static_cast<std::size_t>(e)] + size_of_unit(elements, gap.unit) <= limits.max_live_elements;
    if (!fits) continue;
    for (int e = gap.from + 1; e < gap.to; ++e) live[static_cast<std::size_t>(e)] += size_of_unit(elements, gap.unit);
    auto left = std::find_if(result.begin(), result.end(), [&](const Residency& r) { return r.unit == gap.unit && r.last == gap.from; });
    auto right = std::find_if(result.begin(), result.end(), [&](const Residency& r) { return r.unit == gap.unit && r.first == gap.to; });
    left->last = right->last;
    result.erase(right);
  }
  return result;
}

}  // namespace

std::vector<Residency> plan_residencies(const Events& events, const Sizes& elements, const ResidencyLimits& limits) {
  std::vector<Residency> result = join_uses(events, elements, limits);
  std::vector<std::int64_t> live = live_elements(result, elements, events.size());
  for (std::size_t i = 0; i < result.size(); ++i) {
    Residency& r = result[i];
    const std::int64_t size = size_of_unit(elements, r.unit);
    const int earliest = i == 0 ? 0 : result[i - 1].issue;
    // Units issued before event e and first used at e or later wait, unused, before e.
    auto waiting_before = [&](int e) {
      std::int64_t sum = 0;
      for (std::size_t j = 0; j < i; ++j)
        if (result[j].issue <= e && result[j].first > e) sum += size_of_unit(elements, result[j].unit);
      return sum;
    };
    while (r.issue > earliest) {
      const int e = r.issue - 1;
      if (live[static_cast<std::size_t>(e)] + size > limits.max_live_elements || waiting_before(e) + size > limits.prefetch_elements) break;
      // The same unit may still be live from its last residency: then it would exist twice.
      bool twice = false;
      for (std::size_t j = 0; j < i; ++j) twice |= result[j].unit == r.unit && result[j].last >= e;
      if (twice) break;
      live[static_cast<std::size_t>(e)] += size;
      r.issue = e;
    }
  }
  return result;
}

}  // namespace tessera
