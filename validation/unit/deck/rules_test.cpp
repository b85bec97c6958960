#include <gtest/gtest.h>

#include <algorithm>

#include "small_deck.hpp"

namespace tessera::rules_test {
namespace {

bool valid(const std::vector<std::string>& overrides, int ranks = 0) { return parse_small(overrides, ranks).faults.empty(); }
std::string faults(const std::vector<std::string>& overrides, int ranks = 0) { return faults_of(parse_small(overrides, ranks)); }
bool says(const std::string& text, const std::string& what) { return text.find(what) != std::string::npos; }

std::string resolved(const std::vector<std::string>& overrides, std::int64_t counted) {
  const CountSteps count = [&](const Deck&) { return CountedSteps{counted, "as the test says"}; };
  const ParsedDeck parsed = parse_deck_text(small_deck, "decks/small.toml", overrides, 0, count);
  EXPECT_EQ(faults_of(parsed), "");
  EXPECT_EQ(faults_of(parse_deck_text(print_deck(parsed.deck), "printed", {}, 0)), "");
  return fmt::format("{}", fmt::join(parsed.resolved, "\n")) + fmt::format("\nsteps {} epochs {} warmup {} ratio {}", parsed.deck.run.steps,
                                                                           parsed.deck.run.epochs, parsed.deck.learning_rate.warmup_steps,
                                                                           parsed.deck.learning_rate.warmup_ratio);
}

TEST(Rules, PassesBecomeStepsWhereTheyCanBeCounted) {
  EXPECT_TRUE(says(resolved({"run.epochs=3"}, 250), "run.steps = 250 (run.epochs = 3: as the test says)"));
  EXPECT_TRUE(says(resolved({"run.epochs=3"}, 250), "steps 250 epochs 0 warmup 0 ratio 0")) << "the steps of the file are dropped";
  EXPECT_TRUE(says(resolved({"run.epochs=3"}, 250), "run.steps = 100 of decks/small.toml is dropped"));
  EXPECT_TRUE(says(resolved({"run.epochs=3", "learning_rate.warmup_ratio=0.03"}, 250), "steps 250 epochs 0 warmup 8 ratio 0"));
  EXPECT_TRUE(says(resolved({"learning_rate.warmup_ratio=0.07"}, 0), "steps 100 epochs 0 warmup 7 ratio 0"));
  EXPECT_TRUE(says(resolved({"run.epochs=0.5", "learning_rate.warmup_ratio=0.5"}, 0), "steps 0 epochs 0.5 warmup 0 ratio 0.5"));
  EXPECT_TRUE(says(faults({"run.steps=7", "run.epochs=3"}), "run.steps and run.epochs both set the length of the run"));
  EXPECT_TRUE(says(faults({"learning_rate.warmup_steps=7", "learning_rate.warmup_ratio=0.1"}), "both set the length of the warmup"));
  EXPECT_TRUE(says(faults({"run.steps=auto"}), "or `epochs = ...`"));
  // Rules that need the steps see those that were counted.
  const CountSteps ten = [](const Deck&) { return CountedSteps{10, ""}; };
  EXPECT_TRUE(says(faults_of(parse_deck_text(small_deck, "d", {"run.epochs=1", "learning_rate.warmup_steps=11"}, 0, ten)),
                   "learning_rate.warmup_steps 11 is more than run.steps 10"));
  EXPECT_TRUE(says(faults_of(parse_deck_text(small_deck, "d", {"run.epochs=1", "run.trace=11"}, 0, ten)), "set it to at most 10"));
  // A few steps on a command line shorten the file's warmup and decay, with a word; what is asked for there too is refused.
  const std::string of_file = std::string(small_deck) + "\n[learning_rate]\nschedule = \"wsd\"\nwarmup_steps = 20\ndecay_steps = 30\n";
  const auto of = [&](const std::vector<std::string>& overrides) { return parse_deck_text(of_file, "d", overrides, 0); };
  const ParsedDeck few = of({"run.steps=5"});
  EXPECT_EQ(faults_of(few), "");
  EXPECT_EQ(few.deck.learning_rate.warmup_steps, 5);
  EXPECT_EQ(few.deck.learning_rate.decay_steps, 0);
  EXPECT_TRUE(says(fmt::format("{}", fmt::join(few.resolved, "\n")),
                   "learning_rate.warmup_steps = 5 (the override run.steps = 5 is too short for 20)"));
  EXPECT_EQ(of({"run.steps=30"}).deck.learning_rate.decay_steps, 10);
  EXPECT_EQ(of({"run.steps=60"}).deck.learning_rate.decay_steps, 30);
  EXPECT_TRUE(
      says(faults_of(of({"run.steps=5", "learning_rate.warmup_steps=6"})), "learning_rate.warmup_steps 6 is more than run.steps 5"));
  // Nothing is counted of a deck that cannot be used.
  const CountSteps never = [](const Deck&) -> CountedSteps { throw std::logic_error("counted"); };
  EXPECT_NO_THROW(parse_deck_text(small_deck, "d", {"run.epochs=1", "zero.stage=7"}, 0, never));
}

// Whatever others call a schedule, the message has a name of ours that works.
TEST(Rules, SchedulesOfOthersAreRefusedWithOurNames) {
  for (const auto& [theirs, ours] : std::vector<std::pair<std::string, std::string>>{{"Cosine", "cosine"},
                                                                                     {"LINEAR", "linear"},
                                                                                     {"WarmupCosineLR", "warmup_cosine_lr"},
                                                                                     {"WarmupDecayLR", "warmup_decay_lr"},
                                                                                     {"WarmupLR", "warmup_lr"},
                                                                                     {"constant_with_warmup", "constant"},
                                                                                     {"warmup_stable_decay", "wsd"},
                                                                                     {"cosine_with_min_lr", "cosine"},
                                                                                     {"cosine_warmup_with_min_lr", "cosine"},
                                                                                     {"cosine_with_restarts", "cosine"},
                                                                                     {"polynomial", "linear"},
                                                                                     {"inverse_sqrt", "cosine"},
                                                                                     {"reduce_lr_on_plateau", "cosine"},
                                                                                     {"greedy", "cosine"},
                                                                                     {"OneCycle", "one_cycle"},
                                                                                     {"LRRangeTest", "lr_range_test"}}) {
    const std::string found = faults({"learning_rate.schedule=" + theirs});
    EXPECT_TRUE(says(found, "\"" + ours + "\"")) << theirs << ": " << found;
    EXPECT_FALSE(says(found, "is not a value of this key") && !says(found, "did you mean \"" + ours)) << found;
  }
  EXPECT_TRUE(says(faults({"precision.compute=FP16"}), "did you mean \"fp16\"?"));
  EXPECT_TRUE(says(faults({"precision.loss_scale.window=5"}), "leave precision.loss_scale.window out or set precision.compute"));
  EXPECT_TRUE(says(faults({"precision.compute=fp16", "precision.loss_scale.minimum=3"}), "nearest valid values: 2 or 4"));
  EXPECT_TRUE(says(faults({"precision.compute=fp16", "precision.loss_scale.minimum=1048576"}), "raise initial_power or lower minimum"));
  EXPECT_TRUE(says(faults({"precision.compute=fp16", "precision.loss_scale.fixed=8", "precision.loss_scale.window=5"}), "does not move"));
  EXPECT_EQ(faults({"precision.compute=fp16", "precision.loss_scale.fixed=8", "precision.loss_scale.hysteresis=5"}), "");
  EXPECT_TRUE(says(faults({"optimizer.type=AdamW"}), "did you mean \"adamw\"?"));
}

TEST(Rules, Fp8IsOfProductsBetweenTensorsInBf16) {
  for (const char* recipe : {"tensorwise", "tensorwise_delayed", "rowwise", "blockwise"})
    EXPECT_EQ(faults({fmt::format("precision.fp8={}", recipe)}), "");
  EXPECT_EQ(faults({"precision.fp8=rowwise", "precision.fp8_skip=[]"}), "");
  EXPECT_EQ(faults({"precision.fp8=tensorwise_delayed", "precision.fp8_history=16", "precision.fp8_margin=1"}), "");
  for (const char* key : {"precision.fp8_history=16", "precision.fp8_margin=1"}) {
    EXPECT_TRUE(says(faults({key}), "\"tensorwise_delayed\" keeps histories, and precision.fp8 is \"none\""));
    EXPECT_TRUE(says(faults({key, "precision.fp8=rowwise"}), "or set precision.fp8 = \"tensorwise_delayed\""));
  }
  EXPECT_TRUE(says(faults({"precision.fp8_skip=[]"}), "leave precision.fp8_skip out or set precision.fp8"));
  EXPECT_TRUE(says(faults({"precision.fp8=rowwise", "precision.compute=fp16"}), "set precision.compute = \"bf16\" or precision.fp8"));
  EXPECT_TRUE(says(faults({"precision.fp8=rowwise", "kernels.pack_weights=true"}), "set kernels.pack_weights = false"));
  EXPECT_TRUE(says(faults({"precision.fp8=rowwise", "model.experts=4", "model.experts_per_token=2", "model.expert_ff_width=64"}),
                   "products of experts are not in fp8"));
  EXPECT_TRUE(says(faults({"precision.compute=fp8"}), "set \"bf16\" and precision.fp8"));
}

// Nothing that a user writes is dropped without a word; a printed deck has every key, at its default.
TEST(Rules, AnOptimizerReadsItsOwnKeys) {
  EXPECT_TRUE(says(faults({"optimizer.type=lion", "optimizer.eps=1e-6"}), "optimizer.eps: belongs to optimizer.type = \"adamw\""));
  EXPECT_TRUE(says(faults({"optimizer.type=lion", "optimizer.eps=1e-6"}), "and \"lion\" does not read it"));
  EXPECT_TRUE(says(faults({"optimizer.type=sgd", "optimizer.beta2=0.9"}), "and \"sgd\" does not read it"));
  EXPECT_TRUE(says(faults({"optimizer.momentum=0.9"}), "belongs to optimizer.type = \"sgd\", \"muon\", and \"adamw\" does not read it"));
  EXPECT_TRUE(says(faults({"optimizer.type=sgd", "optimizer.nesterov=true"}), "needs a momentum"));
  EXPECT_EQ(faults({"optimizer.type=sgd", "optimizer.nesterov=true", "optimizer.momentum=0.9"}), "");
  EXPECT_EQ(faults({"optimizer.moments=bf16", "optimizer.moments_rounding=nearest"}), "");
  EXPECT_TRUE(says(faults({"optimizer.moments_rounding=nearest"}), "needs optimizer.moments = \"bf16\""));
  EXPECT_TRUE(says(faults({"optimizer.type=sgd", "optimizer.moments=bf16"}), "sgd without optimizer.momentum keeps none"));
  EXPECT_TRUE(says(faults({"optimizer.type=adam8bit", "optimizer.moments=bf16"}), "\"adam8bit\" does not read it"));
  EXPECT_EQ(faults({"optimizer.type=muon", "optimizer.newton_schulz=simple", "optimizer.muon_scale=original", "optimizer.eps=1e-6"}), "");
  EXPECT_TRUE(says(faults({"optimizer.newton_schulz=simple"}), "belongs to optimizer.type = \"muon\", and \"adamw\" does not read it"));
  EXPECT_TRUE(says(faults({"optimizer.type=muon", "optimizer.momentum=0"}), "needs a momentum"));
  EXPECT_EQ(faults({"optimizer.type=muon", "optimizer.momentum=0", "optimizer.nesterov=false"}), "");
  // Lion's own default, which a value that is given takes the place of.
  const auto beta2 = [](const std::vector<std::string>& overrides) {
    const Deck deck = require_deck(parse_deck_text(small_deck, "d", overrides, 1));
    EXPECT_EQ(require_deck(parse_deck_text(print_deck(deck), "printed", {}, 1)), deck);
    return deck.optimizer.beta2;
  };
  EXPECT_EQ(beta2({}), 0.95);
  EXPECT_EQ(beta2({"optimizer.type=lion"}), 0.99);
  EXPECT_EQ(beta2({"optimizer.type=lion", "optimizer.beta2=0.95"}), 0.95);
  const OptimizerKeys muon = require_deck(parse_deck_text(small_deck, "d", {"optimizer.type=muon"}, 1)).optimizer;
  EXPECT_EQ(muon.momentum, 0.95);
  EXPECT_TRUE(muon.nesterov);
}

// Momenta of ranks meet as signs: what cannot be beside that is refused by its key.
TEST(Rules, OneBitAdamIsOfDataParallelRanksWithWholeState) {
  const auto found = [](std::vector<std::string> overrides, int ranks) {
    overrides.insert(overrides.begin(), {"optimizer.type=onebit_adam", "optimizer.freeze_step=4"});
    return faults(overrides, ranks);
  };
  EXPECT_EQ(found({"zero.stage=0"}, 2), "");
  EXPECT_EQ(found({"zero.stage=0", "precision.gradients=bf16", "batch.global=8"}, 2), "");
  EXPECT_EQ(found({"zero.stage=0", "run.reproducible=true"}, 1), "");
  EXPECT_TRUE(says(found({"zero.stage=0", "run.reproducible=true"}, 2), "each of 2 ranks rounds its own momenta to signs"));
  EXPECT_TRUE(
      says(found({"zero.stage=1"}, 2), "zero.stage: each rank keeps its own whole momenta with \"onebit_adam\"; set zero.stage = 0"));
  EXPECT_TRUE(says(found({"zero.stage=0", "zero.offload_optimizer.device=host"}, 2), "set it to \"none\""));
  EXPECT_TRUE(says(found({"zero.stage=0", "precision.compute=fp16"}, 2), "optimizer.freeze_step counts steps"));
  for (const char* axis : {"mesh.tp", "mesh.pp", "mesh.cp", "mesh.replicate"})
    EXPECT_TRUE(says(found({"zero.stage=0", std::string(axis) + "=2"}, 2),
                     fmt::format("only over ranks of mesh.dp, which have all tensors whole, and {} is 2", axis)))
        << found({"zero.stage=0", std::string(axis) + "=2"}, 2);
  EXPECT_EQ(found({"zero.stage=0", "optimizer.groups=[{ tensors = [\"head.*\"], learning_rate = 1e-4 }]"}, 2), "");
  EXPECT_TRUE(says(found({"zero.stage=0", "optimizer.groups=[{ tensors = [\"head.*\"], type = \"lion\" }]"}, 2),
                   "has a group with another type, but 1-bit Adam"));
  EXPECT_TRUE(says(faults({"optimizer.groups=[{ tensors = [\"head.*\"], type = \"onebit_adam\" }]"}), "has a group of 1-bit Adam"));
  EXPECT_TRUE(says(faults({"optimizer.freeze_step=4"}), "belongs to optimizer.type = \"onebit_adam\""));
  EXPECT_TRUE(says(found({"zero.stage=0", "optimizer.freeze_step=0"}, 2), "out of range"));
}

// The values that a message proposes are themselves valid.
TEST(Rules, BatchMessagesProposeValidValues) {
  for (std::int64_t global : {1, 7, 12, 30, 60, 61}) {
    for (std::int64_t micro : {1, 2, 4, 5}) {
      auto with = [&](std::int64_t g, std::int64_t m) {
        return std::vector{fmt::format("batch.global={}", g), fmt::format("batch.micro={}", m)};
      };
      std::string found = faults(with(global, micro));
      ASSERT_EQ(found.empty(), global % micro == 0) << found;
      if (found.empty()) continue;
      std::int64_t above = round_up(global, micro);
      EXPECT_TRUE(says(found, fmt::format("{}", above)) && valid(with(above, micro))) << found;
      if (above > micro) {
        EXPECT_TRUE(says(found, fmt::format("{} or {}", above - micro, above)) && valid(with(above - micro, micro))) << found;
      }
    }
  }
}

TEST(Rules, BatchNamesMicroBatchesThatWork) {
  EXPECT_TRUE(says(faults({"batch.global=60", "batch.micro=8"}), "nearest valid batch.micro: 4, 5, 6 or 10"));
  EXPECT_TRUE(valid({"batch.global=60", "batch.micro=10"}));
  for (int ranks : {1, 4, 7}) EXPECT_TRUE(valid({"batch.global=60", "batch.micro=2"}, ranks)) << "ranks may run empty micro-batches";
}

TEST(Rules, MeshEqualsRanks) {
  EXPECT_TRUE(valid({"mesh.dp=2"}, 2));
  EXPECT_TRUE(valid({"mesh.dp=2"}, 0));
  EXPECT_TRUE(says(faults({"mesh.dp=4"}, 2), "there are 2 ranks"));
}

TEST(Rules, TensorAxisDividesWhatItCuts) {
  EXPECT_TRUE(valid({"mesh.tp=2"}, 2));
  EXPECT_TRUE(valid({"mesh.tp=2"}, 6));
  EXPECT_EQ(parse_small({"mesh.tp=2"}, 6).deck.mesh.dp, 3);
  EXPECT_TRUE(says(faults({"mesh.tp=2"}, 3), "start 2 or 4, or set mesh.tp = 1 or 3"));
  EXPECT_TRUE(says(faults({"mesh.tp=2", "mesh.dp=2"}, 6), "mesh.dp is 2 and mesh.tp 2 and there are 6 ranks; start 4"));
  EXPECT_TRUE(says(faults({"mesh.tp=8"}, 8), "does not divide model.heads"));
  EXPECT_TRUE(says(faults({"mesh.tp=2", "model.ff_width=97"}, 2), "does not divide model.ff_width 97"));
  EXPECT_TRUE(says(faults({"mesh.tp=2", "model.ff_width=47"}, 2), "mesh.tp 2 does not divide model.ff_width 47"));
  EXPECT_TRUE(valid({"mesh.tp=2", "model.ff_width=47", "model.experts=4"}, 2)) << "experts are not cut";
  EXPECT_TRUE(says(faults({"mesh.tp=2", "batch.sequence_length=15", "batch.micro=1"}, 2), "the 15 tokens of a micro-batch"));
}

TEST(Rules, TensorAxisSharesKeyHeads) {
  EXPECT_TRUE(valid({"mesh.tp=2", "model.kv_heads=1"}, 2)) << "both have the same key and value head";
  EXPECT_TRUE(valid({"mesh.tp=4", "model.kv_heads=2"}, 8));
  EXPECT_TRUE(valid({"mesh.tp=8", "model.heads=8", "model.kv_heads=1", "model.head_dim=8"}, 8)) << "a feature each";
  EXPECT_TRUE(valid({"mesh.tp=4", "mesh.cp=2", "model.heads=8", "model.kv_heads=2"}, 8)) << "two context-parallel ranks have one head";
  EXPECT_TRUE(valid({"mesh.tp=4", "mesh.cp=2", "model.kv_heads=1", "context.method=ring"}, 8));
  EXPECT_TRUE(
      says(faults({"mesh.tp=4", "model.heads=12", "model.kv_heads=6", "model.width=96"}, 4),
           "mesh.tp 4 neither divides model.kv_heads 6 (key and value heads) nor is a multiple of them; valid mesh.tp: 1, 2, 3, 6 or 12"));
  EXPECT_TRUE(says(faults({"mesh.tp=8", "model.heads=8", "model.kv_heads=2", "model.head_dim=6"}, 8),
                   "with mesh.tp 8 each of model.kv_heads 2 (key and value heads) is shared by 4 ranks, which does not divide its "
                   "model.head_dim 6 (features); valid mesh.tp: 1, 2 or 4"));
  EXPECT_TRUE(says(faults({"mesh.tp=4", "mesh.cp=4", "model.heads=8", "model.kv_heads=2"}, 16), "; 2 of a tensor-parallel rank"));
  EXPECT_FALSE(valid({"mesh.tp=2", "model.heads=0"}, 2)) << "and no division by the key heads that follow from them";
}

TEST(Rules, ExpertParallelRanksShareTheExperts) {
  const std::vector<std::string> experts = {"model.experts=6", "mesh.ep=2"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), experts.begin(), experts.end());
    return more;
  };
  EXPECT_TRUE(valid(experts, 2));
  EXPECT_EQ(parse_small(experts, 6).deck.mesh.dp, 3);
  EXPECT_EQ(parse_small(with({"mesh.pp=2"}), 8).deck.mesh.dp, 2);
  EXPECT_TRUE(says(faults(experts, 3), "mesh.ep is 2 and there are 3 ranks; start 2 or 4, or set mesh.ep = 1 or 3"));
  EXPECT_TRUE(says(faults(with({"mesh.ep=4"}), 4), "mesh.ep 4 does not divide model.experts 6; nearest valid mesh.ep: 1, 2, 3 or 6"));
  EXPECT_TRUE(says(faults({"mesh.ep=2"}, 2), "this model has none"));
  EXPECT_TRUE(valid({"model.experts=6", "model.router_balance=bias", "model.router_bias_rate=0.01", "model.router_aux_loss=0.01"}, 1));
  EXPECT_TRUE(says(faults({"model.experts=6", "model.router_bias_rate=0.01"}, 1), "has no effect unless model.router_balance = \"bias\""));
  EXPECT_EQ(parse_small(with({"mesh.tp=2"}), 12).deck.mesh.dp, 3);
  EXPECT_EQ(parse_small(with({"mesh.cp=2", "mesh.tp=2", "model.kv_heads=4"}), 8).deck.mesh.dp, 1);
}

