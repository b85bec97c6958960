// Each rule with figures by hand: what it says, below which figure it is silent, and that the keys which it names are there.
#include "report/page/advice.hpp"

#include <gtest/gtest.h>

#include <set>

#include "../model/random_models.hpp"
#include "deck/schema/schema.hpp"

namespace tessera {
namespace {

constexpr std::int64_t GiB = std::int64_t{1} << 30;

Deck deck_of_rules() {
  Deck deck;
  deck.batch = {.global = 32, .micro = 2, .sequence_length = 128};
  deck.optimizer.gradient_clipping = 1;
  deck.optimizer.learning_rate = 1e-3;
  deck.checkpoint.every = 100;
  deck.zero.prefetch_bucket_size = 1000;
  deck.data.train = {"data/a.h5"};
  return deck;
}

RunFigures figures_of_rules(std::map<std::string, double> shares = {}) {
  RunFigures f;
  f.ranks = 4;
  f.step_seconds = 0.2;
  f.shares = std::move(shares);
  return f;
}

/// So many of 100 seconds.
Goodput spent(double Goodput::*part, double seconds) {
  Goodput g;
  g.wall = 100;
  g.*part = seconds;
  return g;
}

std::optional<Advice> ask(std::string_view rule, const RunFigures& f, const Deck& deck) {
  for (const AdviceRule& row : advice_rules())
    if (row.name == rule) return row.of(f, deck);
  ADD_FAILURE() << "no rule " << rule;
  return {};
}

/// A rule on figures and a deck: what it must say and change.
struct Case {
  const char* rule;
  std::map<std::string, double> shares;
  std::function<void(RunFigures&, Deck&)> set;
  const char *found, *change;
};

const std::vector<Case>& cases() {
  const auto none = [](RunFigures&, Deck&) {};
  static const std::vector<Case> all = {
      {"exposed_gathers",
       {{"all_gather", 0.1}},
       [](RunFigures&, Deck& d) { d.zero.overlap_comm = OverlapComm::no; },
       "10.0 % of a step (20 ms)",
       "zero.overlap_comm=auto"},
      {"exposed_gathers",
       {{"all_gather", 0.1}},
       [](RunFigures&, Deck& d) { d.zero.stage = 3, d.zero.prefetch_bucket_size = 0; },
       "10.0 %",
       "zero.prefetch_bucket_size=auto"},
      {"exposed_gathers", {{"all_gather", 0.06}}, [](RunFigures&, Deck& d) { d.zero.stage = 3; }, "6.0 %", "batch.micro=4"},
      {"exposed_gathers",
       {{"all_gather", 0.06}},
       [](RunFigures& f, Deck& d) { d.zero.stage = 3, f.ranks_per_node = 2; },
       "6.0 %",
       "zero.hpz_partition_size=2"},
      {"exposed_gathers",
       {{"all_gather", 0.06}},
       [](RunFigures&, Deck& d) { d.zero.stage = 3, d.batch.micro = 8; },
       "6.0 %",
       "zero.stage=2"},
      {"exposed_gathers",
       {{"all_gather", 0.06}},
       [](RunFigures&, Deck& d) { d.zero.stage = 1; },
       "6.0 %",
       "zero.allgather_bucket_size=500000000"},
      {"exposed_reductions",
       {{"reduce_scatter", 0.04}, {"all_reduce", 0.02}},
       [](RunFigures&, Deck& d) { d.zero.overlap_comm = OverlapComm::no; },
       "6.0 %",
       "zero.overlap_comm=auto"},
      {"exposed_reductions", {{"reduce_scatter", 0.3}}, [](RunFigures&, Deck& d) { d.zero.stage = 2; }, "30.0 %", "batch.micro=4"},
      {"exposed_reductions", {{"reduce_scatter", 0.3}}, none, "30.0 %", "batch.global=64"},
      {"exposed_exchanges", {{"all_to_all", 0.2}}, [](RunFigures&, Deck& d) { d.mesh.ep = 4; }, "20.0 %", "mesh.ep=2"},
      {"exposed_exchanges", {{"rotate", 0.2}}, [](RunFigures&, Deck& d) { d.mesh.cp = 4; }, "20.0 %", "mesh.cp=2"},
      {"exposed_exchanges", {{"all_to_all", 0.2}}, none, "20.0 %", "zero.quantized_gradients=false"},
      {"bubbles", {{"pipeline", 0.25}}, [](RunFigures&, Deck& d) { d.mesh.pp = 4; }, "25.0 %", "batch.micro=1"},
      {"bubbles",
       {{"pipeline", 0.25}},
       [](RunFigures&, Deck& d) { d.mesh.pp = 4, d.batch.micro = 1; },
       "25.0 %",
       "pipeline.schedule=interleaved"},
      {"bubbles",
       {{"pipeline", 0.25}},
       [](RunFigures&, Deck& d) { d.mesh.pp = 4, d.batch.micro = 1, d.pipeline.schedule = PipelineSchedule::zero_bubble; },
       "25.0 %",
       "mesh.pp=2"},
      {"offload",
       {{"upload", 0.04}, {"download", 0.04}},
       [](RunFigures&, Deck& d) { d.zero.offload_optimizer.device = OffloadDevice::host; },
       "8.0 %",
       "zero.offload_optimizer.ratio=0.50"},
      {"offload",
       {{"upload", 0.1}},
       [](RunFigures&, Deck& d) { d.zero.offload_optimizer.device = OffloadDevice::host, d.zero.offload_optimizer.pin_memory = false; },
       "10.0 %",
       "zero.offload_optimizer.pin_memory=true"},
      {"offload",
       {{"upload", 0.1}},
       [](RunFigures&, Deck& d) { d.zero.offload_param.device = OffloadDevice::host; },
       "10.0 %",
       "zero.offload_param.device=none"},
      {"offload",
       {{"upload", 0.1}},
       [](RunFigures&, Deck& d) { d.activation.offload = OffloadDevice::host; },
       "10.0 %",
       "activation.offload=none"},
      {"offload", {{"disk_read", 0.2}}, none, "disks", "nvme.queue_depth=16"},
      {"data", {{"data", 0.03}}, none, "3.0 % of a step (6 ms)", ""},
      {"stalls",
       {},
       [](RunFigures& f, Deck&) {
         f.goodput = spent(&Goodput::stalled, 20);
         f.stalls = {{.step = 3, .seconds = 6, .usual = 1, .text = "step 3 took 6 s"},
                     {.step = 8, .seconds = 16, .usual = 1, .text = "step 8 took 16 s"}};
       },
       "2 steps stalled, for 20 s in all, 20.0 % of the run's time. The longest: step 8 took 16 s.",
       "run.notify=COMMAND"},
      {"stalls",
       {},
       [](RunFigures& f, Deck& d) {
         f.stalls = {{.step = 3, .seconds = 6, .usual = 1, .text = "step 3 took 6 s"}};
         d.run.notify = "mail";
       },
       "A step stalled, for 5 s in all. The longest: step 3 took 6 s.",
       ""},
      {"optimizer", {{"optimizer", 0.2}}, none, "20.0 %", "zero.stage=1"},
      {"optimizer", {{"optimizer", 0.2}}, [](RunFigures&, Deck& d) { d.zero.stage = 2; }, "20.0 %", "batch.global=64"},
      {"optimizer",
       {{"optimizer", 0.2}},
       [](RunFigures&, Deck& d) { d.zero.stage = 2, d.zero.offload_optimizer.device = OffloadDevice::host; },
       "20.0 %",
       "zero.offload_optimizer.ratio=0.50"},
      {"waits", {{"waits", 0.05}, {"host", 0.05}}, none, "10.0 %", "batch.micro=4"},
      {"waits", {{"waits", 0.1}}, [](RunFigures&, Deck& d) { d.kernels.cuda_graph = GraphMode::off; }, "10.0 %", "kernels.cuda_graph=auto"},
      {"slow_ranks", {}, [](RunFigures& f, Deck&) { f.slow = {{.rank = 3, .excess = 0.21}}; }, "3 (by 21.0 %)", ""},
      {"saves",
       {},
       [](RunFigures& f, Deck&) { f.stall_share = 0.04, f.save_seconds = 30; },
       "4.0 % of the time; a save takes 30 s",
       "checkpoint.async=true"},
      {"saves", {}, [](RunFigures& f, Deck& d) { f.stall_share = 0.04, d.checkpoint.async = true; }, "4.0 %", "checkpoint.every=200"},
      {"lost_work",
       {},
       [](RunFigures& f, Deck&) { f.goodput = spent(&Goodput::lost, 10), f.starts = 5, f.killed = 3; },
       "10.0 % of the run's time",
       "checkpoint.every=50"},
      {"starts", {}, [](RunFigures& f, Deck&) { f.goodput = spent(&Goodput::starting, 20), f.starts = 5; }, "5 starts took 20.0 %", ""},
      {"starts",
       {},
       [](RunFigures& f, Deck& d) { f.goodput = spent(&Goodput::starting, 20), f.starts = 5, d.run.device = RunDevice::cuda; },
       "20.0 %",
       "kernels.gemm_search=false"},
      {"no_number",
       {},
       [](RunFigures& f, Deck& d) { f.without_loss = 2, d.optimizer.gradient_clipping = 0; },
       "2 steps",
       "optimizer.gradient_clipping=1.0"},
      {"no_number", {}, [](RunFigures& f, Deck&) { f.without_loss = 2; }, "2 steps", "optimizer.learning_rate=0.0005"},
      {"free_memory",
       {},
       [](RunFigures& f, Deck& d) {
         f.memory = {{.tier = "device", .bytes = 20 * GiB, .limit = 80 * GiB}}, d.zero.offload_param.device = OffloadDevice::host;
       },
       "60.00 GiB of 80.00 GiB of memory (device) are free on each rank: 75.0 %",
       "zero.offload_param.device=none"},
      {"free_memory",
       {},
       [](RunFigures& f, Deck& d) {
         f.memory = {{.tier = "device", .bytes = 20 * GiB, .limit = 80 * GiB}}, d.zero.offload_optimizer.device = OffloadDevice::host;
       },
       "75.0 %",
       "zero.offload_optimizer.device=none"},
      {"free_memory",
       {},
       [](RunFigures& f, Deck& d) {
         f.memory = {{.tier = "device", .bytes = 20 * GiB, .limit = 80 * GiB}}, d.activation.offload = OffloadDevice::host;
       },
       "75.0 %",
       "activation.offload=none"},
      {"free_memory",
       {},
       [](RunFigures& f, Deck& d) {
         f.memory = {{.tier = "device", .bytes = 20 * GiB, .limit = 80 * GiB}}, d.activation.recompute = Recompute::full;
       },
       "75.0 %",
       "activation.recompute=none"},
      {"free_memory",
       {},
       [](RunFigures& f, Deck& d) { f.memory = {{.tier = "device", .bytes = 20 * GiB, .limit = 80 * GiB}}, d.zero.stage = 3; },
       "75.0 %",
       "zero.stage=2"},
      {"free_memory",
       {},
       [](RunFigures& f, Deck&) { f.memory = {{.tier = "host", .bytes = 20 * GiB, .limit = 80 * GiB}}; },
       "75.0 %",
       "batch.micro=4"},
  };
  return all;
}

TEST(Advice, SaysTheFigureAndTheChange) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(std::string(c.rule) + " -> " + c.change);
    RunFigures f = figures_of_rules(c.shares);
    Deck deck = deck_of_rules();
    c.set(f, deck);
    const std::optional<Advice> advice = ask(c.rule, f, deck);
    ASSERT_TRUE(advice);
    EXPECT_NE(advice->found.find(c.found), std::string::npos) << advice->found;
    EXPECT_EQ(advice->change, c.change);
    EXPECT_FALSE(advice->remedy.empty());
  }
}

