// tessera plan --json: the bytes that it promises are those that a run takes.
#include <gtest/gtest.h>

#include "base/json.hpp"

#include "../../unit/model/random_models.hpp"
#include "../../unit/plan_alone.hpp"
#include "memory/runtime.hpp"
#include "program.hpp"
#include "schedule/plan/recompute_choice.hpp"
#include "train/engine/engine.hpp"

namespace tessera::plan_test {
namespace {

constexpr int threads = 2;

test::Finished run_plan(const test::Scratch& scratch, std::vector<std::string> arguments) {
  test::spill(scratch / "tiny.toml", test::tiny_deck_text);
  arguments.insert(arguments.begin(), {"plan", scratch / "tiny.toml", "--threads", std::to_string(threads)});
  return test::run_program(scratch, arguments);
}

Json plan_of(const test::Scratch& scratch, std::vector<std::string> arguments) {
  arguments.emplace_back("--json");
  const auto done = run_plan(scratch, std::move(arguments));
  EXPECT_EQ(done.status, 0) << done.err;
  return Json::parse(done.out);
}

TEST(PlanCommand, PromisesTheBytesThatAnEngineUses) {
  const test::Scratch scratch;
  const std::vector<std::vector<std::string>> variants = {{},
                                                          {"precision.compute=bf16"},
                                                          {"run.reproducible=true"},
                                                          {"model.qk_norm=true", "model.tied=true"},
                                                          {"batch.micro=4", "kernels.loss_chunk=7"},
                                                          {"model.qkv_bias=true", "batch.sequence_length=33"},
                                                          {"kernels.pack_weights=true"},
                                                          {"precision.compute=bf16", "precision.fp8=rowwise"},
                                                          {"precision.compute=bf16", "precision.fp8=blockwise", "zero.stage=3"},
                                                          {"batch.global=2", "precision.gradients=bf16"},
                                                          {"batch.global=2", "precision.gradients=bf16", "run.reproducible=true"},
                                                          {"activation.recompute=selective", "activation.keep=[\"attention\"]"},
                                                          {"activation.recompute=full", "activation.every=2", "model.layers=4"}};
  for (const auto& overrides : variants) {
    const auto plan = plan_of(scratch, overrides);
    const Engine engine(test::plan_alone(test::tiny_deck(overrides)));
    std::int64_t total = 0;
    for (std::size_t t = 0; t < tier_count; ++t) {
      const std::string tier(name_of(static_cast<Tier>(t)));
      EXPECT_EQ(plan["tiers"].contains(tier) ? plan["tiers"][tier]["bytes"].get<std::int64_t>() : 0, engine.used_bytes()[t]) << tier;
      total += engine.used_bytes()[t];
    }
    EXPECT_EQ(plan["bytes_per_rank"], total);
    EXPECT_EQ(plan["schedule_hash"], engine.schedule().hash().hex()) << "the plan is of another schedule than the run's";
  }
}

TEST(PlanCommand, MoreRanksNeedLessEach) {
  const test::Scratch scratch;
  std::int64_t before = 0;
  for (int stage : {0, 1, 2, 3}) {
    // A model wide enough that blocks of padding do not hide what sharding saves.
    const auto plan = plan_of(scratch, {fmt::format("zero.stage={}", stage), "model.width=256", "model.ff_width=512", "model.layers=6",
                                        "zero.max_reuse_distance=0", "zero.prefetch_bucket_size=0", "zero.param_persistence_threshold=0",
                                        "batch.sequence_length=4", "--ranks", "5"});
    EXPECT_EQ(plan["zero_stage"], stage);
    EXPECT_EQ(plan["micro_batches_per_rank"], 6);
    const std::int64_t bytes = plan["bytes_per_rank"];
    if (stage > 0) {
      EXPECT_LT(bytes, before) << "stage " << stage;
    }
    before = bytes;
  }
}

// A build without CUDA plans for a GPU, whose numbers do not depend on this machine's threads.
TEST(PlanCommand, PlansForGpusInEveryBuild) {
  const test::Scratch scratch;
  const auto plan = plan_of(scratch, {"run.device=cuda", "memory.device=4 GiB", "--ranks", "2", "--ranks-per-node", "2"});
  ASSERT_TRUE(plan["tiers"].contains("device"));
  EXPECT_EQ(plan["limits"]["device"]["needed"], plan["tiers"]["device"]["bytes"]);
  EXPECT_EQ(plan["limits"]["device"]["limit"], (std::int64_t{4} << 30) - GpuReserve{}.bytes({.communicators = 1}));
  EXPECT_EQ(plan["limits"]["device"]["left"].get<std::int64_t>(),
            plan["limits"]["device"]["limit"].get<std::int64_t>() - plan["limits"]["device"]["needed"].get<std::int64_t>());
  EXPECT_EQ(plan["limits"]["host"]["needed_by_node"].get<std::int64_t>(), 2 * plan["limits"]["host"]["needed"].get<std::int64_t>());
  EXPECT_EQ(plan["fits"], true);
  EXPECT_EQ(plan["device"], "cuda");
  EXPECT_FALSE(plan["tiers"]["device"]["peak"]["task"].get<std::string>().empty());
  const auto other = test::run_program(
      scratch, {"plan", scratch / "tiny.toml", "--threads", "7", "run.device=cuda", "memory.device=4 GiB", "--ranks", "2", "--json"});
  EXPECT_EQ(Json::parse(other.out)["tiers"], plan["tiers"]);
}

TEST(PlanCommand, MapsRanksToNodes) {
  const test::Scratch scratch;
  const std::vector<std::string> four{"mesh.tp=2", "--ranks", "4", "--ranks-per-node", "2", "--map"};
  const auto map = plan_of(scratch, four)["map"];
  ASSERT_EQ(map.size(), 4u);
  EXPECT_EQ(map[3], (Json{{"rank", 3}, {"node", 1}, {"pp", 0}, {"replicate", 0}, {"dp", 1}, {"cp", 0}, {"ep", 0}, {"tp", 1}}));
  EXPECT_TRUE(test::has(run_plan(scratch, four).out, "node 1     ranks 2-3: dp 1, tp 0-1"));
}

TEST(PlanCommand, WhatDoesNotFitIsRefusedWithWhatToChange) {
  const test::Scratch scratch;
  const std::vector<std::string> wide{"model.layers=6", "batch.micro=4", "batch.global=16", "batch.sequence_length=128", "--ranks", "2"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), wide.begin(), wide.end());
    return more;
  };
  const std::int64_t needed = plan_of(scratch, with({}))["limits"]["host"]["needed"];
  const std::string limit = fmt::format("memory.device={} B", needed * 4 / 5);
  const auto text = run_plan(scratch, with({limit}));
  EXPECT_EQ(text.status, 5) << text.err;
  for (const char* part : {"memory.device is", "too much", "Each of these makes it fit"})
    EXPECT_TRUE(test::has(text.err, part)) << text.err;
  EXPECT_TRUE(test::has(text.out, "too much: memory.device")) << "the table is shown all the same: " << text.out;
  const auto json = run_plan(scratch, with({limit, "--json"}));
  EXPECT_EQ(json.status, 5);
  const auto plan = Json::parse(json.out);
  EXPECT_EQ(plan["fits"], false);
  EXPECT_LT(plan["limits"]["host"]["left"], 0);
  ASSERT_FALSE(plan["remedies"].empty());
  for (const auto& remedy : plan["remedies"]) {
    EXPECT_LE(remedy["host_bytes"].get<std::int64_t>(), needed * 4 / 5);
    std::vector<std::string> again = with({limit, "--json"});
    std::istringstream words(remedy["change"].get<std::string>());
    for (std::string word; words >> word;) again.push_back(word);
    const auto done = run_plan(scratch, again);
    EXPECT_EQ(done.status, 0) << remedy["change"] << done.err;
    EXPECT_EQ(Json::parse(done.out)["limits"]["host"]["needed"], remedy["host_bytes"]) << remedy["change"];
  }
}