TEST(Rules, ExpertsThatSigmoidsChoose) {
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"model.experts=8", "model.router_scores=sigmoid"});
    return more;
  };
  EXPECT_TRUE(valid(with({"model.router_scale=2.5", "model.dense_layers=1", "model.shared_ff_width=8", "model.shared_gate=false",
                          "model.expert_groups=4", "model.groups_per_token=2"}),
                    1));
  EXPECT_TRUE(says(faults(with({"model.dense_layers=2", "model.layers=2"}), 1),
                   "leaves no layer with experts, of model.layers 2; set it to at most 1"));
  EXPECT_TRUE(says(faults(with({"model.shared_gate=false"}), 1), "has no effect without a shared expert"));
  EXPECT_TRUE(says(faults(with({"model.groups_per_token=2"}), 1), "has no effect with model.expert_groups = 1"));
  EXPECT_TRUE(says(faults({"model.experts=8", "model.expert_groups=4"}, 1), "set model.router_scores = \"sigmoid\""));
  EXPECT_TRUE(
      says(faults(with({"model.expert_groups=8"}), 1), "does not divide model.experts 8 into equal groups of two or more; valid: "));
  EXPECT_TRUE(says(faults(with({"model.expert_groups=4", "model.groups_per_token=5"}), 1), "is more than model.expert_groups 4"));
  EXPECT_TRUE(says(faults(with({"model.expert_groups=4", "model.experts_per_token=3"}), 1), "set model.groups_per_token to 2"));
  for (const char* key : {"model.router_scores=sigmoid", "model.router_scale=2", "model.dense_layers=1", "model.expert_groups=2",
                          "model.groups_per_token=2", "model.shared_gate=false"})
    EXPECT_TRUE(says(faults({key}, 1), "has no effect with model.experts = 0")) << key;
  EXPECT_TRUE(valid(with({"model.ff_width=49", "mesh.tp=2"}), 2)) << "no layer has that width";
  EXPECT_TRUE(
      says(faults(with({"model.ff_width=49", "mesh.tp=2", "model.dense_layers=1"}), 2), "mesh.tp 2 does not divide model.ff_width 49"));
  EXPECT_TRUE(valid(with({"model.router_balance=bias", "model.router_bias_rate=0", "lora.rank=2"}), 1));
}

