// Where the wall time of a run went: histories that are drawn, whose times are known, against what events and rows tell of them.
#include "train/observe/goodput.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "../sample.hpp"

namespace tessera::goodput_test {
namespace {

/// A run as it happens: the truth, and what stands in its files.
struct History {
  explicit History(std::uint64_t seed) : random(seed) {}
  std::mt19937_64 random;
  double clock = 1.7e9;
  Goodput truth;
  double first = 0, seen = 0;
  std::vector<io::Event> events, bare;  ///< as the ledger writes them; without the sums so far
  std::vector<StepRow> rows;            ///< as metrics.jsonl holds them
  GoodputAccount account;               ///< the ledger's
  std::vector<std::int64_t> saves = {0};
  std::set<double> given_up;  ///< times of rows whose steps are done again, which may stand there still

  double draw(double most) { return std::uniform_real_distribution<double>(0, most)(random); }
  bool chance(double share) { return draw(1) < share; }
  void pass(double Goodput::*part, double seconds) { clock += seconds, truth.*part += seconds; }

  void write(std::int64_t step, const char* name, Json fields, bool sums = false) {
    io::Event event{.time = clock, .step = step, .event = name, .fields = std::move(fields)};
    bare.push_back(event);
    account.add(event);
    if (sums) event.fields["goodput"] = goodput_json(account.at(clock));
    events.push_back(event);
    seen = clock;
  }

  StepWork sum_of(auto&& which) const {
    StepWork sum;
    for (const StepRow& row : rows)
      if (which(row)) sum += row.work;
    return sum;
  }

  /// `cuts`: it is not killed before metrics.jsonl is cut back.
  void start(std::int64_t from, bool trains, bool cuts) {
    const double launched = clock;
    if (events.empty()) first = seen = clock;
    truth.queued += clock - seen;
    account = {};  // a process of its own
    for (const io::Event& event : events) account.add(event);
    const StepWork lost = sum_of([&](auto& row) { return row.step > from; });
    pass(&Goodput::starting, 1 + draw(60));
    write(from, "start",
          {{"launched", launched},
           {"lost_steps", lost.steps},
           {"lost_seconds", lost.seconds},
           {"kept", work_json(sum_of([&](auto& row) { return row.step <= from; }))},
           {"last_row", rows.empty() ? 0.0 : rows.back().time}},
          true);
    for (const StepRow& row : rows)
      if (row.step > from && given_up.insert(row.time).second)
        truth.lost += row.work.seconds, truth.productive -= row.work.seconds - row.work.stalled, truth.stalled -= row.work.stalled;
    if (trains || cuts) std::erase_if(rows, [&](auto& row) { return row.step > from; });
    if (trains) pass(&Goodput::starting, 1 + draw(30)), write(from, "training", {{"seconds", clock - launched}});
  }

  void step(std::int64_t number) {
    const double usual = 0.1 + draw(2), stalled = chance(0.05) ? draw(30) : 0, seconds = usual + stalled;
    pass(&Goodput::productive, usual);
    pass(&Goodput::stalled, stalled);
    pass(&Goodput::other, draw(0.05));
    rows.push_back({.time = clock, .step = number, .work = work_of_step(seconds, 1000 + draw(100), 0.4 + draw(0.1), 0.3, stalled)});
    account.add({.step = number, .work = rows.back().work});
    seen = clock;
  }

  void save(std::int64_t step) {
    const double stall = draw(5), in_step = chance(0.5) ? draw(0.1) : 0;
    pass(&Goodput::saving, stall);
    write(step, "save", {{"seconds", stall + 1}, {"stall_seconds", stall + in_step}, {"in_steps", in_step}}, true);
    saves.push_back(step);
  }