TEST(PlanCommand, AutoSaysWhatItChose) {
  const test::Scratch scratch;
  const std::vector<std::string> wide{"model.layers=6", "batch.sequence_length=128", "run.device=host"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), wide.begin(), wide.end());
    return more;
  };
  const std::int64_t all = plan_of(scratch, with({}))["bytes_per_rank"];
  const auto plan = plan_of(scratch, with({"activation.recompute=auto", fmt::format("memory.device={} B", all * 9 / 10)}));
  EXPECT_LE(plan["bytes_per_rank"].get<std::int64_t>(), all * 9 / 10);
  EXPECT_GT(plan["recompute"]["flops"], 0);
  EXPECT_EQ(plan["recompute"]["bytes_saved"].get<std::int64_t>(), all - plan["bytes_per_rank"].get<std::int64_t>());
  EXPECT_TRUE(test::has(plan["recompute"]["chosen"], "layers")) << plan["recompute"];
  // A run chooses the same, and takes what was planned.
  const Deck deck = test::tiny_deck(with({"activation.recompute=auto", fmt::format("memory.device={} B", all * 9 / 10)}));
  BuildRequest request = request_for(deck, Mesh{}, 0, Purpose::training);
  settle_recompute(request, stated_limits(deck, 1));
  const Engine engine(plan_run(request));
  std::int64_t used = 0;
  for (const std::int64_t bytes : engine.used_bytes()) used += bytes;
  EXPECT_EQ(plan["bytes_per_rank"], used);
  EXPECT_EQ(plan["schedule_hash"], engine.schedule().hash().hex());
  // A GPU's memory is not known where there is none.
  const auto unknown = run_plan(scratch, {"run.device=cuda", "activation.recompute=auto"});
  EXPECT_EQ(unknown.status, 2);
  EXPECT_TRUE(test::has(unknown.err, "memory.device")) << unknown.err;
}