TEST(Rules, ContextAxisDividesTokensAndHeads) {
  EXPECT_TRUE(valid({"mesh.cp=2"}, 2));
  EXPECT_EQ(parse_small({"mesh.cp=2"}, 6).deck.mesh.dp, 3);
  EXPECT_EQ(parse_small({"mesh.cp=2", "mesh.tp=2", "model.kv_heads=4"}, 12).deck.mesh.dp, 3);
  EXPECT_TRUE(says(faults({"mesh.cp=2"}, 3), "mesh.cp is 2 and there are 3 ranks; start 2 or 4, or set mesh.cp = 1 or 3"));
  EXPECT_TRUE(says(faults({"mesh.cp=2", "mesh.tp=2", "mesh.dp=2", "model.kv_heads=4"}, 4), "mesh.dp is 2 and mesh.cp x mesh.tp 4"));
  EXPECT_TRUE(says(faults({"mesh.cp=2", "batch.sequence_length=15"}, 2), "batch.sequence_length 15 (tokens); nearest valid mesh.cp: 1, 3"));
  EXPECT_TRUE(valid({"mesh.cp=4", "model.heads=4", "model.kv_heads=2"}, 4)) << "two ranks have the same key and value head";
  EXPECT_TRUE(says(faults({"mesh.cp=8", "model.heads=4", "model.kv_heads=4"}, 8), "does not divide model.heads 4 (query heads)"));
  EXPECT_TRUE(says(faults({"mesh.cp=4", "model.heads=12", "model.kv_heads=6", "model.width=96"}, 4),
                   "mesh.cp 4 neither divides model.kv_heads 6 (key and value heads)"));
  EXPECT_TRUE(says(faults({"mesh.cp=4", "mesh.tp=2", "model.heads=4", "model.kv_heads=4"}, 8), "; 2 of a tensor-parallel rank"));
  EXPECT_TRUE(says(faults({"mesh.cp=2", "context.method=rings"}, 2), "\"rings\" is not a value"));
}

