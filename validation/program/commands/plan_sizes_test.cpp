// tessera plan without a deck, on another network, and what it says of the price of fitting.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include "base/json.hpp"

#include "program.hpp"

namespace tessera::plan_sizes_test {
namespace {

using Words = std::vector<std::string>;

test::Finished run(Words arguments) {
  const test::Scratch scratch;
  arguments.insert(arguments.begin(), {"plan", "--threads", "1"});
  return test::run_program(scratch, arguments);
}
Json planned(Words arguments) {
  arguments.emplace_back("--json");
  const auto done = run(std::move(arguments));
  EXPECT_EQ(done.status, 0) << done.err;
  return Json::parse(done.out);
}
std::string input(const char* name) { return fmt::format("{}/inputs/{}.toml", TESSERA_SOURCE_DIR, name); }
const std::string h100 = input("machines/h100_8");
double rate_of(const Json& plan) { return plan["prediction"]["tokens_per_second"]; }

TEST(PlanCommand, PlansSoManyParameters) {
  const auto none = planned({"--parameters", "124e6", "model.vocab=50304", "zero.stage=2", "--ranks", "3"});
  EXPECT_NEAR(none["parameters"].get<double>(), 124e6, 1e6);
  EXPECT_EQ(none["zero_stage"], 2);
  EXPECT_TRUE(test::has(none["shape"], fmt::format("vocab=50304: {} parameters (", none["parameters"].get<std::int64_t>())))
      << none["shape"];
  EXPECT_EQ(none["tokens_per_step"].get<std::int64_t>() % (3 * 4096), 0) << "no rank is without a sequence";
  const auto deck = planned({input("train_70b"), "--parameters", "1B", "--ranks", "8"});
  EXPECT_NEAR(deck["parameters"].get<double>(), 1e9, 2e7);
  EXPECT_TRUE(test::has(deck["shape"], "vocab=128256: ")) << "what is no shape stays the deck's: " << deck["shape"];
  const auto text = run({"--parameters", "124e6", "--machine", h100, "--gpus", "2", "--recommend"});
  for (const char* part : {"shape     model.layers=", "choose    ", "slowdown  "})
    EXPECT_TRUE(test::has(text.out, part)) << text.out << text.err;
}

TEST(PlanCommand, RefusesASizeThatItCannotPlan) {
  const std::pair<Words, const char*> refused[] = {
      {{}, "--parameters"},
      {{"--parameters", "7Q"}, "7e9"},
      {{"--parameters", "0"}, "7e9"},
      {{"--parameters", "1e6"}, "model.vocab"},
      {{"--parameters", "1B", "model.width=64"}, "model.width=64"},
      {{"--parameters", "1B", input("mixtral_tiny")}, "model.experts"},
      {{"--parameters", "1B", "--network", "1 GB/s"}, "--machine"},
      {{"--parameters", "1B", "--machine", h100, "--network", "1 GB"}, "GB/s"},
      {{"--parameters", "1B", "--machine", h100, "--network", "fast"}, "a number with a unit"}};
  for (const auto& [arguments, says] : refused) {
    const auto done = run(arguments);
    EXPECT_EQ(done.status, 2) << says;
    EXPECT_TRUE(test::has(done.err, says)) << done.err;
  }
}

TEST(PlanCommand, TakesAnotherNetwork) {
  const Words asked{"--parameters", "1B", "--gpus", "16", "--machine", h100};
  const auto with = [&](const char* network) {
    Words words = asked;
    words.insert(words.end(), {"--network", network});
    return words;
  };
  const double own = rate_of(planned(asked)), same = rate_of(planned(with("368 GB/s"))), slow = rate_of(planned(with("1.25 GB/s")));
  EXPECT_EQ(own, same);
  EXPECT_LT(slow, own / 2);
  EXPECT_EQ(slow, rate_of(planned(with("10 Gbit/s"))));
  Words words = with("10 Gbit/s");
  words.emplace_back("--verbose");
  EXPECT_TRUE(test::has(run(words).out, "1.25 GB/s into a node (")) << "it is said";
}

TEST(PlanCommand, SaysWhatFittingCosts) {
  const Words asked{"--parameters", "7B", "--gpus", "8", "--machine", h100, "batch.global=8"};
  Words words = asked;
  words.emplace_back("--recommend");
  const auto found = planned(words);
  words = asked;
  for (const std::string change : found["first"]["changes"])  // several keys may go together
    for (std::size_t begin = 0, end = 0; begin < change.size(); begin = end + 1)
      end = std::min(change.find(' ', begin), change.size()), words.push_back(change.substr(begin, end - begin));
  words.insert(words.end(), {"zero.stage=0", "zero.offload_optimizer.device=none", "zero.offload_param.device=none",
                             "activation.offload=none", "memory.device=10 TB"});
  const auto whole = planned(words);
  EXPECT_NEAR(found["slowdown"].get<double>(),
              found["first"]["prediction"]["step_seconds"].get<double>() / whole["prediction"]["step_seconds"].get<double>(), 1e-9);
  const auto meshes = run({"--parameters", "1B", "--gpus", "2", "--machine", h100, "--recommend", "--meshes"});
  EXPECT_TRUE(test::has(meshes.out, "slowdown  ")) << meshes.out << meshes.err;
}

TEST(PlanCommand, AdviceForTheHostsUpdateWorks) {
  const Words asked{"--parameters", "7B", "--gpus", "8", "--machine", h100, "zero.offload_optimizer.device=host"};
  const auto with = [&](std::string more) {
    Words words = asked;
    words.push_back(std::move(more));
    return words;
  };
  const auto idle = planned(with("batch.global=1024"));
  EXPECT_FALSE(idle["prediction"].contains("host_help")) << "the update is hidden";
  const auto waits = planned(with("batch.global=8"));
  std::size_t tried = 0;
  for (const auto& help : waits["prediction"]["host_help"]) {
    const std::string change = help["change"], key = change.substr(0, change.find(' '));
    EXPECT_GT(help["tokens_per_second"], 1.05 * rate_of(waits)) << change;
    if (key.find('=') == key.npos) continue;  // another machine
    Words words = with("batch.global=8");
    words.push_back(key);
    EXPECT_EQ(rate_of(planned(words)), help["tokens_per_second"]) << change;
    ++tried;
  }
  EXPECT_EQ(tried, 2u) << waits["prediction"]["host_help"];
  EXPECT_TRUE(test::has(run(with("batch.global=8")).out, "for the optimizer on the host; what helps, by the simulator:\n"));
}

}  // namespace
}  // namespace tessera::plan_sizes_test