TEST(PlanCommand, FaultsOfTheDeckAreAllShown) {
  const test::Scratch scratch;
  test::spill(scratch / "tiny.toml", test::tiny_deck_text);
  const auto done =
      test::run_program(scratch, {"plan", scratch / "tiny.toml", "model.widht=3", "zero.stage=7", "batch.global=7", "batch.micro=2"});
  EXPECT_EQ(done.status, 2);
  for (const char* part : {"model.width", "zero.stage", "batch.global"}) EXPECT_TRUE(test::has(done.err, part)) << done.err;
}

TEST(PlanCommand, PrintsTheScheduleOnRequest) {
  const test::Scratch scratch;
  test::spill(scratch / "tiny.toml", test::tiny_deck_text);
  const auto done = test::run_program(
      scratch, {"plan", scratch / "tiny.toml", "zero.stage=3", "zero.param_persistence_threshold=0", "--ranks", "2", "--schedule"});
  EXPECT_EQ(done.status, 0) << done.err;
  for (const char* part : {"gather layers.0 (forward)", "reduce layers.1", "optimizer head", "program train"})
    EXPECT_TRUE(test::has(done.out, part)) << part;
}

std::string machine(const char* name) { return fmt::format("{}/inputs/machines/{}.toml", TESSERA_SOURCE_DIR, name); }