TEST(Rules, ARingHasTwoChunksARankAndSharesNoHeads) {
  const auto ring = [](std::vector<std::string> more) {
    more.emplace_back("context.method=ring");
    return more;
  };
  EXPECT_TRUE(valid(ring({"mesh.cp=8", "model.heads=2", "model.kv_heads=1"}), 8)) << "more ranks than heads";
  EXPECT_TRUE(valid(ring({"mesh.cp=2", "mesh.tp=2", "model.kv_heads=4"}), 4));
  EXPECT_TRUE(says(faults(ring({"mesh.cp=4", "batch.sequence_length=36"}), 4),
                   "each of mesh.cp 4 ranks has two equal chunks of a sequence, and 8 does not divide batch.sequence_length 36 (tokens); "
                   "nearest valid mesh.cp: 1, 2, 3 or 6; nearest valid batch.sequence_length: 32 or 40"));
  EXPECT_TRUE(says(faults(ring({"mesh.cp=3", "batch.sequence_length=15"}), 3), "nearest valid mesh.cp: 1; nearest valid")) << "5 a rank";
  EXPECT_TRUE(says(faults(ring({}), 2), "has no effect with mesh.cp = 1; set mesh.cp or leave this key out"));
  // What Ulysses cannot is refused with the way out.
  EXPECT_TRUE(says(faults({"mesh.cp=8", "model.heads=4", "model.kv_heads=4"}, 8), "; context.method = \"ring\" does not divide heads"));
  EXPECT_TRUE(says(faults({"mesh.cp=3", "model.heads=4", "model.kv_heads=4", "batch.sequence_length=15"}, 3),
                   "context.method = \"ring\" does not divide heads, for a batch.sequence_length that 6 divides"));
}

