// tessera plan on summary: what it says first, models by name, whole runs, advice, and how little it does unasked.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include "base/json.hpp"

#include "program.hpp"

namespace tessera::plan_screen_test {
namespace {

using Words = std::vector<std::string>;

test::Finished run(Words arguments) {
  const test::Scratch scratch;
  arguments.insert(arguments.begin(), {"plan", "--threads", "1"});
  return test::run_program(scratch, arguments);
}
Words with(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}
Json planned(Words arguments) {
  arguments.emplace_back("--json");
  const auto done = run(std::move(arguments));
  EXPECT_EQ(done.status, 0) << done.err;
  return Json::parse(done.out);
}
std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}
std::string input(const char* name) { return fmt::format("{}/inputs/{}.toml", TESSERA_SOURCE_DIR, name); }

const Words small{"llama3.1-8b", "--gpus", "8", "--machine", "h100_8", "model.layers=4"};

TEST(PlanScreen, ItsFirstThreeLinesSayWhetherItFitsHowFastAndForHowMuch) {
  const auto done = run(with(small, {"--price", "2.5"}));
  ASSERT_EQ(done.status, 0) << done.err;
  const auto lines = lines_of(done.out);
  ASSERT_GT(lines.size(), 3u);
  EXPECT_LT(lines.size(), 14u) << "summary: " << done.out;
  EXPECT_TRUE(lines[0].starts_with("fits      yes: device ") && test::has(lines[0], " GiB of ")) << lines[0];
  for (const char* part : {"step      ", " tokens/s, ", " a GPU (", "; MFU "}) EXPECT_TRUE(test::has(lines[1], part)) << lines[1];
  for (const char* part : {"cost      1.00 B tokens: ", " days, ", " GPU-hours, ", " at 2.5 each"})
    EXPECT_TRUE(test::has(lines[2], part)) << lines[2];
  EXPECT_TRUE(test::has(done.out, "published ") && test::has(done.out, "more      --verbose")) << done.out;
  const auto all = run(with(small, {"--verbose"}));
  for (const char* part : {"fits      yes", "the tasks that set its length", "peak      when a tier", "assumed   "})
    EXPECT_TRUE(test::has(all.out, part)) << part << all.out;
  EXPECT_FALSE(test::has(done.out, "the tasks that set its length"));
}

TEST(PlanScreen, TheBandIsThatOfTheProfilesEfficiency) {
  const auto plan = planned(small)["prediction"];
  EXPECT_LT(plan["band"]["fast_seconds"], plan["step_seconds"].get<double>());
  EXPECT_GT(plan["band"]["slow_seconds"], plan["step_seconds"].get<double>());
  const auto fast = planned(with(small, {"--efficiency", "1"}))["prediction"];
  EXPECT_DOUBLE_EQ(fast["step_seconds"].get<double>(), plan["band"]["fast_seconds"].get<double>());
  EXPECT_FALSE(fast.contains("band")) << "one efficiency has no band";
  EXPECT_GT(planned(with(small, {"--power", "400 W"}))["prediction"]["step_seconds"], plan["step_seconds"].get<double>());
  EXPECT_EQ(run(with(small, {"--power", "4 kW"})).status, 2);
  EXPECT_EQ(run(with(small, {"--power", "400"})).status, 2);
}

TEST(PlanScreen, TakesAModelByItsNameAndSaysWhichAreNear) {
  const auto plan = planned({"llama3.1-8b", "--gpus", "8", "--machine", "h100"});
  EXPECT_NEAR(plan["parameters"].get<double>(), 8.03e9, 1e7);
  EXPECT_TRUE(test::has(plan["shape"], "llama3.1-8b"));
  const auto near = run({"llama3.1-8bb", "--gpus", "8"});
  EXPECT_EQ(near.status, 2);
  EXPECT_TRUE(test::has(near.err, "did you mean llama3.1-8b?")) << near.err;
  const auto none = run({"no-such-thing", "--gpus", "8"});
  EXPECT_TRUE(none.status == 2 && test::has(none.err, "llama3-70b")) << none.err;
  EXPECT_TRUE(test::has(run({"no/such/file.toml"}).err, "No such file"));
}

TEST(PlanScreen, ADeckNeedsNoLearningRateToBePlanned) {
  const test::Scratch scratch;
  std::string text = test::slurp(input("train_7b"));
  const auto at = text.find("learning_rate = ");
  text.erase(at, text.find('\n', at) - at);
  test::spill(scratch / "none.toml", text);
  const auto without = test::run_program(scratch, {"plan", scratch / "none.toml", "--ranks", "8", "--json"});
  ASSERT_EQ(without.status, 0) << without.err;
  const auto whole = test::run_program(scratch, {"plan", input("train_7b"), "--ranks", "8", "--json"});
  EXPECT_EQ(Json::parse(without.out)["schedule_hash"], Json::parse(whole.out)["schedule_hash"]);
  const auto check = test::run_program(scratch, {"deck", "check", scratch / "none.toml"});
  EXPECT_EQ(check.status, 2) << "a run needs one";
}

TEST(PlanScreen, ARunOfSoManyTokensHasDaysHoursAndACost) {
  const auto plan = planned(with(small, {"--tokens", "2T", "--price", "3"}));
  const double rate = plan["prediction"]["tokens_per_second"];
  EXPECT_NEAR(plan["run"]["days"].get<double>(), 2e12 / rate / 86400, 1e-6);
  EXPECT_NEAR(plan["run"]["rank_hours"].get<double>(), 8 * 2e12 / rate / 3600, 1e-3);
  EXPECT_NEAR(plan["run"]["cost"].get<double>(), 3 * plan["run"]["rank_hours"].get<double>(), 1e-3);
  const auto rows = planned({"llama3.1-8b", "model.layers=2", "--machine", "h100", "--sweep", "8,16", "--tokens", "2T"});
  for (const auto& row : rows["sweep"]) EXPECT_GT(row["first"]["run"]["days"].get<double>(), 0);
  EXPECT_TRUE(test::has(run({"llama3.1-8b", "model.layers=2", "--machine", "h100", "--sweep", "8", "--tokens", "2T"}).out, " days, "));
  for (const char* wrong : {"2Q", "0", "-1", "many", "1e30"}) EXPECT_EQ(run(with(small, {"--tokens", wrong})).status, 2) << wrong;
  EXPECT_EQ(run({"llama3.1-8b", "--tokens", "2T"}).status, 2) << "without a machine";
  // A profile may say the price.
  const test::Scratch scratch;
  std::string profile = test::slurp(input("machines/h100_8"));
  profile.insert(profile.find("device = "), "price = 7\n");
  test::spill(scratch / "priced.toml", profile);
  const auto priced = planned({"llama3.1-8b", "model.layers=4", "--gpus", "8", "--tokens", "2T", "--machine", scratch / "priced.toml"});
  EXPECT_NEAR(priced["run"]["cost"].get<double>(), 7 * priced["run"]["rank_hours"].get<double>(), 1e-2);
}

TEST(PlanScreen, AdviceIsWhatItSavesAndComesAtMostThreefold) {
  const Words slow = with(small, {"zero.offload_optimizer.device=host", "batch.global=16", "zero.overlap_comm=false"});
  const auto plan = planned(slow)["prediction"];
  ASSERT_GE(plan["costly_keys"].size(), 2u);
  const auto& best = plan["costly_keys"][0];
  EXPECT_NEAR(best["saved_seconds"].get<double>(), plan["step_seconds"].get<double>() - best["step_seconds"].get<double>(), 1e-12);
  Words changed = slow;
  std::istringstream words(best["change"].get<std::string>());
  for (std::string word; words >> word;) changed.push_back(word);
  EXPECT_DOUBLE_EQ(planned(changed)["prediction"]["step_seconds"].get<double>(), best["step_seconds"].get<double>()) << best["change"];
  const auto lines = lines_of(run(slow).out);
  const auto first = std::ranges::find_if(lines, [](const std::string& line) { return line.starts_with("advice    "); });
  ASSERT_NE(first, lines.end());
  EXPECT_TRUE(test::has(*first, " saves ") && test::has(*first, " %)")) << *first;
  EXPECT_LE(
      std::ranges::count_if(lines, [](const std::string& line) { return test::has(line, " saves ") && !test::has(line, "together"); }), 3);
  EXPECT_TRUE(test::has(run(with(small, {"model.layers=2", "model.vocab=32000", "zero.max_live_parameters=900000000000"})).out,
                        "zero.max_live_parameters = 900000000000 has no effect"));
}

// Of a model far too large changes are not searched for long: the plan itself costs a part of what all that is asked for does.
TEST(PlanScreen, AModelFarTooLargeIsAnsweredWithoutALongSearch) {
  const Words huge{"--parameters", "1e12", "--gpus", "8"};
  const auto alone = run(huge), told = run(with(huge, {"--machine", "h100"}));
  EXPECT_EQ(alone.status, 0) << alone.err;
  EXPECT_EQ(told.status, 5);
  EXPECT_TRUE(test::has(told.out, "fits      no: device ")) << told.out;
  EXPECT_LT(told.cpu_seconds, 30 * alone.cpu_seconds);
}

TEST(PlanScreen, Fp8WithoutARateIsRefusedWithTheEntry) {
  const auto done = run({"llama3.1-8b", "--gpus", "8", "--machine", "a100_8", "precision.fp8=tensorwise"});
  EXPECT_EQ(done.status, 2);
  EXPECT_TRUE(test::has(done.err, "[gemm.fp8]")) << done.err;
  const auto plan = planned(with(small, {"precision.fp8=tensorwise"}))["prediction"];
  EXPECT_LT(plan["step_seconds"], planned(small)["prediction"]["step_seconds"].get<double>());
  const auto& assumed = plan["figures"]["assumed"];
  EXPECT_NE(std::ranges::find(assumed, "gemm.fp8.forward"), assumed.end());
}

}  // namespace
}  // namespace tessera::plan_screen_test