/// A line of the command line that the program would take: the key is there, and its value is one of it.
TEST(Advice, NamesKeysAndValuesThatAreThere) {
  std::set<std::string> rules;
  for (const Case& c : cases()) {
    rules.insert(c.rule);
    const std::string change = c.change;
    if (change.empty()) continue;
    const Key* key = find_key(change.substr(0, change.find('=')));
    ASSERT_NE(key, nullptr) << change;
    const std::string value = change.substr(change.find('=') + 1);
    const auto* mode = std::get_if<ModeField>(&key->field);
    const bool taken = mode ? std::ranges::find(mode->words, value) != mode->words.end() : value != "auto" || key->automatic != Auto::no;
    EXPECT_TRUE(taken) << change;
  }
  for (const AdviceRule& rule : advice_rules()) EXPECT_TRUE(rules.contains(std::string(rule.name))) << "no case of " << rule.name;
}

TEST(Advice, IsSilentWhereNothingStandsOut) {
  EXPECT_TRUE(advise(figures_of_rules(), deck_of_rules(), {}).empty());
  RunFigures f = figures_of_rules({{"all_gather", 0.049},
                                   {"reduce_scatter", 0.049},
                                   {"all_to_all", 0.049},
                                   {"pipeline", 0.049},
                                   {"upload", 0.049},
                                   {"data", 0.019},
                                   {"optimizer", 0.149},
                                   {"waits", 0.049}});
  f.stall_share = 0.019;
  f.goodput = spent(&Goodput::lost, 1.9);
  f.goodput->starting = 4.9;
  f.starts = 3;
  f.memory = {{.tier = "device", .bytes = 76 * GiB, .limit = 100 * GiB}};
  for (const Advice& advice : advise(f, deck_of_rules(), {})) ADD_FAILURE() << advice.found;
}