TEST(Rules, HeadDim) {
  EXPECT_EQ(parse_small({"model.width=96", "model.heads=2"}).deck.model.head_dim, 48);
  EXPECT_EQ(parse_small({"model.head_dim=48"}).deck.model.head_dim, 48) << "heads x head_dim need not be the width";
  EXPECT_EQ(parse_small({"model.head_dim=0"}).deck.model.head_dim, 16);
  EXPECT_TRUE(says(faults({"model.head_dim=7"}), "odd"));
  EXPECT_TRUE(says(faults({"model.head_dim=1"}), "set model.head_dim to 2"));
  EXPECT_TRUE(says(faults({"model.width=65"}), "64 or 68"));
  EXPECT_TRUE(valid({"model.width=65", "model.head_dim=16"}));
}

TEST(Rules, KeyValueHeads) {
  EXPECT_TRUE(valid({"model.kv_heads=1"}));
  EXPECT_TRUE(valid({"model.heads=14", "model.kv_heads=2", "model.head_dim=8"}));
  EXPECT_TRUE(says(faults({"model.kv_heads=3"}), "nearest valid model.kv_heads: 1, 2 or 4"));
  EXPECT_TRUE(says(faults({"model.kv_heads=8"}), "not divisible"));
}

// Counted as transformers does it: int(head_dim * partial_rotary_factor).
TEST(Rules, TurnedFeaturesComeInPairs) {
  EXPECT_TRUE(valid({"model.rotary_fraction=0.5"}));  // 8 of 16
  EXPECT_TRUE(valid({"model.rotary_fraction=0.3"}));  // 4
  EXPECT_TRUE(valid({"model.rotary_fraction=0.5", "model.rope_pairs=neighbours"}));
  for (const char* odd : {"0.2", "0.1", "0.01", "0.99"})
    EXPECT_TRUE(says(faults({fmt::format("model.rotary_fraction={}", odd)}), "even number")) << odd;
  for (const char* none : {"0.0", "1.1"}) EXPECT_FALSE(valid({fmt::format("model.rotary_fraction={}", none)})) << none;
  EXPECT_FALSE(valid({"model.rope_pairs=thirds"}));
}

