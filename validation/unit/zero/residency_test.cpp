// When gathered units live: every limit checked by counting, over random orders of use.
#include "zero/residency.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "../model/random_models.hpp"

namespace tessera::residency_test {
namespace {

struct Case {
  std::vector<std::vector<int>> events;
  std::vector<std::int64_t> elements;
  ResidencyLimits limits;

  std::int64_t size(int unit) const { return elements[static_cast<std::size_t>(unit)]; }
  const std::vector<int>& at(int event) const { return events[static_cast<std::size_t>(event)]; }
  int count() const { return static_cast<int>(events.size()); }
  bool uses(int event, int unit) const { return std::find(at(event).begin(), at(event).end(), unit) != at(event).end(); }
};

Case random_case(test::Random& random) {
  Case c;
  const int units = static_cast<int>(random(1, 6));
  for (int u = 0; u < units; ++u) c.elements.push_back(random(1, 100));
  for (int e = 0, n = static_cast<int>(random(1, 20)); e < n; ++e) {
    std::set<int> used;
    for (int k = static_cast<int>(random(0, 2)); k > 0; --k) used.insert(static_cast<int>(random(0, units - 1)));
    c.events.emplace_back(used.begin(), used.end());
  }
  c.limits = {.prefetch_elements = random(0, 200), .max_live_elements = random(0, 300), .max_reuse_elements = random(0, 200)};
  return c;
}

/// Forward over a model of layers and back again, as a training section has it.
Case there_and_back(int layers, std::int64_t size, ResidencyLimits limits) {
  Case c{.events = {}, .elements = std::vector<std::int64_t>(static_cast<std::size_t>(layers), size), .limits = limits};
  for (int u = 0; u < layers; ++u) c.events.push_back({u}), c.events.push_back({u});
  for (int u = layers - 1; u >= 0; --u) c.events.push_back({u}), c.events.push_back({u});
  return c;
}

std::vector<Residency> plan(const Case& c) { return plan_residencies(c.events, c.elements, c.limits); }

void check_uses_and_order(const Case& c, const std::vector<Residency>& residencies) {
  for (std::size_t i = 0; i < residencies.size(); ++i) {
    const Residency& r = residencies[i];
    ASSERT_LE(0, r.issue);
    ASSERT_LE(r.issue, r.first);
    ASSERT_LE(r.first, r.last);
    ASSERT_LT(r.last, c.count());
    ASSERT_TRUE(c.uses(r.first, r.unit) && c.uses(r.last, r.unit)) << "a residency begins or ends without a use";
    if (i > 0) {
      ASSERT_LE(residencies[i - 1].issue, r.issue) << "a lane works in order";
      ASSERT_LE(residencies[i - 1].first, r.first);
    }
  }
  for (int e = 0; e < c.count(); ++e)
    for (int unit : c.at(e))
      ASSERT_EQ(std::count_if(residencies.begin(), residencies.end(),
                              [&](const Residency& r) { return r.unit == unit && r.first <= e && e <= r.last; }),
                1)
          << "unit " << unit << " in event " << e;
}

void check_limits(const Case& c, const std::vector<Residency>& residencies) {
  for (int e = 0; e < c.count(); ++e) {
    std::int64_t live = 0, needed = 0, waiting = 0;
    std::set<int> waiting_for;
    std::map<int, int> copies;
    for (const Residency& r : residencies) {
      if (e < r.issue || e > r.last) continue;
      ASSERT_EQ(++copies[r.unit], 1) << "unit " << r.unit << " exists twice in event " << e;
      live += c.size(r.unit);
      if (c.uses(e, r.unit)) needed += c.size(r.unit);
      if (e < r.first) waiting += c.size(r.unit), waiting_for.insert(r.first);
    }
    const bool next = waiting_for.size() == 1 && c.limits.prefetch_elements > 0;  // what one event needs may always wait
    ASSERT_TRUE(live <= std::max(needed, c.limits.max_live_elements) || (next && live == needed + waiting)) << "event " << e;
    ASSERT_TRUE(waiting <= c.limits.prefetch_elements || next) << "event " << e;
  }
}

/// Elements of other units used strictly between two events.
std::int64_t used_between(const Case& c, int unit, int from, int to) {
  std::set<int> others;
  for (int e = from + 1; e < to; ++e)
    for (int u : c.at(e))
      if (u != unit) others.insert(u);
  std::int64_t sum = 0;
  for (int u : others) sum += c.size(u);
  return sum;
}

void check_reuse(const Case& c, const std::vector<Residency>& residencies) {
  for (const Residency& r : residencies) {
    int before = r.first;
    for (int e = r.first + 1; e <= r.last; ++e)
      if (c.uses(e, r.unit)) {
        ASSERT_LE(used_between(c, r.unit, before, e), c.limits.max_reuse_elements) << "unit " << r.unit << " stays too long";
        before = e;
      }
  }
}

/// The rules as one would write them down, each counted anew: what plan_residencies() must return to the event, because the schedules of
/// all ranks come from it.
std::vector<Residency> by_the_rules(const Case& c) {
  std::vector<Residency> result;
  for (int e = 0; e < c.count(); ++e)
    for (int unit : c.at(e)) result.push_back({unit, e, e, e});
  auto live = [&](int e) {
    std::int64_t sum = 0;
    for (const Residency& r : result)
      if (r.issue <= e && e <= r.last) sum += c.size(r.unit);
    return sum;
  };
  struct Gap {
    std::int64_t distance;
    int unit, from, to;
  };
  std::vector<Gap> gaps;
  for (std::size_t i = 0; i < result.size(); ++i) {
    const auto next = std::find_if(result.begin() + static_cast<std::ptrdiff_t>(i) + 1, result.end(),
                                   [&](const Residency& r) { return r.unit == result[i].unit; });
    if (next != result.end())
      gaps.push_back({used_between(c, next->unit, result[i].last, next->first), next->unit, result[i].last, next->first});
  }
  std::stable_sort(gaps.begin(), gaps.end(), [](const Gap& a, const Gap& b) { return a.distance < b.distance; });
  for (const Gap& gap : gaps) {
    bool fits = gap.distance <= c.limits.max_reuse_elements;
    for (int e = gap.from + 1; e < gap.to; ++e) fits &= live(e) + c.size(gap.unit) <= c.limits.max_live_elements;
    if (!fits) continue;
    const auto ends = [&](const Residency& r) { return r.unit == gap.unit && r.last == gap.from; };
    const auto begins = [&](const Residency& r) { return r.unit == gap.unit && r.first == gap.to; };
    const auto right = std::find_if(result.begin(), result.end(), begins);
    std::find_if(result.begin(), result.end(), ends)->last = right->last;
    result.erase(right);
  }
  for (std::size_t i = 0; i < result.size(); ++i) {
    Residency& r = result[i];
    for (int e = r.issue - 1; e >= (i == 0 ? 0 : result[i - 1].issue); --e) {
      std::int64_t waiting = 0, others_waiting = 0, read = 0;
      bool twice = false;
      for (std::size_t j = 0; j < i; ++j) {
        if (result[j].issue <= e && result[j].first > e) {
          waiting += c.size(result[j].unit);
          if (result[j].first != r.first) others_waiting += c.size(result[j].unit);
        }
        twice |= result[j].unit == r.unit && result[j].last >= e;
      }
      for (const int unit : c.at(e)) read += c.size(unit);
      const bool next = others_waiting == 0, room = live(e) + c.size(r.unit) <= c.limits.max_live_elements;
      if (twice || c.limits.prefetch_elements == 0) break;
      if (!next && waiting + c.size(r.unit) > c.limits.prefetch_elements) break;
      if (!room && !(next && live(e) == read + waiting)) break;
      r.issue = e;
    }
  }
  return result;
}

std::string text(const std::vector<Residency>& residencies) {
  std::string out;
  for (const Residency& r : residencies) out += fmt::format("{}:{}-{}-{} ", r.unit, r.issue, r.first, r.last);
  return out;
}

TEST(Residency, FollowsTheRules) {
  test::Random random(5);
  for (int trial = 0; trial < 3000; ++trial) {
    const std::int64_t size = random(1, 50);
    const Case c = trial % 2 ? random_case(random)
                             : there_and_back(static_cast<int>(random(1, 12)), size,
                                              {.prefetch_elements = random(0, 4 * size),
                                               .max_live_elements = random(0, 8 * size),
                                               .max_reuse_elements = random(0, 8 * size)});
    ASSERT_EQ(text(plan(c)), text(by_the_rules(c))) << "trial " << trial;
  }
}

TEST(Residency, HoldsForRandomOrdersOfUse) {
  test::Random random(1);
  for (int trial = 0; trial < 3000; ++trial) {
    const Case c = random_case(random);
    const auto residencies = plan(c);
    check_uses_and_order(c, residencies);
    check_limits(c, residencies);
    check_reuse(c, residencies);
    if (testing::Test::HasFatalFailure()) {
      FAIL() << "trial " << trial;
    }
  }
}

TEST(Residency, HoldsForLayersThereAndBack) {
  test::Random random(2);
  for (int trial = 0; trial < 300; ++trial) {
    const std::int64_t size = random(1, 50);
    const Case c = there_and_back(
        static_cast<int>(random(1, 12)), size,
        {.prefetch_elements = random(0, 4 * size), .max_live_elements = random(0, 8 * size), .max_reuse_elements = random(0, 8 * size)});
    const auto residencies = plan(c);
    check_uses_and_order(c, residencies);
    check_limits(c, residencies);
    check_reuse(c, residencies);
    if (testing::Test::HasFatalFailure()) {
      FAIL() << "trial " << trial;
    }
  }
}

TEST(Residency, WithoutReuseOnlyAdjacentUsesAreJoined) {
  const auto residencies = plan(there_and_back(4, 10, {.prefetch_elements = 0, .max_live_elements = 1000, .max_reuse_elements = 0}));
  ASSERT_EQ(residencies.size(), 7u);  // the last layer goes straight from forward to backward
  for (const Residency& r : residencies) {
    EXPECT_EQ(r.issue, r.first);
    EXPECT_EQ(r.last - r.first, r.unit == 3 ? 3 : 1);
  }
}

TEST(Residency, WithRoomForAllEachUnitIsGatheredOnce) {
  const auto residencies = plan(there_and_back(5, 10, {.prefetch_elements = 1000, .max_live_elements = 1000, .max_reuse_elements = 1000}));
  ASSERT_EQ(residencies.size(), 5u);
  for (const Residency& r : residencies) EXPECT_EQ(r.issue, 0) << "nothing stands against gathering all at once";
}

TEST(Residency, WithRoomForNothingWhatAnEventNeedsStillComes) {
  const auto residencies = plan(there_and_back(3, 10, {.prefetch_elements = 0, .max_live_elements = 0, .max_reuse_elements = 1000}));
  for (const Residency& r : residencies) EXPECT_EQ(r.issue, r.first);
}

TEST(Residency, OneUnitComesAheadHoweverSmallTheLimits) {
  const auto residencies = plan(there_and_back(5, 10, {.prefetch_elements = 1, .max_live_elements = 0, .max_reuse_elements = 0}));
  ASSERT_EQ(residencies.size(), 9u);
  for (std::size_t i = 1; i < residencies.size(); ++i)
    EXPECT_EQ(residencies[i].issue, residencies[i - 1].first) << "beside the unit in use, and none before: unit " << residencies[i].unit;
}

TEST(Residency, UnitsOfOneEventComeTogether) {
  // A layer with experts: the second event reads two units.
  const auto residencies = plan({.events = {{0}, {1, 2}, {3}}, .elements = {10, 10, 10, 10}, .limits = {.prefetch_elements = 1}});
  EXPECT_EQ(text(residencies), "0:0-0-0 1:0-1-1 2:0-1-1 3:1-2-2 ");
}

TEST(Residency, PrefetchReachesOneUnitAhead) {
  const auto residencies = plan(there_and_back(4, 10, {.prefetch_elements = 10, .max_live_elements = 20, .max_reuse_elements = 0}));
  for (std::size_t i = 1; i < residencies.size(); ++i) EXPECT_LT(residencies[i].issue, residencies[i].first) << i;
}

TEST(Residency, NoEventsNoResidencies) { EXPECT_TRUE(plan_residencies({}, {}, {}).empty()); }

}  // namespace
}  // namespace tessera::residency_test
