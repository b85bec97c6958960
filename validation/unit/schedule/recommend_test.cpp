// The search for the fastest layout that fits: the same answer as trying all of them.
#include "schedule/simulate/recommend.hpp"

#include <gtest/gtest.h>

#include "../machine/small_machine.hpp"
#include "schedules.hpp"

namespace tessera::recommend_test {
namespace {

struct Case {
  std::vector<std::string> overrides;
  int ranks = 1;
  MachineProfile machine = test::small_machine();

  Deck deck() const { return test::tiny_deck(overrides, ranks); }
  Placement placement() const { return {.mesh = make_mesh(deck(), ranks), .ranks_per_node = 2, .lanes_side_by_side = true}; }
};

std::vector<Case> cases() {
  const std::vector<std::string> small{"batch.global=4", "batch.micro=2", "model.layers=2"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), small.begin(), small.end());
    return more;
  };
  MachineProfile slow_links = test::small_machine();
  slow_links.network.bandwidth = 1e7, slow_links.transfer.up = slow_links.transfer.down = 1e10;
  return {{with({}), 1},
          {with({"memory.device=1 GiB", "zero.stage=1"}), 2},
          {with({"run.device=cuda", "memory.device=8 GB", "zero.stage=3", "zero.prefetch_bucket_size=1000"}), 4},
          {with({"run.device=cuda", "memory.device=8 GB", "activation.recompute=full", "activation.every=2"}), 4, slow_links}};
}

/// Planned and predicted, one after the other; of a share of the points.
struct Tried {
  SearchPoint at;
  TierBytes bytes;
  Prediction prediction;
};
std::vector<Tried> try_all(const Case& c, std::size_t one_of = 1) {
  std::vector<Tried> all;
  std::size_t number = 0;
  for (SearchPoint& at : search_space(c.deck(), c.machine, c.ranks)) {
    if (number++ % one_of > 0) continue;
    const BuildRequest request = request_for(at.deck, c.placement().mesh, 0, Purpose::training);
    const Schedule schedule = build_schedule(request);
    const MemoryPlan plan = place(schedule);
    all.push_back({std::move(at), plan.bytes, predict(request, schedule, plan, c.machine, c.placement())});
  }
  return all;
}

int offloads(const Deck& deck) {
  return static_cast<int>(deck.zero.offload_optimizer.device) + static_cast<int>(deck.zero.offload_param.device) +
         static_cast<int>(deck.activation.offload);
}

/// Of kernels' memory as much as a share of the points leave free.
LimitsOf limits_of(const std::vector<Tried>& all, double share) {
  std::vector<std::int64_t> bytes;
  for (const Tried& t : all) bytes.push_back(bytes_of(t.bytes, kernel_memory(t.at.deck)));
  std::ranges::sort(bytes);
  const std::int64_t most = bytes[static_cast<std::size_t>(share * static_cast<double>(bytes.size() - 1))];
  return [most](const Deck& deck) {
    MemoryLimits limits;
    limits[static_cast<std::size_t>(kernel_memory(deck))] = MemoryLimit{most, "a share"};
    return limits;
  };
}

TEST(Recommend, EqualsTryingAll) {
  for (const Case& c : cases()) {
    const std::vector<Tried> all = try_all(c);
    ASSERT_GT(all.size(), 12u);
    Recommender recommender(c.deck(), c.machine, c.placement());
    // Falling and rising limits: what is kept from one search must not mislead the next.
    for (const double share : {1.0, 0.5, 0.1, 0.0, 0.7}) {
      const LimitsOf limits = limits_of(all, share);
      const Tried* best = nullptr;
      for (const Tried& t : all)
        if (shortfalls(t.at.deck, t.bytes, limits(t.at.deck)).empty() &&
            (!best || t.prediction.step.seconds < best->prediction.step.seconds))
          best = &t;
      ASSERT_TRUE(best);
      // A hundredth is not worth more offloading.
      const double fastest = best->prediction.step.seconds;
      for (const Tried& t : all)
        if (shortfalls(t.at.deck, t.bytes, limits(t.at.deck)).empty() && t.prediction.step.seconds <= 1.01 * fastest)
          if (std::pair(offloads(t.at.deck), t.prediction.step.seconds) < std::pair(offloads(best->at.deck), best->prediction.step.seconds))
            best = &t;
      const Recommendation r = recommender.best(limits);
      ASSERT_TRUE(r.first) << share;
      EXPECT_TRUE(shortfalls(r.first->deck, r.first->bytes, limits(r.first->deck)).empty());
      EXPECT_LE(r.first->prediction.mfu_causal, 1);
      const Choice& fixed = r.first->deck.activation.recompute == Recompute::automatic ? *r.runner_up : *r.first;
      if (fixed.deck.activation.recompute == Recompute::automatic) continue;
      EXPECT_DOUBLE_EQ(fixed.prediction.step.seconds, best->prediction.step.seconds)
          << share << ": " << overrides_of(fixed.changes) << " against " << overrides_of(best->at.changes);
      EXPECT_LT(r.planned, r.choices) << "not all of them";
      if (r.runner_up) {
        EXPECT_GE(r.runner_up->prediction.step.seconds, r.first->prediction.step.seconds);
        EXPECT_FALSE(why_slower(r.first->prediction, r.runner_up->prediction).empty());
      }
    }
  }
}