TEST(PlanCommand, PredictsAStepOnAMachine) {
  const test::Scratch scratch;
  const auto plan =
      plan_of(scratch, {"zero.stage=3", "zero.param_persistence_threshold=0", "--ranks", "16", "--machine", machine("h100_8")});
  EXPECT_EQ(plan["device"], "cuda") << "run.device was left open, so the machine says it";
  EXPECT_TRUE(plan["fits"]);
  EXPECT_LT(plan["limits"]["device"]["limit"].get<double>(), 80e9);
  EXPECT_EQ(plan["limits"]["host"]["limit"].get<double>(), 2e12 / 8);
  const auto& p = plan["prediction"];
  EXPECT_EQ(p["nodes"], 2);
  EXPECT_GT(p["mfu"]["causal"], 0.0);
  EXPECT_LT(p["mfu"]["causal"], 1.0);
  EXPECT_LE(p["tokens_per_second"], p["most_tokens_per_second"]);
  EXPECT_NEAR(p["tokens_per_second"].get<double>() * p["step_seconds"].get<double>(), p["tokens_per_step"].get<double>(), 1e-6);
  double parts = p["lanes"]["compute"]["busy_seconds"].get<double>();
  for (const auto& [name, lane] : p["lanes"].items()) parts += lane["exposed_seconds"].get<double>();
  EXPECT_NEAR(parts, p["step_seconds"].get<double>(), 1e-9);
  double waits = p["lanes"]["compute"]["busy_seconds"].get<double>();
  for (const char* kind : {"communication", "transfer", "disk", "host"}) waits += p["exposed_seconds"][kind].get<double>();
  EXPECT_NEAR(waits, parts, 1e-9) << "the same seconds by what compute waits for";
  EXPECT_EQ(p["critical"].size(), 10u);
  const auto done = run_plan(scratch, {"--ranks", "16", "--machine", machine("h100_8"), "--verbose"});
  for (const char* part : {"machine   8 x H100", "16 ranks on 2 nodes", "fits      yes", "tokens/s", "compute waits", "  exposed ",
                           ": communication ", "the tasks that set its length", "from /"})
    EXPECT_TRUE(test::has(done.out, part)) << part << "\n" << done.out;
}

TEST(PlanCommand, WritesThePredictedStepAsATrace) {
  const test::Scratch scratch;
  const auto plan = plan_of(scratch, {"--ranks", "2", "zero.stage=2", "--machine", machine("a100_8"), "--trace", scratch / "step.json"});
  const auto trace = Json::parse(test::slurp(scratch / "step.json"));
  std::size_t tasks = 0;
  double end = 0;
  for (const auto& event : trace["traceEvents"])
    if (event["ph"] == "X") ++tasks, end = std::max(end, event["ts"].get<double>() + event["dur"].get<double>());
  EXPECT_EQ(tasks, plan["step"]["tasks"]);
  EXPECT_NEAR(end, 1e6 * plan["prediction"]["step_seconds"].get<double>(), 1e-3);
  EXPECT_TRUE(trace["otherData"]["predicted"]);
  const auto alone = run_plan(scratch, {"--trace", scratch / "step.json"});
  EXPECT_EQ(alone.status, 2) << "a trace needs a machine";
}

TEST(PlanCommand, RefusesAMachineThatItCannotReckonWith) {
  const test::Scratch scratch;
  const auto other = run_plan(scratch, {"run.device=host", "--machine", machine("h100_8")});
  EXPECT_EQ(other.status, 2);
  EXPECT_TRUE(test::has(other.err, "leave run.device out")) << other.err;
  EXPECT_EQ(run_plan(scratch, {"--machine", scratch / "none.toml"}).status, 2);
  test::spill(scratch / "bad.toml", "[machine]\nnam = \"x\"\n");
  const auto bad = run_plan(scratch, {"--machine", scratch / "bad.toml"});
  EXPECT_EQ(bad.status, 2);
  EXPECT_TRUE(test::has(bad.err, "did you mean machine.name?")) << bad.err;
  // What does not fit is told as before, with the time that it would take.
  const auto large = run_plan(scratch, {"batch.sequence_length=200000", "batch.micro=60", "model.width=4096", "model.ff_width=16384",
                                        "--machine", machine("h100_8")});
  EXPECT_EQ(large.status, 5) << large.err;
  EXPECT_TRUE(test::has(large.out, "fits      no")) << large.out;
}