TEST(Rules, RopeScaling) {
  EXPECT_TRUE(valid({"model.rope_scaling=llama3", "model.rope_factor=32.0"}));
  EXPECT_TRUE(says(faults({"model.rope_factor=32.0"}), "has no effect"));
  EXPECT_TRUE(valid({"model.rope_factor=8.0"})) << "a default that is written down contradicts nothing";
  EXPECT_TRUE(says(faults({"model.rope_scaling=llama3", "model.rope_low_freq_factor=4.0"}), "must be above"));
  EXPECT_TRUE(
      valid({"model.rope_scaling=yarn", "model.rope_factor=4.0", "model.rope_original_context=32768", "model.rope_beta_fast=16.0"}));
  EXPECT_TRUE(says(faults({"model.rope_scaling=yarn", "model.rope_beta_fast=1.0"}), "must be above"));
  EXPECT_TRUE(
      says(faults({"model.rope_scaling=linear", "model.rope_original_context=64"}), "has no effect with model.rope_scaling = \"linear\""));
  EXPECT_TRUE(says(faults({"model.rope_scaling=dynamic", "model.heads=16", "model.head_dim=2"}), "set model.head_dim to 4 or more"));
  EXPECT_TRUE(says(faults({"model.rope_scaling=dynamic", "model.head_dim=8", "model.rotary_fraction=0.25"}), "so that n is 4 or more"));
  EXPECT_TRUE(valid({"model.rope_scaling=dynamic", "model.rope_original_context=64"}));
}