// What no point is asked for, since it cannot win, could not have won.
TEST(Recommend, NoPointTakesLessThanItsBounds) {
  for (const Case& c : cases()) {
    const std::vector<SearchPoint> space = search_space(c.deck(), c.machine, c.ranks);
    const SearchBounds bounds(space, c.machine, c.placement());
    double tightest = 0;
    for (const Tried& t : try_all(c, 5)) {
      const BuildRequest request = request_for(t.at.deck, c.placement().mesh, 0, Purpose::training);
      const Schedule schedule = build_schedule(request);
      const TaskSeconds seconds = task_seconds(schedule, c.machine, c.placement());
      const Least far = bounds.of(t.at), near{least_seconds(schedule, seconds, true), least_bytes(schedule)};
      const std::string what = overrides_of(t.at.changes);
      EXPECT_LE(far.seconds, near.seconds * (1 + 1e-9)) << what;
      EXPECT_LE(near.seconds, t.prediction.step.seconds) << what;
      for (const MemoryKind kind : all_memory_kinds) {
        EXPECT_LE(bytes_of(far.bytes, kind), bytes_of(near.bytes, kind)) << what << " " << name_of(kind);
        EXPECT_LE(bytes_of(near.bytes, kind), bytes_of(t.bytes, kind)) << what << " " << name_of(kind);
      }
      EXPECT_LE(
          least_seconds(schedule, seconds, false),
          simulate(schedule, order(schedule, place(schedule), schedule.program(ProgramKind::train)), seconds, {.lanes_side_by_side = false})
              .seconds)
          << what;
      tightest = std::max(tightest, far.seconds / t.prediction.step.seconds);
    }
    EXPECT_GT(tightest, 0.5) << "bounds that say nothing";
  }
}

TEST(Recommend, ChangesMakeTheDeckAndAreOfTheSearchedKeys) {
  for (const Case& c : cases())
    for (const SearchPoint& point : search_space(c.deck(), c.machine, c.ranks)) {
      std::vector<std::string> overrides = c.overrides;
      for (const Change& change : point.changes) {
        std::istringstream words(change.text);
        for (std::string word; words >> word;) overrides.push_back(word);
      }
      EXPECT_EQ(test::tiny_deck(overrides, c.ranks), point.deck) << overrides_of(point.changes);
    }
}

TEST(Recommend, OffersOnlyWhatTheProfileKnows) {
  Case c = cases()[2];
  const auto uses = [&](OffloadDevice device) {
    return std::ranges::any_of(search_space(c.deck(), c.machine, c.ranks), [&](const SearchPoint& p) {
      return p.deck.zero.offload_optimizer.device == device || p.deck.zero.offload_param.device == device ||
             p.deck.activation.offload == device;
    });
  };
  EXPECT_TRUE(uses(OffloadDevice::host) && uses(OffloadDevice::nvme));
  c.machine.disk = {};
  EXPECT_TRUE(uses(OffloadDevice::host) && !uses(OffloadDevice::nvme));
  c.machine.host = {};
  EXPECT_FALSE(uses(OffloadDevice::host));
}

TEST(Recommend, MicroBatchesDivideTheBatchAndReachAllRanks) {
  EXPECT_EQ(micro_sizes({.global = 12, .micro = 3}, 1), (std::vector<std::int64_t>{12, 6, 4, 3, 2, 1}));
  EXPECT_EQ(micro_sizes({.global = 12, .micro = 1}, 4), (std::vector<std::int64_t>{3, 2, 1}));
  EXPECT_EQ(micro_sizes({.global = 4, .micro = 2}, 16), (std::vector<std::int64_t>{2, 1}));
}

TEST(Recommend, WhereNothingFitsTheSmallestPlanIsKnown) {
  const Case c = cases()[2];
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (const Tried& t : try_all(c)) least = std::min(least, memory_bytes(t.bytes));
  MemoryLimits limits;
  limits[static_cast<std::size_t>(MemoryKind::device)] = MemoryLimit{1000, "a limit"};
  const Recommendation r = Recommender(c.deck(), c.machine, c.placement()).best([&](const Deck&) { return limits; });
  EXPECT_FALSE(r.first || r.runner_up);
  EXPECT_EQ(memory_bytes(r.least), least);
}

TEST(Recommend, NamesThePartThatIsLonger) {
  Prediction a, b;
  a.step.seconds = 1, b.step.seconds = 1.5;
  b.step.busy[static_cast<std::size_t>(Lane::compute)] = 0.1, b.step.waited[static_cast<std::size_t>(WaitKind::communication)] = 0.4;
  EXPECT_EQ(why_slower(a, b), "400.000 ms more of exposed communication");
  EXPECT_EQ(why_slower(b, b), "as fast, with more changes of the deck");
}

}  // namespace
}  // namespace tessera::recommend_test