TEST(PlanCommand, RecommendsADeckThatPlansAsItSays) {
  const test::Scratch scratch;
  const std::vector<std::string> asked{"--gpus", "16", "--machine", machine("h100_8"), "--recommend"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), asked.begin(), asked.end());
    return more;
  };
  const std::string written = scratch / "best.toml";
  const auto r = plan_of(scratch, with({"--write", written, "--price", "3.6", "zero.stage=3", "zero.param_persistence_threshold=0"}));
  const auto& first = r["first"];
  const double rate = first["prediction"]["tokens_per_second"];
  EXPECT_GE(rate, r["as_it_is"]["prediction"]["tokens_per_second"].get<double>());
  EXPECT_GE(rate, r["runner_up"]["prediction"]["tokens_per_second"].get<double>());
  EXPECT_FALSE(r["runner_up"]["why"].get<std::string>().empty());
  EXPECT_LE(first["prediction"]["mfu"]["causal"], 1.0);
  EXPECT_NEAR(first["cost_per_billion_tokens"].get<double>() * rate, 16 * 1e6, 1);
  ASSERT_EQ(r["what_if"].size(), 2u);
  EXPECT_EQ(r["what_if"][0]["ranks"], 24);
  // 20 GB more are no loss.
  EXPECT_GE(r["what_if"][1]["first"]["prediction"]["tokens_per_second"].get<double>(), rate);
  EXPECT_TRUE(test::has(test::slurp(written), fmt::format("# {:.0f} tokens/s are predicted", rate)));
  const auto again = test::run_program(
      scratch, {"plan", written, "--threads", std::to_string(threads), "--ranks", "16", "--machine", machine("h100_8"), "--json"});
  ASSERT_EQ(again.status, 0) << again.err;
  const auto plan = Json::parse(again.out);
  for (const char* kind : {"device", "host"}) EXPECT_EQ(plan["limits"][kind]["needed"], first["bytes_per_rank"][kind]) << kind;
  EXPECT_EQ(plan["prediction"]["tokens_per_second"], first["prediction"]["tokens_per_second"]);
  EXPECT_FALSE(test::has(test::slurp(written), "device = \"80000000000 B\"")) << "the machine's memory is not the deck's";
  const auto text = run_plan(scratch, with({}));
  for (const char* part : {"searched  ", "choose    ", "runner-up ", "what if   one more node: ", "20 GB more of each GPU"})
    EXPECT_TRUE(test::has(text.out, part)) << part << "\n" << text.out;
}

TEST(PlanCommand, SaysWhatGoesWithAChoiceAndWhyANodeGainsNothing) {
  const test::Scratch scratch;
  const std::vector<std::string> asked{"--gpus", "8", "--machine", machine("h100_8"), "--recommend", "batch.global=8", "batch.micro=4"};
  const auto r = plan_of(scratch, asked);
  // Each note belongs to a change, and each such change has its note.
  std::size_t notes = 0;
  for (const auto& choice : {r["first"], r["runner_up"], r["what_if"][0]["first"], r["what_if"][1]["first"]}) {
    std::string changes;
    for (const auto& change : choice["changes"]) changes += change.get<std::string>() + "\n";
    const std::string said = choice["notes"].dump();
    EXPECT_EQ(test::has(said, "another run, no resume"), test::has(changes, "batch.micro=")) << choice.dump();
    EXPECT_EQ(test::has(said, "nvme_path is an example"), test::has(changes, "nvme_path=")) << choice.dump();
    notes += choice["notes"].size();
  }
  EXPECT_GT(notes, 0u);
  // 16 ranks have 8 micro-batches.
  EXPECT_EQ(r["what_if"][0]["why"], "batch.global = 8 over 16 ranks leaves 50.0 % of the micro-batches empty");
  EXPECT_LE(r["what_if"][0]["first"]["prediction"]["tokens_per_second"], r["first"]["prediction"]["tokens_per_second"]);
  EXPECT_FALSE(r["what_if"][1].contains("why"));
  EXPECT_TRUE(test::has(run_plan(scratch, asked).out, "leaves 50.0 % of the micro-batches empty"));
}

TEST(PlanCommand, SweepsOverNumbersOfRanks) {
  const test::Scratch scratch;
  const auto r = plan_of(scratch, {"--machine", machine("h100_8"), "--sweep", "1,8,16", "mesh.dp=4"});
  ASSERT_EQ(r["sweep"].size(), 3u);
  EXPECT_EQ(r["sweep"][2]["ranks"], 16);
  EXPECT_EQ(r["sweep"][2]["first"]["prediction"]["nodes"], 2);
  const auto alone = plan_of(scratch, {"--machine", machine("h100_8"), "--recommend", "--ranks", "8"});
  EXPECT_EQ(r["sweep"][1]["first"]["prediction"]["tokens_per_second"], alone["first"]["prediction"]["tokens_per_second"]);
}