TEST(Rules, LearningRate) {
  EXPECT_TRUE(valid({"learning_rate.warmup_steps=100"}));
  EXPECT_FALSE(valid({"learning_rate.warmup_steps=101"}));
  EXPECT_FALSE(valid({"learning_rate.schedule=wsd"}));
  EXPECT_TRUE(valid({"learning_rate.schedule=wsd", "learning_rate.decay_steps=100"}));
  EXPECT_FALSE(valid({"learning_rate.schedule=wsd", "learning_rate.decay_steps=100", "learning_rate.warmup_steps=1"}));
  EXPECT_FALSE(valid({"learning_rate.decay_steps=10"}));
  EXPECT_TRUE(valid({"learning_rate.schedule=linear", "learning_rate.min_ratio=0.0"}));
  EXPECT_FALSE(valid({"learning_rate.schedule=constant", "learning_rate.min_ratio=0.0"}));
}

TEST(Rules, AnOverriddenChoiceDropsWhatTheFileSaysOfTheOther) {
  auto with = [](const std::string& section, const std::string& lines, const std::vector<std::string>& overrides) {
    return parse_deck_text(small_deck + section + lines, "small.toml", overrides, 0);
  };
  const std::string rope = "rope_scaling = \"llama3\"\nrope_factor = 32.0\n";
  std::string deck = small_deck;
  deck.replace(deck.find("[batch]"), 0, rope);
  const ParsedDeck none = parse_deck_text(deck, "small.toml", {"model.rope_scaling=none"}, 0);
  EXPECT_EQ(faults_of(none), "");
  EXPECT_EQ(none.deck.model.rope_factor, 8.0);
  EXPECT_TRUE(std::any_of(none.resolved.begin(), none.resolved.end(), [](const std::string& line) {
    return says(line, "model.rope_factor = 32.0 of small.toml is dropped") && says(line, "model.rope_scaling = \"none\"");
  }));
  EXPECT_EQ(deck_identity(none.deck), deck_identity(parse_small({"model.rope_scaling=none"}).deck));
  const std::string wsd = "schedule = \"wsd\"\ndecay_steps = 10\n";
  EXPECT_EQ(with("[learning_rate]\n", wsd, {"learning_rate.schedule=cosine"}).deck.learning_rate.decay_steps, 0);
  EXPECT_EQ(faults_of(with("[learning_rate]\n", wsd, {"learning_rate.schedule=cosine"})), "");
  EXPECT_EQ(faults_of(with("[learning_rate]\n", "min_ratio = 0.5\n", {"learning_rate.schedule=constant"})), "");
  // Within one source it stays a contradiction.
  EXPECT_TRUE(says(faults({"model.rope_scaling=none", "model.rope_factor=32.0"}), "has no effect"));
  EXPECT_FALSE(with("[learning_rate]\n", "schedule = \"constant\"\nmin_ratio = 0.5\n", {}).faults.empty());
}

// What a message proposes fits, and one more does not.
TEST(Rules, SizesNameTheNumberThatFits) {
  const std::vector<std::string> wide = {"model.width=65536", "model.heads=512", "model.ff_width=262144"};
  auto with = [&](std::vector<std::string> overrides) {
    overrides.insert(overrides.begin(), wide.begin(), wide.end());
    return faults(overrides);
  };
  EXPECT_TRUE(says(with({"model.layers=10000"}), "set model.layers to at most 727"));
  EXPECT_EQ(with({"model.layers=727"}), "");
  EXPECT_NE(with({"model.layers=728"}), "");
  const std::vector<std::string> long_context = {"batch.micro=1000", "batch.global=1000", "batch.sequence_length=16777216"};
  EXPECT_TRUE(says(faults(long_context), "set batch.micro to at most 127"));
  EXPECT_EQ(faults({"batch.micro=127", "batch.global=127", "batch.sequence_length=16777216"}), "");
  EXPECT_TRUE(says(with({"model.layers=100", "zero.reduce_bucket_size=1"}), "zero.reduce_bucket_size to at least 6"));
}

TEST(Rules, EvaluationLanesAndNames) {
  EXPECT_TRUE(says(faults({"evaluate.every=10"}), "data.validation"));
  EXPECT_TRUE(valid({"evaluate.every=10", "data.validation=val.h5"}));
  EXPECT_FALSE(valid({"zero.overlap_comm=true", "run.lanes=inline"}));
  EXPECT_TRUE(valid({"zero.overlap_comm=true", "run.lanes=threads"}));
  EXPECT_FALSE(valid({"zero.overlap_comm=false", "run.lanes=threads"}));
  EXPECT_FALSE(valid({"run.name=a/b"}));
  EXPECT_FALSE(valid({"data.train=\"\""}));
}

TEST(Rules, IdleLimitsAreSaid) {
  ParsedDeck parsed = parse_small({"zero.stage=2", "zero.prefetch_bucket_size=7", "zero.max_live_parameters=1e9"});
  ASSERT_EQ(faults_of(parsed), "");
  std::string all = fmt::format("{}", fmt::join(parsed.resolved, "\n"));
  EXPECT_TRUE(says(all, "zero.prefetch_bucket_size has no effect at zero.stage = 2")) << all;
  EXPECT_FALSE(says(all, "max_live_parameters")) << all;
}

