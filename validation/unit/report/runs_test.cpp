// What `tessera runs` tells of folders, and of runs side by side: of files as runs write them, of damaged ones, and of what is none.
#include <fmt/format.h>

#include <sstream>

#include "../model/random_models.hpp"
#include "../scratch.hpp"
#include "io/checkpoint/checkpoint.hpp"
#include "io/checkpoint/format.hpp"
#include "io/metrics/events.hpp"
#include "report/runs/run_comparison.hpp"
#include "report/runs/run_summary.hpp"
#include "train/folder/run_lock.hpp"

namespace tessera::runs_test {
namespace {

namespace fs = std::filesystem;
constexpr double begin = 1.7e9;

class Runs : public testing::Test {
 protected:
  test::Scratch scratch_;
  std::string folder(const std::string& name) const {
    fs::create_directories(scratch_ / name);
    return scratch_ / name;
  }
  static void add(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary | std::ios::app) << text; }
  /// A second a step, of 100 tokens, and a loss that falls by 1/1000 a step.
  static std::string row(std::int64_t step, const std::string& more = "") {
    return fmt::format(
        "{{\"step\": {}, \"time\": {}, \"loss\": {}, \"tokens_per_second\": 100, \"seconds\": 1, \"mfu\": 0.4, \"mfu_causal\": 0.3{}}}\n",
        step, begin + static_cast<double>(step), 5 - static_cast<double>(step) / 1000, more);
  }
  static std::string event(std::int64_t step, const std::string& name, Json fields = Json::object()) {
    return io::line_of({.time = begin + static_cast<double>(step), .step = step, .event = name, .fields = std::move(fields)});
  }
  static std::string start(std::int64_t step = 0) { return event(step, "start", {{"launched", begin}, {"steps", 100}}); }
  /// Of ten steps.
  std::string run(const std::string& name, const std::string& events) const {
    const std::string path = folder(name);
    for (std::int64_t step = 1; step <= 10; ++step) add(path + "/metrics.jsonl", row(step));
    if (!events.empty()) add(path + "/events.jsonl", events);
    return path;
  }
  static RunSummary summary(const std::string& path, bool verify = false) {
    return summarise_run(path, {.now = begin + 20, .verify = verify});
  }
  static void save(const std::string& path, std::int64_t step) {
    const std::string root = path + "/checkpoints";
    fs::create_directories(root);
    io::CheckpointLayout layout{.units = {{"u", 512}}, .tensors = {{"t", {16, 32}, 0, 0}}, .groups = {"master"}, .shards = 1};
    const std::vector<float> values(512, 1.0f);
    const std::vector<io::ShardSlice> slices = {{0, 0, std::span<const float>(values)}};
    io::begin_checkpoint(root, step);
    io::write_shard(root, step, layout, 0, slices);
    io::write_index(root, layout, {.step = step, .seed = 1, .deck = "", .identity = "", .version = "test"});
    io::commit_checkpoint(root, step, {});
  }
};

TEST_F(Runs, LockAndEventsTellTheState) {
  const std::string killed = run("killed", start() + event(0, "training"));
  EXPECT_EQ(summary(killed).state, RunState::killed);
  for (const auto& [reason, state] : {std::pair("finished", RunState::finished), std::pair("signal", RunState::interrupted),
                                      std::pair("failed: the disk is full", RunState::failed)}) {
    const RunSummary ended = summary(run(reason, start() + event(10, "end", {{"reason", reason}, {"exit", 0}})));
    EXPECT_EQ(ended.state, state) << reason;
    EXPECT_EQ(ended.reason, reason);
  }
  // A start that goes on after an end is killed too, and what it says counts.
  EXPECT_EQ(summary(run("again", start() + event(10, "end", {{"reason", "finished"}}) + start(10))).state, RunState::killed);
  const std::string old = run("old", "");
  EXPECT_EQ(summary(old).state, RunState::unknown) << "of before there were events";
  EXPECT_EQ(summary(old).goodput.starts, 0);
  EXPECT_EQ(holder_of(killed), "") << "no lock";
  {
    RunLock lock(killed);
    lock.wait(0, 0);
    lock.keep();
    EXPECT_EQ(summary(killed).state, RunState::running);
    EXPECT_EQ(summary(killed).holder,
              fmt::format("process {} on {}", getpid(), holder_of(killed)->substr(holder_of(killed)->rfind(' ') + 1)));
    EXPECT_TRUE(lock.stands()) << "whoever looks changes nothing";
    add(killed + "/events.jsonl", event(10, "end", {{"reason", "finished"}}));
    EXPECT_EQ(summary(killed).state, RunState::starting) << "the one that holds it has not begun";
  }
  EXPECT_EQ(summary(killed).state, RunState::finished);
  fs::remove(killed + "/run.lock");
  fs::create_symlink("elsewhere", killed + "/run.lock");
  EXPECT_EQ(holder_of(killed), std::nullopt);
}

TEST_F(Runs, FiguresAreThoseOfTheLastRows) {
  const std::string path = run("a", start() + event(0, "training") + event(5, "evaluation", {{"seconds", 0.5}, {"val_loss", 3.25}}) +
                                        event(8, "warning", {{"text", "step 8: look"}}));
  add(path + "/metrics.jsonl", "{\"step\": 11, \"time\": 17");  // under way
  const RunSummary a = summary(path);
  EXPECT_EQ(a.step, 10);
  EXPECT_EQ(a.steps, 100);
  EXPECT_EQ(a.loss, 5 - 10.0 / 1000);
  EXPECT_EQ(a.val_loss, 3.25);
  EXPECT_EQ(a.tokens_per_second, 100);
  EXPECT_EQ(a.mfu, 0.4);
  EXPECT_TRUE(a.of_peak);
  EXPECT_EQ(a.warnings, std::vector<std::string>{"step 8: look"});
  EXPECT_FALSE(a.more_warnings);
  EXPECT_EQ(a.goodput.productive, 10);
  EXPECT_EQ(health_of(a, begin + 20), "1 warning");
  // Warnings of a start before are none of this one's.
  add(path + "/events.jsonl", start(10));
  EXPECT_TRUE(summary(path).warnings.empty());
  // A loss that is no number is not that of a step before.
  add(path + "/metrics.jsonl", "1\n{\"step\": 11, \"time\": 1, \"loss\": null, \"seconds\": 1}\n");
  EXPECT_EQ(summary(path).loss, std::nullopt);
}

TEST_F(Runs, OfALongRunTheEndsAreRead) {
  const std::string path = folder("long");
  {
    std::ofstream rows(path + "/metrics.jsonl"), events(path + "/events.jsonl");
    events << start() << event(0, "training");
    for (std::int64_t step = 1; step <= 60000; ++step) {
      rows << row(step);
      if (step % 10 == 0)
        events << event(step, "save",
                        {{"seconds", 1},
                         {"stall_seconds", 0.1},
                         {"goodput", goodput_json({.wall = 2.0 * static_cast<double>(step),
                                                   .productive = static_cast<double>(step),
                                                   .work = {.steps = step, .seconds = static_cast<double>(step)},
                                                   .done = step,
                                                   .starts = 1})}});
    }
  }
  const RunSummary end = summary(path);
  EXPECT_EQ(end.step, 60000);
  EXPECT_EQ(end.loss, 5 - 60.0);
  EXPECT_LT(end.bytes_read, 64 << 10);
  EXPECT_TRUE(end.more_warnings) << "not all that this start has said was read";
  EXPECT_NEAR(end.goodput.share(), 0.5, 1e-3);
  // Rows that are longer than the end that is read first: more of it is read.
  add(path + "/metrics.jsonl", row(60001, ", \"expert_load\": [" + std::string(200000, '1') + "]"));
  add(path + "/metrics.jsonl", row(60002, ", \"more\": \"" + std::string(200000, '1') + "\""));
  EXPECT_EQ(summary(path).step, 60002);
  EXPECT_EQ(summary(path).loss, 5 - 60.002);
  EXPECT_LT(summary(path).bytes_read, 4 << 20);
}

TEST_F(Runs, WhatIsNoRunIsNamed) {
  run("b", start()), run("a", start());
  folder("empty");
  fs::create_directories(folder("broken") + "/metrics.jsonl");
  folder("deck/checkpoints");
  test::spill(scratch_ / "deck/deck.toml", "[run\n"), test::spill(scratch_ / "deck.toml", "[run]\n");
  test::spill(scratch_ / "file", "none");
  const std::vector<RunSummary> runs = summarise_runs(scratch_.path(), {.now = begin + 20});
  std::vector<std::string> names;
  for (const RunSummary& run : runs) names.push_back(run.name);
  EXPECT_EQ(names, (std::vector<std::string>{"a", "b", "broken", "deck", "empty"}));
  EXPECT_HAS(runs[2].fault, "metrics.jsonl");
  EXPECT_EQ(runs[3].fault, "") << "a run whose steps nothing tells";
  EXPECT_EQ(runs[4].fault, "no run: it has no metrics.jsonl, no events.jsonl, and no deck.toml with checkpoints");
  const std::string text = print_runs(runs, begin + 20);
  EXPECT_HAS(text, "\nempty: no run: ");
  EXPECT_EQ(summarise_runs(scratch_ / "a/", {}).at(0).name, "a");
  EXPECT_HAS(test::error_of(ExitCode::usage, [&] { summarise_runs(scratch_ / "nowhere", {}); }),
             "nowhere: there is no such folder. Name a run's folder");
  EXPECT_HAS(test::error_of(ExitCode::usage, [&] { summarise_runs(scratch_ / "file", {}); }), "it is not a folder");
  EXPECT_TRUE(runs_json(runs, begin)[4].contains("fault"));
}

TEST_F(Runs, NewestCheckpointIsLookedAt) {
  const std::string path = run("a", start() + event(0, "training"));
  EXPECT_EQ(summary(path).checkpoint.step, -1);
  save(path, 5), save(path, 10);
  EXPECT_EQ(summary(path).checkpoint.step, 10);
  EXPECT_EQ(summary(path).checkpoint.fault, "");
  EXPECT_FALSE(summary(path).checkpoint.verified);
  EXPECT_TRUE(summary(path, true).checkpoint.verified);
  // A start that went on from it has read all of it; a save of that step since is another one.
  add(path + "/events.jsonl", event(10, "start") + event(10, "training"));
  EXPECT_TRUE(summary(path).checkpoint.verified);
  add(path + "/events.jsonl", event(10, "save"));
  EXPECT_FALSE(summary(path).checkpoint.verified);
  const std::string shard = path + "/checkpoints/" + io::checkpoint_name(10) + "/" + io::shard_file(0);
  // A byte of its values: only who reads them knows.
  std::string bytes = test::slurp(shard);
  bytes[bytes.size() - 100] ^= 1;
  test::spill(shard, bytes);
  EXPECT_EQ(summary(path).checkpoint.fault, "");
  const NewestCheckpoint older = summary(path, true).checkpoint;
  EXPECT_EQ(older.step, 5);
  EXPECT_TRUE(older.verified);
  EXPECT_HAS(older.fault, io::shard_file(0));
  // A file that is cut shows without reading, and so does an index that is gone.
  fs::resize_file(shard, 100);
  EXPECT_NE(summary(path).checkpoint.fault, "");
  EXPECT_EQ(health_of(summary(path), begin + 20), "checkpoint");
  EXPECT_HAS(print_runs({summary(path)}, begin + 20), "damaged");
  fs::remove_all(path + "/checkpoints/" + io::checkpoint_name(10));
  EXPECT_EQ(summary(path).checkpoint.step, 10);
  EXPECT_NE(summary(path).checkpoint.fault, "");
}

TEST_F(Runs, AShareOfAMeasuredProductIsNotCalledMfu) {
  const std::string path = folder("product");
  for (int step = 1; step <= 3; ++step)
    add(path + "/metrics.jsonl", fmt::format("{{\"step\": {}, \"time\": {}, \"loss\": 2, \"tokens_per_second\": 100, \"seconds\": 1, "
                                             "\"of_product\": 0.5, \"of_product_causal\": 0.4}}\n",
                                             step, begin + step));
  const RunSummary run = summary(path);
  EXPECT_EQ(run.mfu, 0.5);
  EXPECT_FALSE(run.of_peak);
  const std::string text = print_runs({run}, begin + 20);
  EXPECT_HAS(text, "~50.0%");
  EXPECT_HAS(text, "not MFU");
  const Json json = runs_json({run}, begin + 20);
  EXPECT_EQ(json[0]["of_product"].get<double>(), 0.5);
  EXPECT_FALSE(json[0].contains("mfu"));
}

TEST_F(Runs, AStepThatStoodStillIsAWarning) {
  const std::string path = run("stall", start() + event(0, "training") + event(8, "stall", {{"text", "step 8 took 18 s"}}));
  EXPECT_EQ(summary(path).warnings, std::vector<std::string>{"step 8 took 18 s"});
  EXPECT_EQ(health_of(summary(path), begin + 20), "1 warning");
}

TEST_F(Runs, ATableFitsInAHundredColumns) {
  RunSummary run{
      .folder = "runs/a", .name = "llama-8b-seed-17", .state = RunState::interrupted, .reason = "signal", .step = 123456, .steps = 1000000};
  run.loss = 2.34567, run.val_loss = 12.34567, run.tokens_per_second = 12345678, run.mfu = 0.4567;
  run.checkpoint.step = 123456, run.checkpoint.verified = true, run.goodput = {.wall = 10, .productive = 9, .starts = 1};
  run.warnings = {"step 1: a", "step 2: b"};
  std::istringstream lines(print_runs({run}, begin));
  std::string head, line;
  std::getline(lines, head), std::getline(lines, line);
  EXPECT_LE(line.size(), 100u) << line;
  EXPECT_EQ(head.find("goodput") + 7, line.find("90.0%") + 5) << head << "\n" << line;
  // A running one that says nothing for long.
  run.state = RunState::running, run.last_seen = begin, run.seconds = 1;
  EXPECT_EQ(health_of(run, begin + 30), "2 warnings");
  EXPECT_EQ(health_of(run, begin + 90), "silent 90 s");
  run.seconds = 60;
  EXPECT_EQ(health_of(run, begin + 500), "2 warnings") << "its steps are long";
}

ComparedRun compared(double step, std::int64_t steps, double before = 0) {
  ComparedRun run{.tokens_before = before, .tokens = before};
  for (std::int64_t n = 1; n <= steps; ++n) {
    run.tokens += step;
    run.losses.push_back({.tokens = run.tokens, .loss = run.tokens, .weight = step});
    if (n % 5 == 0) run.validations.push_back({.tokens = run.tokens, .loss = 2 * run.tokens});
  }
  return run;
}

TEST(RunComparison, LossesAreComparedAtEqualTokens) {
  // 400 tokens of steps of 4, 480 of steps of 8.
  const std::vector<EqualTokens> lines = at_equal_tokens({compared(4, 100), compared(8, 60)});
  ASSERT_EQ(lines.size(), 10u);
  for (std::size_t n = 0; n < lines.size(); ++n) {
    EXPECT_EQ(lines[n].tokens, 40.0 * static_cast<double>(n + 1));
    // Ends of steps in (40 n, 40 n + 40].
    EXPECT_EQ(lines[n].loss[0], 40.0 * static_cast<double>(n) + 22);
    EXPECT_EQ(lines[n].loss[1], 40.0 * static_cast<double>(n) + 24);
    for (const auto& value : lines[n].validation) EXPECT_EQ(value, 2 * lines[n].tokens);
  }
  // No more lines than the run of the longest steps has steps; between evaluations.
  const std::vector<EqualTokens> few = at_equal_tokens({compared(4, 100), compared(100, 3), compared(1, 1000)});
  ASSERT_EQ(few.size(), 3u);
  EXPECT_EQ(few[0].tokens, 100);
  EXPECT_EQ(few[0].loss[1], 100);
  EXPECT_EQ(few[0].validation[0], 200);
  EXPECT_EQ(few[0].validation[1], std::nullopt) << "it was not evaluated";
  // From where the last of them begins; never before it has begun.
  const std::vector<EqualTokens> later = at_equal_tokens({compared(4, 100), compared(4, 100, 200)}, 4);
  ASSERT_EQ(later.size(), 4u);
  EXPECT_EQ(later[0].tokens, 250);
  EXPECT_EQ(later[0].loss[0], later[0].loss[1]);
  EXPECT_TRUE(at_equal_tokens({compared(4, 10), compared(4, 10, 40)}).empty());
  EXPECT_TRUE(at_equal_tokens({}).empty());
}

TEST_F(Runs, DecksAndFiguresSideBySide) {
  const std::string a = run("a", event(0, "start", {{"launched", begin}, {"steps", 10}, {"plan", {{"host", 1 << 20}}}, {"ranks", 2}})),
                    b = run("b", start());
  const auto write_deck = [](const std::string& path, std::vector<std::string> keys) {
    keys.push_back("run.output_dir=" + path);
    test::spill(path + "/deck.toml", print_deck(test::tiny_deck(keys)));
  };
  write_deck(a, {"run.steps=10"}), write_deck(b, {"run.steps=20"});
  const RunComparison two = compare_runs({a, b}, begin + 20);
  ASSERT_EQ(two.keys.size(), 1u);
  EXPECT_EQ(two.keys[0].key, "run.steps");
  EXPECT_EQ(two.keys[0].values, (std::vector<std::string>{"10", "20"}));
  EXPECT_TRUE(two.same_data);
  ASSERT_EQ(two.lines.size(), 10u);
  const Deck deck = test::tiny_deck({});
  EXPECT_EQ(two.lines[9].tokens, static_cast<double>(10 * deck.batch.global * deck.batch.sequence_length)) << "as the deck says";
  EXPECT_EQ(two.lines[9].loss[0], two.lines[9].loss[1]);
  EXPECT_HAS(print_comparison(two), "planned, host          1.00 MiB");
  EXPECT_EQ(comparison_json(two, begin)["runs"][0]["plan"]["host"], 1 << 20);
  // Of other data, and one whose deck is gone: rows tell its tokens.
  write_deck(b, {"run.steps=10", "data.train=other.h5"});
  fs::remove(run("c", start()) + "/deck.toml");
  const RunComparison three = compare_runs({a, b, scratch_ / "c"}, begin + 20);
  ASSERT_EQ(three.keys.size(), 1u);
  EXPECT_EQ(three.keys[0].key, "data.train");
  EXPECT_EQ(three.keys[0].values[2], "?");
  EXPECT_FALSE(three.same_data);
  EXPECT_HAS(print_comparison(three), "their losses are of other tokens");
  EXPECT_HAS(print_comparison(three), "deck.toml is missing");
  EXPECT_EQ(three.runs[2].tokens, 1000);
  folder("none");
  EXPECT_HAS(test::error_of(ExitCode::usage, [&] { compare_runs({a, scratch_ / "none"}, begin); }), "no run");
}

}  // namespace
}  // namespace tessera::runs_test