TEST(PlanCommand, RecommendsAMeshWhoseDeckPlansAsItSays) {
  const test::Scratch scratch;
  const std::string written = scratch / "best.toml";
  const std::vector<std::string> keys{"mesh.pp=2", "batch.global=32"};  // the deck's own mesh need not fit the ranks
  const auto r =
      plan_of(scratch, {"--machine", machine("h100_8"), "--recommend", "--meshes", "--gpus", "15", "--write", written, keys[0], keys[1]});
  EXPECT_EQ(r["choices"].size(), r["meshes"]);
  const auto& first = r["choices"][0];
  EXPECT_TRUE(test::has(test::slurp(written), "--recommend --meshes` for 15 ranks"));
  const auto again = test::run_program(
      scratch, {"plan", written, "--threads", std::to_string(threads), "--ranks", "15", "--machine", machine("h100_8"), "--json"});
  ASSERT_EQ(again.status, 0) << again.err;
  const auto plan = Json::parse(again.out);
  EXPECT_EQ(plan["prediction"]["tokens_per_second"], first["prediction"]["tokens_per_second"]);
  const auto text = run_plan(scratch, {"--machine", machine("h100_8"), "--recommend", "--meshes", "--gpus", "8"});
  EXPECT_TRUE(test::has(text.out, "choose    ")) << text.out << text.err;
  EXPECT_TRUE(test::has(text.out, "instead of ")) << text.out;
  EXPECT_FALSE(test::has(text.out, "slowdown  ")) << "stages of a pipeline have no such step to be compared with: " << text.out;
  const auto rows = plan_of(scratch, {"--machine", machine("h100_8"), "--sweep", "15,1", "--meshes", keys[0], keys[1]});
  EXPECT_EQ(rows["sweep"][0]["choices"][0], first);
  EXPECT_EQ(run_plan(scratch, {"--machine", machine("h100_8"), "--meshes"}).status, 2);
}

TEST(PlanCommand, RefusesToRecommendWithoutAMachineOrWhereNothingFits) {
  const test::Scratch scratch;
  EXPECT_EQ(run_plan(scratch, {"--recommend"}).status, 2);
  EXPECT_EQ(run_plan(scratch, {"--sweep", "1,2"}).status, 2);
  EXPECT_EQ(run_plan(scratch, {"--price", "2"}).status, 2);
  EXPECT_EQ(run_plan(scratch, {"--machine", machine("h100_8"), "--write", scratch / "x.toml"}).status, 2);
  EXPECT_EQ(run_plan(scratch, {"--machine", machine("h100_8"), "--sweep", "1,2", "--ranks", "2"}).status, 2);
  const auto none = run_plan(scratch, {"--machine", machine("h100_8"), "--recommend", "memory.device=2300 MB", "--ranks", "2"});
  EXPECT_EQ(none.status, 5) << none.out;
  EXPECT_TRUE(test::has(none.err, "the smallest plan needs")) << none.err;
}

// Memory says it without a clock. Processor time is the smaller of two runs', since what runs beside a program only adds to it: five times
// the layers take six to eight times as long (caches), or 25 times where the work grows with their square.
TEST(PlanCommand, GrowsWithTheLayersAndNotWithTheirSquare) {
  const test::Scratch scratch;
  test::spill(scratch / "tiny.toml", test::tiny_deck_text);
  auto plan = [&](int layers) {
    const auto done = test::run_program(scratch, {"plan", scratch / "tiny.toml", fmt::format("model.layers={}", layers), "zero.stage=3",
                                                  "zero.param_persistence_threshold=0", "--ranks", "2"});
    EXPECT_EQ(done.status, 0) << done.err;
    return done;
  };
  const auto few = plan(400), many = plan(2000);
  EXPECT_LT(many.peak_bytes, 7 * few.peak_bytes);
  const double least = std::min(few.cpu_seconds, plan(400).cpu_seconds), most = std::min(many.cpu_seconds, plan(2000).cpu_seconds);
  EXPECT_LT(most, 15 * least);
}

}  // namespace
}  // namespace tessera::plan_test