// A deck is good in every build, which may plan for a machine that it does not run on; whether there are kernels and a GPU is asked when a
// run starts.
TEST(Rules, StagesOfAPipelineHaveLayers) {
  EXPECT_TRUE(valid({"mesh.pp=2", "model.layers=4"}, 2));
  EXPECT_EQ(parse_small({"mesh.pp=2", "mesh.tp=2", "model.layers=4"}, 12).deck.mesh.dp, 3);
  EXPECT_TRUE(valid({"mesh.pp=2", "model.layers=4", "pipeline.layers=[1,3]"}, 2));
  EXPECT_EQ(parse_small({"mesh.pp=2", "model.layers=4", "pipeline.layers=[1,3]"}, 2).deck.pipeline.layers,
            (std::vector<std::int64_t>{1, 3}));
  EXPECT_TRUE(says(faults({"mesh.pp=2", "mesh.tp=2", "model.layers=4"}, 6), "mesh.pp x mesh.tp is 4 and there are 6 ranks; start 4 or 8"));
  EXPECT_TRUE(says(faults({"mesh.pp=5", "model.layers=4"}, 5), "set mesh.pp to at most 4"));
  EXPECT_TRUE(says(faults({"mesh.pp=2", "model.layers=4", "pipeline.layers=[4]"}, 2), "1 numbers and there are 2 stages"));
  EXPECT_TRUE(says(faults({"mesh.pp=2", "model.layers=4", "pipeline.layers=[2,3]"}, 2), "the last would be 2"));
  EXPECT_TRUE(says(faults({"mesh.pp=2", "model.layers=4", "pipeline.layers=[0,4]"}, 2), "at least 1"));
  EXPECT_TRUE(says(faults({"mesh.pp=2", "model.layers=4", "pipeline.layers=[\"a\"]"}, 2), "a list of integers"));
  EXPECT_TRUE(says(faults({"pipeline.layers=[1]"}, 2), "no effect with mesh.pp = 1"));
  EXPECT_TRUE(valid({"mesh.pp=2", "model.layers=4", "model.tied=true"}, 2));
  EXPECT_TRUE(valid({"mesh.pp=2", "model.layers=4", "model.tied=true", "run.reproducible=true"}, 2));
}

TEST(Rules, DecksForGpusAreGoodInEveryBuild) {
  EXPECT_EQ(parse_small({"run.device=host"}).deck.run.device, RunDevice::host);
  EXPECT_EQ(faults_of(parse_small({"run.device=cuda"})), "");
}

// A checkpoint that was written on GPUs is read by any build.
TEST(Rules, StoredDecksBindNoDevice) {
  std::string text = print_deck(parse_small().deck);
  const std::string here = "device = \"auto\"";
  ASSERT_NE(text.find(here), std::string::npos);
  text.replace(text.find(here), here.size(), "device = \"cuda\"");
  const ParsedDeck stored = parse_stored_deck(text, "checkpoint.h5:deck");
  EXPECT_EQ(faults_of(stored), "");
  EXPECT_EQ(stored.deck.run.device, RunDevice::automatic);
  EXPECT_EQ(parse_stored_deck(text, "checkpoint.h5:deck", "host").deck.run.device, RunDevice::host);
}

// A host takes what has no effect there. A run must be able to go on from its own deck.
TEST(Rules, StoredDecksOfAHostHoldWhatGpusDoNot) {
  for (const std::vector<std::string>& keys : {std::vector<std::string>{"run.device=host", "kernels.attention=cudnn", "model.head_dim=4"},
                                               {"run.device=host", "kernels.attention=cudnn", "precision.compute=fp32"}}) {
    const ParsedDeck here = parse_small(keys);
    ASSERT_EQ(faults_of(here), "");
    const ParsedDeck stored = parse_stored_deck(print_deck(here.deck), "deck.toml");
    EXPECT_EQ(faults_of(stored), "");
    EXPECT_EQ(stored.deck.run.device, RunDevice::automatic);
    EXPECT_EQ(stored.deck.model.head_dim, here.deck.model.head_dim);
  }
}

// Runs and checkpoints of earlier versions hold a key under its older name, which a deck of today may not have.
TEST(Rules, StoredDecksMayHaveAnOlderNameOfAKey) {
  std::string text = print_deck(parse_small({"memory.host=3 GiB"}).deck);
  const std::string now = "\nhost = ", before = "\nhost_limit = ";
  ASSERT_NE(text.find(now), std::string::npos);
  text.replace(text.find(now), now.size(), before);
  const ParsedDeck stored = parse_stored_deck(text, "checkpoint.h5:deck");
  EXPECT_EQ(faults_of(stored), "");
  EXPECT_EQ(stored.deck.memory.host, std::int64_t{3} << 30);
  EXPECT_TRUE(says(faults_of(parse_deck_text(text, "mine.toml", {}, 0)), "use memory.host"));
  EXPECT_TRUE(says(faults({"memory.host_limit=3 GiB"}), "use memory.host"));
}

TEST(Rules, AKeyForGpusAloneIsNotedOnTheHost) {
  const ParsedDeck parsed = parse_small({"topology.share_gpu=true", "run.device=host"});
  EXPECT_TRUE(parsed.faults.empty());
  EXPECT_EQ(std::count(parsed.resolved.begin(), parsed.resolved.end(), "note: topology.share_gpu has no effect with run.device = \"host\""),
            1);
}

TEST(Rules, GpusTakeAnyStageOnManyRanks) {
  for (int stage = 0; stage < 4; ++stage)
    EXPECT_TRUE(parse_small({"run.device=cuda", fmt::format("zero.stage={}", stage), "topology.share_gpu=true"}, 4).faults.empty());
}

}  // namespace
}  // namespace tessera::rules_test