TEST(Advice, StandsByItsShareAndAsksTheSimulatorOfStepsAlone) {
  RunFigures f = figures_of_rules({{"all_gather", 0.06}, {"optimizer", 0.3}});
  f.stall_share = 0.04;
  std::vector<std::string> asked;
  const auto all = advise(f, deck_of_rules(), [&](const std::string& change) {
    asked.push_back(change);
    return "simulated " + change;
  });
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0].change, "zero.stage=1");
  EXPECT_EQ(all[0].simulated, "simulated zero.stage=1");
  EXPECT_EQ(all[2].change, "checkpoint.async=true");
  EXPECT_EQ(all[2].simulated, "");
  EXPECT_EQ(asked, (std::vector<std::string>{"zero.stage=1", "zero.allgather_bucket_size=500000000"}));
}

TEST(Advice, IsNothingThatTheRulesOfTheDeckRefuse) {
  const RunFigures f = figures_of_rules({{"optimizer", 0.3}});
  const auto changes = [&](const std::vector<std::string>& overrides) {
    std::vector<std::string> found;
    for (const Advice& advice : advise(f, test::tiny_deck(overrides, 4), {})) found.push_back(advice.change);
    return found;
  };
  EXPECT_EQ(changes({"zero.stage=0"}), std::vector<std::string>{"zero.stage=1"});
  EXPECT_EQ(changes({"zero.stage=0", "optimizer.type=onebit_adam", "optimizer.freeze_step=10"}), std::vector<std::string>{})
      << "1-bit Adam is of stage 0 alone";
}

TEST(Advice, SaysWhichChangesAreForAnotherRun) {
  Deck deck = deck_of_rules();
  deck.zero.stage = 2;
  const auto all = advise(figures_of_rules({{"reduce_scatter", 0.3}}), deck, {});
  ASSERT_EQ(all.size(), 1u);
  EXPECT_NE(all[0].remedy.find("identity"), std::string::npos) << all[0].remedy;
}

}  // namespace
}  // namespace tessera