  /// Some starts of some steps, however each ends.
  void live() {
    const std::int64_t starts = 1 + static_cast<std::int64_t>(draw(6));
    for (std::int64_t n = 0; n < starts; ++n) {
      const std::int64_t from = chance(0.7) ? saves.back() : saves[static_cast<std::size_t>(draw(static_cast<double>(saves.size())))];
      std::erase_if(saves, [&](std::int64_t step) { return step > from; });
      const bool trains = chance(0.8);
      start(from, trains, chance(0.5));
      const std::int64_t most = static_cast<std::int64_t>(draw(40));
      for (std::int64_t done = from; trains && done < from + most;) {
        step(++done);
        if (chance(0.1)) {
          const double seconds = draw(3);
          pass(&Goodput::evaluating, seconds), write(done, "evaluation", {{"seconds", seconds}, {"val_loss", 2.0}});
        }
        if (chance(0.15)) save(done);
      }
      if (chance(0.4)) pass(&Goodput::other, trains ? draw(1) : 0), write(from, "end", {{"reason", "signal"}, {"exit", 75}}, trains);
      if (n + 1 < starts) clock += draw(3600);  // the queue, and before it what no file tells of a kill
    }
    truth.wall = seen - first;
  }
};

void expect_same(const Goodput& is, const Goodput& wanted, const std::string& what) {
  double sum = 0;
  for (const GoodputPart& part : goodput_parts()) {
    EXPECT_NEAR(is.*part.seconds, wanted.*part.seconds, 1e-5) << what << ": " << part.name;
    EXPECT_GE(is.*part.seconds, -1e-5) << what << ": " << part.name;
    sum += is.*part.seconds;
  }
  EXPECT_NEAR(is.wall, wanted.wall, 1e-5) << what;
  EXPECT_NEAR(sum, is.wall, 1e-9 * is.wall) << what;
}

TEST(Goodput, PartsOfDrawnHistoriesAreWhatHappened) {
  int killed_early = 0, lost = 0;
  for (const std::size_t n : test::Sample().of(1000000, 300, 3000)) {
    History run(n);
    run.live();
    const std::string what = fmt::format("history {}", n);
    expect_same(goodput(run.bare, run.rows), run.truth, what);
    expect_same(goodput(run.events, run.rows), run.truth, what + ", from the sums so far");
    // A look at the ends of both files finds the same.
    auto tail = run.events.end() - 1;
    while (!tail->fields.contains("goodput")) --tail;
    std::vector<StepRow> last;
    for (const StepRow& row : run.rows)
      if (row.time > tail->time) last.push_back(row);
    const Goodput seen = goodput({tail, run.events.end()}, last);
    expect_same(seen, run.truth, what + ", from the ends of files");
    EXPECT_FALSE(seen.estimated) << what;
    killed_early += run.events.back().event == "start", lost += run.truth.lost > 0;
    if (HasFailure()) break;
  }
  EXPECT_GT(killed_early, 5);
  EXPECT_GT(lost, 50);
}

TEST(Goodput, RowsThatWereNotReadAreEstimated) {
  History run(7);
  run.start(0, true, true);
  for (std::int64_t step = 1; step <= 100; ++step) run.step(step);
  const Goodput whole = goodput(run.events, run.rows), part = goodput(run.events, std::span(run.rows).subspan(60));
  EXPECT_TRUE(part.estimated);
  EXPECT_EQ(part.work.steps, 100);
  EXPECT_NEAR(part.productive, whole.productive, 0.2 * whole.productive);
  EXPECT_NEAR(part.wall, whole.wall, 1e-6);
}

TEST(Goodput, OfARunFromBeforeThereWereEventsTheHistoryCounts) {
  History run(3);
  run.start(0, true, true);
  for (std::int64_t step = 1; step <= 20; ++step) run.step(step);
  run.events.clear(), run.bare.clear(), run.truth = {}, run.clock += 1000, run.first = run.clock;
  run.start(15, true, true);
  run.truth.lost = run.truth.productive = 0;  // of before
  for (std::int64_t step = 16; step <= 30; ++step) run.step(step);
  run.clock += 100;
  // Goes back to before the history begins: of what is done twice ten steps are of before.
  run.start(5, true, true);
  double productive = 0, history = 0;
  const auto of = [](const StepRow& row) { return row.work.seconds - row.work.stalled; };
  for (std::int64_t step = 6; step <= 8; ++step) run.step(step), productive += of(run.rows.back());
  for (const StepRow& row : run.rows) history += row.step > 5 ? of(row) : 0;
  const Goodput g = goodput(run.bare, run.rows);
  EXPECT_NEAR(g.productive, productive, 1e-9);
  EXPECT_NEAR(productive, history, 1e-9);
  EXPECT_LE(g.lost + g.productive + g.starting + g.queued, g.wall + 1e-6);
  EXPECT_GE(g.other, 0);
  EXPECT_EQ(goodput({}, run.rows).wall, 0) << "nothing is known without events";
}

TEST(Goodput, ClocksThatDisagreeLeaveNoPartBelowZero) {
  History run(5);
  run.start(0, true, true);
  for (std::int64_t step = 1; step <= 20; ++step) run.step(step);
  run.clock -= 500;  // the next node's
  run.start(10, true, true);
  for (std::int64_t step = 11; step <= 20; ++step) run.step(step);
  const Goodput g = goodput(run.bare, run.rows);
  double sum = 0;
  for (const GoodputPart& part : goodput_parts()) {
    EXPECT_GE(g.*part.seconds, 0) << part.name;
    sum += g.*part.seconds;
  }
  EXPECT_DOUBLE_EQ(sum, g.wall);
}

TEST(Goodput, RowsOfStepsAloneAreSteps) {
  EXPECT_FALSE(step_row({{"step", std::int64_t{3}}, {"time", 5.0}, {"val_loss", 2.0}}));
  const auto row = step_row(
      {{"step", std::int64_t{3}}, {"time", 5.0}, {"loss", 2.0}, {"tokens_per_second", std::int64_t{100}}, {"seconds", 0.5}, {"mfu", 0.4}});
  ASSERT_TRUE(row);
  EXPECT_EQ(row->step, 3);
  EXPECT_EQ(row->work.tokens, 50);
  EXPECT_EQ(row->work.full_rate_seconds, 0.2);
  EXPECT_EQ(row->work.stalled, 0);
  const auto stalled = step_row({{"step", std::int64_t{4}},
                                 {"time", 25.0},
                                 {"loss", 2.0},
                                 {"tokens_per_second", 2.5},
                                 {"seconds", 20.0},
                                 {"stalled_seconds", 19.5},
                                 {"of_product", 0.25},
                                 {"of_product_causal", 0.125}});
  ASSERT_TRUE(stalled);
  EXPECT_EQ(stalled->work.stalled, 19.5);
  EXPECT_EQ(stalled->work.full_rate_seconds, 5);
  EXPECT_EQ(stalled->work.full_rate_seconds_causal, 2.5);
}

}  // namespace
}  // namespace tessera::goodput_test
