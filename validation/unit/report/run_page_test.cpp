// What a run's folder becomes: columns, few points that keep every spike, times of ranks, and a page in which no text of a user is markup.
#include <gtest/gtest.h>

#include <cmath>

#include "../model/random_models.hpp"
#include "../scratch.hpp"
#include "report/page/charts.hpp"
#include "report/page/html.hpp"
#include "report/page/page.hpp"
#include "report/page/reduce.hpp"
#include "report/page/runs_page.hpp"
#include "report/page/sections.hpp"

namespace tessera {
namespace {

constexpr double none = std::numeric_limits<double>::quiet_NaN();

void write_text(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

TEST(Reduce, KeepsLeastAndMostOfEachBucket) {
  std::vector<double> column(1000, 1.0);
  column[123] = 50, column[777] = -3, column[500] = none;
  const auto ends = bucket_ends(column.size(), 10);
  ASSERT_EQ(ends.size(), 10u);
  EXPECT_EQ(ends.front(), 100u);
  EXPECT_EQ(ends.back(), 1000u);
  const ReducedColumn reduced = reduce_column(column, ends);
  EXPECT_EQ(reduced.high[1], 50);
  EXPECT_DOUBLE_EQ(reduced.mean[1], 1.49);
  EXPECT_EQ(reduced.low[7], -3);
  EXPECT_EQ(reduced.mean[5], 1);  // without what is no number
  const ReducedColumn nothing = reduce_column(std::vector<double>{none, none}, bucket_ends(2, 1));
  std::vector<double> norms(100, 1.0);
  norms[40] = 1e6;
  EXPECT_NEAR(reduce_column(norms, bucket_ends(100, 1), true).mean[0], std::pow(1e6, 0.01), 1e-9) << "on a scale of logarithms";
  EXPECT_NEAR(reduce_column(std::vector<double>{0, 4}, bucket_ends(2, 1), true).mean[0], 2, 1e-12) << "0 has no logarithm";
  EXPECT_TRUE(std::isnan(nothing.mean[0]) && std::isnan(nothing.low[0]) && std::isnan(nothing.high[0]));
}

TEST(Reduce, LeavesFewRowsAsTheyAre) {
  EXPECT_EQ(bucket_ends(3, 10), (std::vector<std::size_t>{1, 2, 3}));
  EXPECT_TRUE(bucket_ends(0, 10).empty());
  EXPECT_EQ(number_list(std::vector<double>{1, 2.5, none, 1e-7, 123456789}), "[1,2.5,null,1e-07,1.23457e+08]");
}

TEST(Html, LetsNothingOfAUserBecomeMarkup) {
  EXPECT_EQ(html("</script><b a='1' c=\"2\">&"), "&lt;/script&gt;&lt;b a=&#39;1&#39; c=&quot;2&quot;&gt;&amp;");
  EXPECT_EQ(html("a\x1b[2Jb\n"), "a [2Jb\n");
  EXPECT_EQ(script_json("{\"a\":\"</script><!--\"}"), "{\"a\":\"\\u003c/script>\\u003c!--\"}");
  EXPECT_EQ(html_words("run `a <b>` and ` alone"), "run <code>a &lt;b&gt;</code> and ` alone");
}

TEST(Html, WritesSpansForPeople) {
  EXPECT_EQ(span_text(0.0000012), "1.2 µs");
  EXPECT_EQ(span_text(0.5), "500 ms");
  EXPECT_EQ(span_text(61), "61 s");
  EXPECT_EQ(span_text(3601), "60 min 1 s");
  EXPECT_EQ(span_text(7260), "2 h 1 min");
  EXPECT_EQ(span_text(200000), "2 d 7 h");
  EXPECT_EQ(moment_text(1795701627), "2026-11-26 14:00:27 UTC");
  EXPECT_EQ(moment_text(none), "-");
}

/// Two starts, of which the first was killed; steps 1 to 6, an evaluation and a save.
RunHistory small_run(const test::Scratch& scratch) {
  write_text(scratch / "metrics.jsonl",
             "{\"step\": 0, \"time\": 1000, \"ranks\": 2, \"version\": \"0.2.0\", \"MPI\": \"M <x>\"}\n"
             "{\"step\": 1, \"time\": 1001, \"loss\": 5.5, \"seconds\": 1.0, \"tokens_per_second\": 10, \"seconds_of\": "
             "{\"forward\":0.75,\"data\":0.25}}\n"
             "{\"step\": 2, \"time\": 1002, \"loss\": null, \"seconds\": 1.0, \"tokens_per_second\": 10, \"loss_of_files\": "
             "{\"d/a.h5\":4,\"d/b.h5\":6}}\n"
             "{\"step\": 2, \"time\": 1002.5, \"val_loss\": 5.25}\n"
             "{\"step\": 2, \"time\": 1003, \"saved\": 2, \"save_seconds\": 0.5, \"save_stall_seconds\": 0.25}\n"
             "{\"step\": 2, \"time\": 1010, \"ranks\": 4, \"version\": \"0.2.0\"}\n"
             "{\"step\": 3, \"time\": 1012, \"loss\": 4.5, \"seconds\": 2.0, \"tokens_per_second\": 5}\n"
             "{\"step\": 4, \"ti");
  return read_run_history(scratch.path());
}

TEST(RunHistory, PutsRowsWhereTheyBelong) {
  const test::Scratch scratch;
  const RunHistory run = small_run(scratch);
  EXPECT_EQ(run.steps.step, (std::vector<std::int64_t>{1, 2, 3}));
  ASSERT_NE(run.steps.find("loss"), nullptr);
  EXPECT_EQ((*run.steps.find("loss"))[0], 5.5);
  EXPECT_TRUE(std::isnan((*run.steps.find("loss"))[1]));
  EXPECT_EQ((*run.steps.find("loss"))[2], 4.5);
  const auto files = run.steps.group("loss_of_files/");
  ASSERT_EQ(files.size(), 2u);
  EXPECT_EQ(files[1].first, "d/b.h5");
  EXPECT_TRUE(std::isnan((*files[1].second)[0]));
  EXPECT_EQ((*files[1].second)[1], 6);
  EXPECT_EQ(files[1].second->size(), 3u);
  ASSERT_EQ(run.evaluations.size(), 1u);
  EXPECT_EQ(run.evaluations[0].loss, 5.25);
  ASSERT_EQ(run.saves.size(), 1u);
  EXPECT_EQ(run.saves[0].stall, 0.25);
  ASSERT_EQ(run.starts.size(), 2u);
  EXPECT_EQ(run.ranks(), 4);
}

TEST(RunHistory, RefusesAFolderOfNoRun) {
  const test::Scratch scratch;
  try {
    read_run_history(scratch.path());
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code, ExitCode::usage);
    EXPECT_NE(std::string(error.what()).find(scratch.path()), std::string::npos);
  }
}

TEST(RunFigures, SumsWhatBecameOfTheTime) {
  const test::Scratch scratch;
  RunHistory run = small_run(scratch);
  const auto event = [&](double time, std::int64_t step, const char* name, Json fields) {
    run.events.push_back({.time = time, .step = step, .event = name, .fields = std::move(fields)});
  };
  event(990, 0, "start", {{"launched", 980.0}, {"lost_seconds", 0.0}});
  event(1000, 0, "training", {{"seconds", 20.0}});
  event(1002.5, 2, "evaluation", {{"seconds", 0.5}});
  event(1009, 2, "start", {{"launched", 1005.0}, {"lost_seconds", 1.5}});
  event(1010, 2, "training", {{"seconds", 5.0}});
  event(1020, 3, "end", {{"reason", "signal"}});
  const RunFigures f = figures_of_run(run, {});
  ASSERT_TRUE(f.goodput);  // whose sums train_goodput tests
  EXPECT_DOUBLE_EQ(f.goodput->wall, 40);
  EXPECT_DOUBLE_EQ(f.goodput->starting, 25);
  EXPECT_DOUBLE_EQ(f.goodput->lost, 1.5);
  EXPECT_EQ(f.starts, 2);
  EXPECT_EQ(f.killed, 1);
  EXPECT_EQ(f.without_loss, 1);
  EXPECT_EQ(f.steps_done, 3);
  EXPECT_DOUBLE_EQ(f.step_seconds, 1);
  EXPECT_DOUBLE_EQ(f.share("forward"), 0.75);
  EXPECT_DOUBLE_EQ(f.share("data"), 0.25);
  EXPECT_EQ(f.best_validation, 5.25);
}

TEST(RunFigures, NamesRanksThatComputeLonger) {
  std::vector<RankTimes> ranks;
  for (int rank = 0; rank < 5; ++rank) ranks.push_back({.rank = rank, .compute = rank == 3 ? 1.5 : 1});
  const auto slow = slow_ranks(ranks);
  ASSERT_EQ(slow.size(), 1u);
  EXPECT_EQ(slow[0].rank, 3);
  EXPECT_DOUBLE_EQ(slow[0].excess, 0.5);
}

/// A trace as schedule/trace writes it: two lanes, of which one has many short tasks.
std::string small_trace(int rank) {
  std::string text = "{\"traceEvents\": [{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":0,\"tid\":0,\"args\":{\"name\":\"compute\"}}";
  const auto task = [&](const std::string& name, const char* kind, int lane, double begin, double length) {
    text += fmt::format(",\n{{\"name\":\"{}\",\"cat\":\"{}\",\"ph\":\"X\",\"pid\":0,\"tid\":{},\"ts\":{},\"dur\":{}}}", name, kind, lane,
                        begin, length);
  };
  task("forward a", "forward", 0, 0, 400000);
  for (int i = 0; i < 100; ++i) task(fmt::format("norm {}", i), "step", 0, 400000 + 10 * i, 9);
  task("forward b", "forward", 0, 500000, 100000);
  task("gather", "gather", 1, 10, 250000);
  return text +
         fmt::format(
             "],\"otherData\": {{\"rank\": {}, \"seconds\": 1.0, \"exposed_communication_seconds\": 0.1, \"idle_seconds\": 0.2, \"lanes\": "
             "{{\"compute\": {{\"busy_seconds\": {}}}}}}}}}",
             rank, rank == 1 ? 0.75 : 0.5);
}

TEST(StepTrace, JoinsWhatAScreenCannotPart) {
  const TraceBars bars = bars_of_trace(small_trace(0));
  ASSERT_EQ(bars.lanes.size(), 2u);
  EXPECT_EQ(bars.lanes[0].name, "compute");
  EXPECT_EQ(bars.lanes[1].name, "lane 1");
  ASSERT_EQ(bars.lanes[0].bars.size(), 3u);
  EXPECT_EQ(bars.lanes[0].bars[1].tasks, 100);
  EXPECT_NEAR(bars.lanes[0].bars[1].seconds, 0.000999, 1e-9);
  EXPECT_EQ(bars.kinds[bars.lanes[0].bars[1].kind], "other");
  EXPECT_DOUBLE_EQ(bars.lanes[0].bars[2].begin, 0.5);
}

TEST(StepTrace, ShowsTheRankThatComputedLongest) {
  const test::Scratch scratch;
  test::fs::create_directories(scratch / "trace/step-00000007");
  for (int rank = 0; rank < 3; ++rank)
    write_text(fmt::format("{}/rank-{:04}.json", scratch / "trace/step-00000007", rank), small_trace(rank));
  write_text(scratch / "trace/step-00000007/rank-0003.json", "{\"traceEvents\": [");
  const auto traced = read_traced_step(scratch / "trace/step-00000007", 7);
  ASSERT_TRUE(traced);
  EXPECT_EQ(traced->ranks.size(), 3u);
  EXPECT_EQ(traced->shown, 1);
  ASSERT_EQ(traced->ranks[0].kinds.size(), 3u);
  EXPECT_EQ(traced->ranks[0].kinds[0].first, "forward");
  EXPECT_NEAR(traced->ranks[0].kinds[0].second, 0.5, 1e-9);
  EXPECT_FALSE(read_traced_step(scratch / "trace/step-00000008", 8));
}

/// So many rows with everything that a row can have, and a spike in the loss.
void write_long_run(const std::string& path, int rows) {
  std::ofstream out(path);
  out << "{\"step\": 0, \"time\": 1e9, \"ranks\": 8}\n";
  for (int i = 1; i <= rows; ++i) {
    const double noise = 1 + 1e-3 * ((i * 7919) % 997);
    out << fmt::format(
        "{{\"step\": {}, \"time\": {}, \"loss\": {}, \"grad_norm\": {}, \"lr\": 3e-4, \"tokens_per_second\": {}, \"seconds\": {}, \"mfu\": "
        "0.4, "
        "\"mfu_causal\": 0.38, \"seconds_of\": {{\"forward\":{},\"backward\":{},\"data\":0.01}}, \"loss_of_files\": "
        "{{\"a.h5\":{},\"b.h5\":{}}}}}\n",
        i, 1e9 + i, i == rows / 2 ? 99.5 : 2 * noise, noise, 1e6 * noise, 1.234567 * noise, 0.4 * noise, 0.8 * noise, 2 * noise,
        2.1 * noise);
  }
}

TEST(RunPage, HoldsALongRunInFewNumbers) {
  const test::Scratch scratch;
  write_long_run(scratch / "metrics.jsonl", 100'000);
  PageInput in;
  in.run = read_run_history(scratch.path());
  const RunPage page(std::move(in));
  const Json data = page.data();
  const Json& numbers = data["numbers"];
  EXPECT_EQ(numbers["step"].size(), most_points);
  EXPECT_EQ(numbers["rows"].get<std::int64_t>(), 100'000);
  EXPECT_EQ(numbers["step"].back().get<std::int64_t>(), 100'000);
  double most = 0;
  for (const Json& high : numbers["columns"]["loss"]["high"]) most = std::max(most, high.get<double>());
  EXPECT_EQ(most, 99.5);
  EXPECT_FALSE(numbers["columns"]["seconds_of/forward"].contains("high"));
  if (!can_draw_pages()) GTEST_SKIP() << "this build has no library for charts";
  EXPECT_LT(page.html().size(), 5'000'000u);
}

TEST(RunPage, LetsNoNameOfAUserBecomeMarkup) {
  const test::Scratch scratch;
  PageInput in;
  in.run = small_run(scratch);
  in.run.deck = "[run]\nname = \"</pre></script><script>alert(1)</script>\"\n";
  in.deck = Deck{};
  in.deck->run.name = "</title></script><script>alert('x')</script>\"'";
  in.deck->data.train = {"<img src=x onerror=alert(2)>"};
  in.run.steps.columns.emplace_back("loss_of_files/</script><script>alert(3)</script>", std::vector<double>{1, 2, 3});
  in.run.steps.columns.emplace_back("seconds_of/<svg onload=alert(4)>", std::vector<double>{1, 2, 3});
  in.run.events = {{.time = 1, .step = 1, .event = "<kbd>", .fields = {{"text", "<mark>"}}},
                   {.time = 1, .step = 1, .event = "warning", .fields = {{"text", "<mark onclick='x'>loud</mark>"}}}};
  in.run.starts.back().facts.emplace_back("<samp>", "</td>");
  const RunPage page(std::move(in));
  if (!can_draw_pages()) GTEST_SKIP() << "this build has no library for charts";
  const std::string text = page.html();
  for (const char* wrong : {"<script>alert", "<img", "<svg", "<mark", "<kbd", "<samp", "</title></script>"})
    EXPECT_EQ(text.find(wrong), std::string::npos) << wrong;
  // Scripts of the page: the data, dygraphs and ours.
  std::size_t scripts = 0;
  for (std::size_t at = text.find("</script"); at != text.npos; at = text.find("</script", at + 1)) ++scripts;
  EXPECT_EQ(scripts, 3u);
  EXPECT_NE(text.find("default-src 'none'"), std::string::npos);
}

TEST(RunPage, TellsWhatTheLastStartChanged) {
  const test::Scratch scratch;
  PageInput in;
  in.run = small_run(scratch);
  in.deck = test::tiny_deck({"zero.stage=2", "checkpoint.every=7"}, 2);
  for (const Deck& deck : {test::tiny_deck({"zero.stage=3"}, 2), *in.deck})
    in.run.events.push_back({.time = 1,
                             .step = 1,
                             .event = "start",
                             .fields = {{"deck", print_deck(deck)}, {"ranks", 2}, {"resumed_from", 1}, {"lost_steps", 3}}});
  const std::string section = deck_section(in);
  EXPECT_NE(section.find("<code>zero.stage = 3, now 2</code>"), std::string::npos) << section;
  EXPECT_NE(section.find("<code>checkpoint.every = "), std::string::npos) << section;
  const std::string events = events_section(in.run);
  EXPECT_NE(events.find("resumes from step 1, 2 ranks, 3 steps are repeated"), std::string::npos) << events;
  in.run.events.back().fields["deck"] = "no deck";
  EXPECT_NE(deck_section(in).find("cannot read the decks"), std::string::npos);
}

TEST(RunPage, HidesWhatWasNotRecordedAndSaysWhatRecordsIt) {
  const test::Scratch scratch;
  write_text(scratch / "metrics.jsonl", "");
  PageInput in;
  in.run = read_run_history(scratch.path());
  in.no_memory = "no memory known", in.no_forecast = "nothing predicted";
  const RunPage page(std::move(in));
  if (!can_draw_pages()) GTEST_SKIP() << "this build has no library for charts";
  const std::string text = page.html();
  for (const char* word : {"run.trace=N", "run.breakdown_every=50", "no memory known", "nothing predicted", "deck.toml is missing",
                           "What this run did not record"})
    EXPECT_NE(text.find(word), std::string::npos) << word;
  for (const char* section :
       {"id=\"breakdown\"", "id=\"step\"", "id=\"ranks\"", "id=\"memory\"", "id=\"goodput\"", "id=\"deck\"", "<figure"})
    EXPECT_EQ(text.find(section), std::string::npos) << section;
  EXPECT_GT(text.find("What this run did not record"), text.find("id=\"curves\"")) << "below all that there is";
}

TEST(RunPage, HasTheTitleOfItsFolderAndTheWarningsThatRunsCounts) {
  const test::Scratch scratch;
  const std::string folder = scratch / "the-run/";
  test::fs::create_directories(folder);
  write_text(folder + "metrics.jsonl", "{\"step\": 1, \"time\": 1001, \"loss\": 5.5, \"seconds\": 1.0, \"tokens_per_second\": 10}\n");
  const auto page_of = [&](const std::string& health, std::vector<io::Event> events) {
    PageInput in;
    in.run = read_run_history(folder);
    in.deck = test::tiny_deck({}, 2);
    in.deck->run.name = "another";
    in.health = health;
    in.run.events = std::move(events);
    return RunPage(std::move(in));
  };
  EXPECT_EQ(title_of_run(folder), "the-run");
  EXPECT_EQ(title_of_run(scratch / "the-run/./"), "the-run");
  if (!can_draw_pages()) GTEST_SKIP() << "this build has no library for charts";
  const std::string well = page_of("", {}).html();
  EXPECT_NE(well.find("<title>the-run</title>"), std::string::npos);
  EXPECT_NE(well.find("<h1>the-run</h1>"), std::string::npos);
  EXPECT_NE(well.find("named another"), std::string::npos);
  EXPECT_NE(well.find("The recorded figures show nothing unusual"), std::string::npos);
  EXPECT_EQ(well.find("data-reload"), std::string::npos);
  const std::string warned =
      page_of("1 warning", {{.time = 1, .step = 1, .event = "warning", .fields = {{"text", "look at `that`"}}}}).html();
  EXPECT_EQ(warned.find("The recorded figures show nothing unusual"), std::string::npos);
  EXPECT_NE(warned.find("Warned: look at <code>that</code>"), std::string::npos);
  EXPECT_EQ(page_of("silent 12 min", {}).html().find("The recorded figures show nothing unusual"), std::string::npos);
  const std::string stalled =
      page_of(
          "1 warning",
          {{.time = 1, .step = 8, .event = "stall", .fields = {{"text", "step 8 took 18 s: rank 1"}, {"seconds", 18.0}, {"usual", 1.0}}}})
          .html();
  EXPECT_NE(stalled.find("A step stalled, for 17 s in all. The longest: step 8 took 18 s: rank 1."), std::string::npos);
}

TEST(RunPage, APageThatIsLiveLoadsAgain) {
  const test::Scratch scratch;
  PageInput in;
  in.run = small_run(scratch);
  in.reload_seconds = 7;
  const RunPage page(std::move(in));
  if (!can_draw_pages()) GTEST_SKIP() << "this build has no library for charts";
  const std::string text = page.html();
  EXPECT_NE(text.find("<html lang=\"en\" data-reload=\"7\">"), std::string::npos);
  EXPECT_NE(text.find("reloads every 7 s"), std::string::npos);
}

TEST(RunPage, ShowsRanksOverTime) {
  const test::Scratch scratch;
  RunHistory run = small_run(scratch);
  EXPECT_EQ(rank_times_section(run), "");
  run.steps.columns.emplace_back("rank_seconds/0", std::vector<double>{1, none, 1});
  run.steps.columns.emplace_back("rank_seconds/10", std::vector<double>{1, none, none});
  run.steps.columns.emplace_back("rank_seconds/2", std::vector<double>{1, none, 3});
  const std::string section = rank_times_section(run);
  EXPECT_LT(section.find("rank 2<"), section.find("rank 10<")) << "by number";
  EXPECT_NE(section.find("up to step 3: 3 s, +50.0 % of the median"), std::string::npos) << section;
  EXPECT_NE(section.find("<td></td>"), std::string::npos) << "rank 10 said nothing at step 3";
}

TEST(RunsPage, DrawsRunsOverEachOther) {
  const test::Scratch scratch;
  std::vector<std::string> folders{scratch / "a", scratch / "b"};
  std::vector<RunHistory> runs;
  for (std::size_t r = 0; r < 2; ++r) {
    test::fs::create_directories(folders[r]);
    std::string rows;
    for (int step = 1; step <= 4; ++step)
      rows += fmt::format("{{\"step\": {}, \"time\": {}, \"loss\": {}, \"seconds\": 1.0, \"tokens_per_second\": 10}}\n",
                          step * (r == 0 ? 1 : 2), 1000 + 3600 * step, 5 - step + 0.25 * static_cast<double>(r));
    write_text(folders[r] + "/metrics.jsonl", rows + "{\"step\": 4, \"time\": 20000, \"val_loss\": 2.5}\n");
    runs.push_back(read_run_history(folders[r]));
  }
  const RunsPage page(runs, compare_runs(folders, 30000), 30000);
  const Json data = page.data();
  const Json& steps = data["numbers"]["axes"]["step"];
  EXPECT_EQ(steps["at"].dump(), "[1,2,3,4,6,8]");
  EXPECT_EQ(steps["columns"]["0/loss"]["mean"].dump(), "[4,3,2,1,null,null]");
  EXPECT_EQ(steps["columns"]["1/loss"]["mean"].dump(), "[null,4.25,null,3.25,2.25,1.25]");
  EXPECT_EQ(data["numbers"]["axes"]["time"]["at"].dump(), "[0,1,2,3]");
  EXPECT_FALSE(data["numbers"]["axes"].contains("tokens")) << "without a deck nobody knows them";
  EXPECT_EQ(data["charts"][0]["series"].dump(), R"([["0/loss","A: a"],["1/loss","B: b"]])");
  EXPECT_EQ(data["charts"][1]["id"].get<std::string>(), "validation");
  if (!can_draw_pages()) GTEST_SKIP() << "this build has no library for charts";
  const std::string text = page.html(0);
  EXPECT_NE(text.find("<h1>2 runs</h1>"), std::string::npos);
  EXPECT_NE(text.find("id=\"chart-validation\""), std::string::npos);
}

}  // namespace
}  // namespace tessera
