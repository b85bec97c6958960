// DeepSpeed configurations become decks: values, defaults, sums of batches, "auto", and every fault at its place.
#include "deck/import/import.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <random>

#include "../sample.hpp"
#include "../scratch.hpp"
#include "deck/schema/value.hpp"
#include "small_deck.hpp"

namespace tessera::import_test {
namespace {

ImportedDeck import_of(const std::string& text, const std::vector<std::string>& overrides = {}, int ranks = 0) {
  return import_deepspeed_text(text, {.path = "ds.json", .model = "llama3-8b", .overrides = overrides, .ranks = ranks});
}

std::string faults_in(const std::string& text, const std::vector<std::string>& overrides = {}, int ranks = 0) {
  return faults_of({{}, import_of(text, overrides, ranks).faults, {}});
}

/// The deck of a configuration that must import.
Deck deck_of(const std::string& text, const std::vector<std::string>& overrides = {}, int ranks = 0) {
  const ImportedDeck imported = import_of(text, overrides, ranks);
  EXPECT_EQ(faults_of({{}, imported.faults, {}}), "") << text;
  const ParsedDeck parsed = parse_deck_text(imported.text, "imported.toml", {}, ranks);
  EXPECT_EQ(faults_of(parsed), "") << imported.text;
  return parsed.deck;
}

/// A configuration with a batch, and more.
std::string with(const std::string& more) { return "{\"train_batch_size\": 8, \"train_micro_batch_size_per_gpu\": 2, " + more + "}"; }

TEST(Import, ValuesComeWithTheirOrigin) {
  const ImportedDeck imported = import_of(with("\n\"zero_optimization\": {\"stage\": 3, \"reduce_bucket_size\": 2e8}"));
  EXPECT_NE(imported.text.find("stage = 3                    # from zero_optimization.stage\n"), std::string::npos) << imported.text;
  EXPECT_NE(imported.text.find("reduce_bucket_size = 2e8     # from zero_optimization.reduce_bucket_size\n"), std::string::npos);
  EXPECT_NE(imported.text.find("# FILL IN"), std::string::npos);
}

TEST(Import, DefaultsAreDeepSpeedsWhereTheyDiffer) {
  const Deck plain = deck_of(with("\"optimizer\": {\"type\": \"AdamW\"}"));
  EXPECT_EQ(plain.precision.compute, DType::f32) << "DeepSpeed computes in fp32 where nothing else is enabled";
  EXPECT_EQ(plain.optimizer.learning_rate, 1e-3);
  EXPECT_EQ(plain.optimizer.beta2, 0.999);
  EXPECT_EQ(plain.optimizer.weight_decay, 0);
  EXPECT_EQ(plain.optimizer.gradient_clipping, 1);
  EXPECT_EQ(plain.learning_rate.schedule, RateSchedule::constant);
  EXPECT_EQ(plain.activation.recompute, Recompute::none);
  EXPECT_EQ(deck_of(with("\"zero_optimization\": {\"stage\": 1}")).optimizer.learning_rate, 5e-5) << "the Trainer's";
}

TEST(Import, BatchFollowsFromTwoOfThreeAndTheRanks) {
  struct Case {
    std::string text;
    int ranks;
    std::int64_t global, micro;
  };
  const std::string all = "\"train_batch_size\": ", micro = "\"train_micro_batch_size_per_gpu\": ",
                    steps = "\"gradient_accumulation_steps\": ";
  for (const Case& c : std::vector<Case>{{all + "64, " + micro + "2", 0, 64, 2},
                                         {all + "64, " + micro + "2, " + steps + "4", 0, 64, 2},
                                         {all + "64, " + micro + "2, " + steps + "4", 8, 64, 2},
                                         {micro + "2, " + steps + "4", 8, 64, 2},
                                         {micro + "2", 8, 16, 2},
                                         {all + "64", 8, 64, 8},
                                         {all + "64, " + steps + "4", 8, 64, 2},
                                         {micro + "\"auto\", " + steps + "\"auto\", " + all + "\"auto\"", 4, 32, 8},
                                         {all + "64, " + micro + "\"auto\", " + steps + "\"auto\"", 0, 64, 8},
                                         {micro + "2, \"sequence_parallel_size\": 2", 8, 8, 2},
                                         {all + "64, \"sequence_parallel_size\": 4", 8, 64, 32},
                                         {micro + "2e0", 3, 6, 2}}) {
    const Deck deck = deck_of("{" + c.text + "}", {}, c.ranks);
    EXPECT_EQ(deck.batch.global, c.global) << c.text;
    EXPECT_EQ(deck.batch.micro, c.micro) << c.text;
  }
}

// The advice of the messages works: what the command line says takes the place of what does not fit.
TEST(Import, TheCommandLineSettlesWhatDoesNotFit) {
  const std::string three = R"({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4})";
  const std::string two = R"({"train_batch_size": 64, "gradient_accumulation_steps": 4})", none = "{\"steps_per_print\": 1}",
                    bad = R"({"train_batch_size": 0, "train_micro_batch_size_per_gpu": 2})";
  struct Case {
    std::string text;
    std::vector<std::string> settles;
    int ranks;
    std::int64_t global, micro;
  };
  for (const Case& c : std::vector<Case>{{three, {"batch.global=32"}, 4, 32, 2},
                                         {three, {"batch.micro=4"}, 4, 64, 4},
                                         {two, {"batch.global=60"}, 5, 60, 3},
                                         {two, {"batch.micro=2"}, 0, 64, 2},
                                         {none, {"batch.global=8", "batch.micro=2"}, 0, 8, 2},
                                         {bad, {"batch.global=8"}, 3, 8, 2}}) {
    EXPECT_NE(faults_in(c.text, {}, c.ranks), "") << c.text;
    const Deck deck = deck_of(c.text, c.settles, c.ranks);
    EXPECT_EQ(deck.batch.global, c.global) << c.text;
    EXPECT_EQ(deck.batch.micro, c.micro) << c.text;
  }
  EXPECT_EQ(faults_in(with(R"("scheduler": {"type": "WarmupDecayLR"})"), {"run.epochs=3"}), "");
}

TEST(Import, OffloadHasDeepSpeedsDefaults) {
  const auto of = [](const std::string& optimizer) {
    return with(fmt::format("\"zero_optimization\": {{\"stage\": 3, \"offload_optimizer\": {{{}}}}}", optimizer));
  };
  const OffloadOptimizerKeys disk = deck_of(of(R"("device": "nvme", "nvme_path": "/a")")).zero.offload_optimizer;
  EXPECT_TRUE(disk.pin_memory);
  EXPECT_FALSE(disk.pipeline_read || disk.pipeline_write || disk.fast_init);
  EXPECT_TRUE(deck_of(of(R"("device": "nvme", "nvme_path": "/a", "pipeline_read": true)")).zero.offload_optimizer.pipeline_read);
  EXPECT_FALSE(deck_of(of(R"("device": "cpu", "pin_memory": false)")).zero.offload_optimizer.pin_memory);
  EXPECT_NE(import_of(of(R"("device": "cpu")")).text.find("pin_memory = true            # DeepSpeed's default since August 2026"),
            std::string::npos);
  EXPECT_NE(
      import_of(of(R"("device": "cpu")")).text.find("gradient_clipping = 1.0      # DeepSpeed's default since June 2026; before that"),
      std::string::npos);
}

TEST(Import, ABatchThatDoesNotFollowIsRefused) {
  const std::string all = "\"train_batch_size\": ", micro = "\"train_micro_batch_size_per_gpu\": ",
                    steps = "\"gradient_accumulation_steps\": ";
  EXPECT_EQ(
      faults_in("{" + micro + "2,\n" + steps + "4}"),
      "ds.json:1:36: train_micro_batch_size_per_gpu: the global batch is 2 x 4 x the ranks of the launch, and no file gives the ranks; add "
      "--ranks N, "
      "or batch.global=N\n");
  EXPECT_EQ(faults_in("{" + all + "64}"),
            "ds.json:1:22: train_batch_size: the micro-batch is 64 / (1 x the ranks of the launch), and no file gives the ranks; add "
            "--ranks N, or "
            "batch.micro=N\n");
  EXPECT_EQ(faults_in("{" + all + "64, " + micro + "3, " + steps + "4}"),
            "ds.json:1:22: train_batch_size: 64 is not train_micro_batch_size_per_gpu 3 x gradient_accumulation_steps 4 x a number of "
            "ranks; change one of them, or set batch.global=N on the command line\n");
  EXPECT_EQ(faults_in("{" + all + "64, " + micro + "2, " + steps + "4}", {}, 4),
            "ds.json:1:22: train_batch_size: 64 = train_micro_batch_size_per_gpu 2 x gradient_accumulation_steps 4 x 8 ranks, and --ranks "
            "says 4; change one of them, or set batch.global=N on the command line\n");
  EXPECT_EQ(faults_in("{" + all + "64}", {}, 5),
            "ds.json:1:22: train_batch_size: 64 is not divisible by 5 ranks x 1 accumulation step; change one of them, or set "
            "batch.global=N on the command line\n");
  EXPECT_NE(faults_in("{}").find("train_batch_size: is missing, and so is train_micro_batch_size_per_gpu"), std::string::npos);
  EXPECT_NE(faults_in("{" + micro + "0}", {}, 2).find("0 is out of range: at least 1 and at most 1000000000"), std::string::npos);
  EXPECT_NE(faults_in("{" + micro + "1e9, " + steps + "1e9}", {}, 2).find("more than 1000000000 sequences on 2 ranks"), std::string::npos);
  // The command line may say what no file does.
  EXPECT_EQ(deck_of("{" + micro + "2}", {"batch.global=12"}).batch.global, 12);
  EXPECT_EQ(deck_of("{" + all + "12}", {"batch.micro=3"}).batch.micro, 3);
  EXPECT_EQ(deck_of("{}", {"batch.micro=3", "batch.global=6"}).batch.global, 6);
}

TEST(Import, TheScaleOfTheLossIsDeepSpeeds) {
  const auto fp16 = [](const std::string& keys) { return with("\"fp16\": {\"enabled\": true" + keys + "}"); };
  const auto scale = [&](const std::string& keys) { return deck_of(fp16(keys)).precision.loss_scale; };
  EXPECT_EQ(scale(""), LossScaleKeys()) << "the same defaults";
  EXPECT_EQ(scale(R"(, "initial_loss_scale": 32768, "loss_scale": "dynamic", "loss_scale_window": 500)"),
            (LossScaleKeys{.initial_power = 15, .window = 500}));
  EXPECT_EQ(scale(R"(, "loss_scale": 0, "initial_scale_power": 12, "hysteresis": 4, "consecutive_hysteresis": true, "min_loss_scale": 2)"),
            (LossScaleKeys{.initial_power = 12, .hysteresis = 4, .consecutive_hysteresis = true, .minimum = 2}));
  EXPECT_EQ(scale(R"(, "loss_scale": 128.0, "initial_scale_power": 12)"), (LossScaleKeys{.fixed = 128}));
  EXPECT_NE(faults_in(fp16(R"(, "loss_scale": 1000)")).find("nearest valid values: 512 or 1024"), std::string::npos);
  EXPECT_NE(faults_in(fp16(R"(, "loss_scale": "static")")).find("expected a number, or \"dynamic\""), std::string::npos);
  EXPECT_NE(faults_in(fp16(R"(, "initial_loss_scale": 60000)")).find("is not a power of two"), std::string::npos);
  EXPECT_EQ(deck_of(with(R"("fp16": {"enabled": false, "loss_scale_window": 7})")).precision.loss_scale, LossScaleKeys());
}

TEST(Import, PrecisionIsTheOneThatIsEnabled) {
  EXPECT_EQ(deck_of(with("\"bf16\": {\"enabled\": true}")).precision.compute, DType::bf16);
  EXPECT_EQ(deck_of(with("\"bfloat16\": {\"enabled\": true}")).precision.compute, DType::bf16) << "an older name";
  EXPECT_EQ(deck_of(with("\"bf16\": {\"enabled\": \"auto\"}, \"fp16\": {\"enabled\": \"auto\", \"loss_scale\": 0}")).precision.compute,
            DType::bf16);
  EXPECT_EQ(deck_of(with("\"fp16\": {\"enabled\": \"auto\"}")).precision.compute, DType::f16);
  EXPECT_EQ(deck_of(with("\"bf16\": {\"enabled\": false}, \"fp16\": {\"enabled\": false}")).precision.compute, DType::f32);
  EXPECT_EQ(deck_of(with("\"torch_autocast\": {\"enabled\": true, \"dtype\": \"torch.bfloat16\"}")).precision.compute, DType::bf16);
  EXPECT_NE(faults_in(with("\"torch_autocast\": {\"enabled\": true, \"dtype\": \"float16\"}")).find("only bfloat16"), std::string::npos);
  EXPECT_EQ(deck_of(with("\"fp16\": {\"enabled\": true}")).precision.compute, DType::f16);
  EXPECT_EQ(deck_of(with("\"fp16\": {\"enabled\": true, \"hysteresis\": 3}"), {"precision.compute=bf16"}).precision.compute, DType::bf16);
  EXPECT_NE(faults_in(with("\"fp16\": {\"enabled\": true}, \"bf16\": {\"enabled\": true}")).find("bf16 is enabled too"), std::string::npos);
  EXPECT_NE(faults_in(with("\"bf16\": {\"enabled\": true}, \"bfloat16\": {\"enabled\": true}")).find("another name of bf16"),
            std::string::npos);
}

TEST(Import, OptimizersBecomeOurs) {
  const auto of = [](const std::string& type, const std::string& params) {
    return with(fmt::format("\"optimizer\": {{\"type\": \"{}\", \"params\": {{{}}}}}", type, params));
  };
  const Deck lion = deck_of(of("Lion", "\"lr\": 1e-4, \"betas\": [0.95, 0.98], \"weight_decay\": 0.5"));
  EXPECT_EQ(lion.optimizer.type, "lion");
  EXPECT_EQ(lion.optimizer.beta1, 0.95);
  EXPECT_EQ(lion.optimizer.beta2, 0.98);
  EXPECT_EQ(lion.optimizer.weight_decay, 0.5);
  EXPECT_EQ(deck_of(of("Lion", "")).optimizer.beta2, 0.999) << "DeepSpeed's default";
  EXPECT_NE(faults_in(of("Lion", "\"eps\": 1e-6")).find("\"lion\" does not read it"), std::string::npos);
  const Deck lamb = deck_of(of("Lamb", "\"lr\": 2e-3, \"max_coeff\": 5, \"min_coeff\": 0.1"));
  EXPECT_EQ(lamb.optimizer.type, "lamb");
  EXPECT_EQ(lamb.optimizer.max_trust_ratio, 5);
  EXPECT_EQ(lamb.optimizer.min_trust_ratio, 0.1);
  EXPECT_EQ(lamb.optimizer.beta2, 0.999) << "DeepSpeed's default";
  const Deck muon =
      deck_of(of("Muon", "\"lr\": 1e-3, \"muon_lr\": 0.02, \"adam_lr\": 0.02, \"momentum\": 0.9, \"ns_method\": \"standard\""));
  EXPECT_EQ(muon.optimizer.type, "muon");
  EXPECT_EQ(muon.optimizer.learning_rate, 0.02);
  EXPECT_EQ(muon.optimizer.momentum, 0.9);
  EXPECT_TRUE(muon.optimizer.nesterov);
  EXPECT_EQ(muon.optimizer.newton_schulz, OrthogonalSteps::simple);
  EXPECT_EQ(muon.optimizer.muon_scale, MuonScale::original);
  EXPECT_EQ(muon.optimizer.beta2, 0.95) << "DeepSpeed's default with Muon";
  EXPECT_EQ(muon.optimizer.eps, 1e-10) << "too";
  EXPECT_EQ(deck_of(of("Muon", "\"lr\": 1e-3")).optimizer.momentum, 0.95);
  // Two rates: the matrices of layers are a group. (lr, muon_lr, adam_lr; 0: not given) and what they are here.
  struct Rates {
    double all, matrices, rest, ours, group;
  };
  for (const Rates& r :
       {Rates{0, 0.02, 1e-3, 1e-3, 0.02}, Rates{1e-3, 0.02, 0, 1e-3, 0.02}, Rates{0.02, 0, 1e-3, 1e-3, 0.02}, Rates{0, 0.05, 0, 3e-4, 0.05},
        Rates{0, 0, 1e-3, 1e-3, 0.02}, Rates{0, 0, 0, 3e-4, 0.02}, Rates{5e-3, 0.02, 0.02, 0.02, 0}, Rates{1e-3, 1e-3, 0, 1e-3, 0}}) {
    std::vector<std::string> params;
    for (const auto& [key, value] : {std::pair("lr", r.all), std::pair("muon_lr", r.matrices), std::pair("adam_lr", r.rest)})
      if (value > 0) params.push_back(fmt::format("\"{}\": {}", key, value));
    SCOPED_TRACE(fmt::format("{}", fmt::join(params, ", ")));
    const OptimizerKeys keys = deck_of(of("Muon", fmt::format("{}", fmt::join(params, ", ")))).optimizer;
    EXPECT_EQ(keys.learning_rate, r.ours);
    ASSERT_EQ(keys.groups.size(), r.group > 0 ? 1u : 0u);
    if (keys.groups.empty()) continue;
    EXPECT_EQ(keys.groups[0].tensors, std::vector<std::string>{"all-linear"});
    EXPECT_EQ(keys.groups[0].learning_rate, r.group);
    EXPECT_FALSE(keys.groups[0].update) << "the optimizer stays Muon";
  }
  EXPECT_NE(faults_in(of("Muon", "\"ns_method\": \"cubic\"")).find("expected \"standard\" or \"gram\""), std::string::npos);
  EXPECT_NE(faults_in(of("AdamW", "\"ns_method\": \"gram\"")).find("belongs to Muon"), std::string::npos);
  const Deck sgd = deck_of(of("SGD", "\"lr\": 0.1, \"momentum\": 0.9, \"nesterov\": true, \"dampening\": 0"));
  EXPECT_EQ(sgd.optimizer.type, "sgd");
  EXPECT_EQ(sgd.optimizer.momentum, 0.9);
  EXPECT_TRUE(sgd.optimizer.nesterov);
  EXPECT_FALSE(deck_of(of("AdamW", "\"bias_correction\": false")).optimizer.bias_correction);
  EXPECT_NE(faults_in(of("SGD", "\"bias_correction\": false")).find("\"sgd\" does not read it"), std::string::npos);
  EXPECT_NE(faults_in(of("SGD", "\"betas\": [0.8, 0.99]")).find("\"sgd\" does not read it"), std::string::npos);
  EXPECT_EQ(deck_of(of("Adam", "\"adam_w_mode\": false, \"weight_decay\": 0.01")).optimizer.type, "adam");
  EXPECT_EQ(deck_of(of("Adam", "\"adam_w_mode\": true")).optimizer.type, "adamw");
  EXPECT_EQ(deck_of(of("AdamW", "\"adam_w_mode\": false")).optimizer.type, "adamw") << "as in DeepSpeed";
}

TEST(Import, OptimizersAreOursOrRefused) {
  EXPECT_EQ(deck_of(with("\"optimizer\": {\"type\": \"ADAM\"}")).optimizer.type, "adamw");
  const Deck automatic =
      deck_of(with("\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": \"auto\", \"betas\": \"auto\", \"eps\": \"auto\", "
                   "\"weight_decay\": \"auto\"}}"));
  EXPECT_EQ(automatic.optimizer.learning_rate, 5e-5);
  EXPECT_EQ(automatic.optimizer.beta1, 0.9);
  EXPECT_EQ(automatic.optimizer.beta2, 0.999);
  const std::string zero_one = with("\"optimizer\": {\"type\": \"zero_one_adam\", \"params\": {\"lr\": 1e-3}}");
  EXPECT_NE(faults_in(zero_one).find("optimizer.type: as optimizer.type: \"zero_one_adam\" is refused: 0/1 Adam is not in this version"),
            std::string::npos);
  EXPECT_EQ(deck_of(zero_one, {"optimizer.type=adamw"}).optimizer.learning_rate, 1e-3);
  const Deck one_bit =
      deck_of(with("\"optimizer\": {\"type\": \"OneBitAdam\", \"params\": {\"lr\": 1e-3, \"betas\": [0.9, 0.99], \"freeze_step\": 400, "
                   "\"cuda_aware\": false, "
                   "\"comm_backend_name\": \"nccl\"}}"));
  EXPECT_EQ(one_bit.optimizer.type, "onebit_adam");
  EXPECT_EQ(one_bit.optimizer.beta2, 0.99);
  EXPECT_EQ(one_bit.optimizer.freeze_step, 400);
  EXPECT_EQ(deck_of(with("\"optimizer\": {\"type\": \"OneBitAdam\"}")).optimizer.freeze_step, 100000);
  EXPECT_NE(faults_in(with("\"optimizer\": {\"params\": {\"lr\": 1e-3}}")).find("reads no params without optimizer.type"),
            std::string::npos);
  EXPECT_NE(faults_in(with("\"optimizer\": {\"type\": \"Adam\", \"params\": {\"betas\": [0.9]}}")).find("expected two numbers"),
            std::string::npos);
  EXPECT_NE(faults_in(with("\"optimizer\": {\"type\": \"Adam\", \"params\": {\"betas\": [0.9, 1.5]}}"))
                .find("as optimizer.beta2: 1.5 is out of range"),
            std::string::npos);
}

TEST(Import, SchedulersBecomeSchedules) {
  const Deck cosine = deck_of(with(R"("optimizer": {"type": "AdamW", "params": {"lr": 3e-4}}, "scheduler": {"type": "WarmupCosineLR",
      "params": {"total_num_steps": 5000, "warmup_num_steps": 100, "warmup_type": "linear", "cos_min_ratio": 0.1}})"));
  EXPECT_EQ(cosine.learning_rate, (LearningRateKeys{.schedule = RateSchedule::warmup_cosine_lr, .warmup_steps = 100, .min_ratio = 0.1}));
  EXPECT_EQ(cosine.run.steps, 5000);
  const Deck by_short_name = deck_of(with(R"("optimizer": {"type": "AdamW", "params": {"lr": 3e-4}}, "scheduler": {"type": "Cosine",
      "params": {"total_num_steps": 5000, "warmup_num_steps": 100, "warmup_type": "linear", "cos_min_ratio": 0.1}})"));
  EXPECT_EQ(by_short_name, cosine);
  EXPECT_EQ(cosine.optimizer.learning_rate, 3e-4);
  const Deck decay = deck_of(with(R"("optimizer": {"type": "AdamW", "params": {"lr": 3e-4}}, "scheduler": {"type": "WarmupDecayLR",
      "params": {"total_num_steps": 5000}})"));
  EXPECT_EQ(decay.learning_rate,
            (LearningRateKeys{.schedule = RateSchedule::warmup_decay_lr, .warmup_steps = 1000, .warmup_type = WarmupType::log}));
  EXPECT_EQ(decay.optimizer.learning_rate, 1e-3) << "WarmupDecayLR's default takes the place of the optimizer's";
  const Deck warmup = deck_of(with(R"("optimizer": {"type": "AdamW", "params": {"lr": 3e-4}}, "scheduler": {"type": "WarmupLR",
      "params": {"warmup_min_lr": "auto", "warmup_max_lr": 1e-4, "warmup_num_steps": 2000}})"));
  EXPECT_EQ(warmup.learning_rate.schedule, RateSchedule::warmup_lr);
  EXPECT_EQ(warmup.optimizer.learning_rate, 1e-4) << "and so does a given one";
  EXPECT_GE(warmup.run.steps, 2000) << "a placeholder that the warmup fits into";
  EXPECT_NE(import_of(with(R"("scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 20}})"))
                .text.find("the first two steps have warmup_min_lr"),
            std::string::npos)
      << "by DeepSpeed's design";
  const ImportedDeck automatic = import_of(with(R"("scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": "auto",
      "warmup_max_lr": "auto", "warmup_num_steps": "auto", "total_num_steps": "auto"}})"));
  EXPECT_NE(automatic.text.find("steps = 1000                 # from scheduler.params.total_num_steps; FILL IN"), std::string::npos)
      << automatic.text << faults_of({{}, automatic.faults, {}});
  EXPECT_NE(automatic.text.find("warmup_steps = 0"), std::string::npos);
}

TEST(Import, ACycleGivesTheBetasAndItsSecondHalfIsLikeItsFirst) {
  const auto cycle = [](const std::string& more, const std::vector<std::string>& overrides = {}) {
    return import_of(with(R"("optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.8, 0.98]}}, "scheduler": {"type": "OneCycle",
        "params": {"cycle_min_lr": 1e-5, "cycle_max_lr": 2e-3)" +
                          more + "}}"),
                     overrides);
  };
  const auto keys = [&](const std::string& more, const std::vector<std::string>& overrides = {}) {
    const ImportedDeck imported = cycle(more, overrides);
    EXPECT_EQ(faults_of({{}, imported.faults, {}}), "");
    return parse_deck_text(imported.text, "d", {}, 1).deck;
  };
  EXPECT_EQ(keys("").learning_rate, (LearningRateKeys{.schedule = RateSchedule::one_cycle, .one_cycle = {.min_lr = 1e-5}}));
  EXPECT_EQ(keys("").optimizer.learning_rate, 2e-3);
  EXPECT_EQ(keys("").optimizer.beta2, 0.95) << "the deck's default, which nothing reads";
  EXPECT_NE(cycle("").text.find("OneCycle sets the betas of each update"), std::string::npos);
  const OneCycleKeys half = keys(R"(, "cycle_first_step_size": 70, "cycle_first_stair_count": 3)").learning_rate.one_cycle;
  EXPECT_EQ(half.second_step_size, 70);
  EXPECT_EQ(half.second_stair_count, 3);
  // What nothing reads is said, and is no fault, as it is none there.
  const std::string unread = R"(, "cycle_momentum": false, "cycle_min_mom": 0.7, "decay_lr_rate": 0.1)";
  EXPECT_EQ(keys(unread).optimizer.beta2, 0.98) << "the momentum is the optimizer's";
  EXPECT_EQ(keys(unread).learning_rate.one_cycle, (OneCycleKeys{.min_lr = 1e-5, .cycle_momentum = false}));
  EXPECT_NE(cycle(unread).text.find("cycle_momentum is false, and nothing reads it"), std::string::npos);
  EXPECT_NE(cycle(unread).text.find("decay_step_size is 0: there is no decay"), std::string::npos);
  // Another schedule on the command line, or no momentum, leaves the optimizer's betas.
  EXPECT_EQ(keys("", {"learning_rate.schedule=linear"}).optimizer.beta2, 0.98);
  EXPECT_EQ(keys("", {"learning_rate.schedule=linear"}).learning_rate, (LearningRateKeys{.schedule = RateSchedule::linear}));
  EXPECT_EQ(keys("", {"learning_rate.one_cycle.cycle_momentum=false"}).optimizer.beta1, 0.8);
}

TEST(Import, ParametersOfAnotherSchedulerAreRefused) {
  EXPECT_NE(faults_in(with(R"("scheduler": {"type": "WarmupLR", "params": {"cycle_min_mom": 0.8}})"))
                .find("scheduler.params.cycle_min_mom: is not a parameter of WarmupLR; leave it out"),
            std::string::npos);
  EXPECT_NE(faults_in(with(R"("scheduler": {"params": {"warmup_num_steps": 5}})")).find("reads no params without scheduler.type"),
            std::string::npos);
  for (const char* given : {"cycle_min_lr", "cycle_max_lr"})
    EXPECT_NE(faults_in(with(fmt::format(R"("scheduler": {{"type": "OneCycle", "params": {{"{}": 1e-3}}}})", given)))
                  .find("needs params.cycle_m"),
              std::string::npos);
}

TEST(Import, SchedulersThatAreNotHereAreRefused) {
  const std::string step = with(R"("scheduler": {"type": "StepLR", "params": {"warmup_num_steps": 5}})");
  EXPECT_EQ(faults_in(step),
            "ds.json:1:84: scheduler.type: \"StepLR\" is refused: supported are WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle and "
            "LRRangeTest; write one of them, or set learning_rate.schedule=cosine (or linear, constant, wsd) on the command line\n");
  EXPECT_EQ(deck_of(step, {"learning_rate.schedule=linear"}).learning_rate.schedule, RateSchedule::linear);
  EXPECT_NE(faults_in(with(R"("scheduler": {"type": "WarmupDecayLR"})")).find("needs params.total_num_steps"), std::string::npos);
  EXPECT_EQ(deck_of(with(R"("scheduler": {"type": "WarmupDecayLR"})"), {"run.steps=2000"}).run.steps, 2000);
}

TEST(Import, AWarmupHasItsShape) {
  const auto shape = [](const std::string& params, const std::vector<std::string>& overrides = {}) {
    return deck_of(with("\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {" + params + "}}"), overrides).learning_rate.warmup_type;
  };
  EXPECT_EQ(shape(R"("warmup_type": "log")"), WarmupType::log);
  EXPECT_EQ(shape(R"("warmup_type": "linear")"), WarmupType::linear);
  EXPECT_EQ(shape(R"("warmup_num_steps": 10)"), WarmupType::log) << "DeepSpeed's default";
  EXPECT_EQ(shape(R"("warmup_num_steps": 0)"), WarmupType::log) << "without a warmup it says nothing, and is no fault";
  EXPECT_EQ(shape("", {"learning_rate.warmup_type=linear"}), WarmupType::linear);
  EXPECT_EQ(deck_of(with("\"steps_per_print\": 1")).learning_rate.warmup_type, WarmupType::linear)
      << "without a scheduler the deck's default";
  EXPECT_NE(faults_in(with(R"("scheduler": {"type": "WarmupLR", "params": {"warmup_type": "cubic"}})")).find("warmup_type"),
            std::string::npos);
}

TEST(Import, ActivationCheckpointingBecomesRecompute) {
  const Deck deck = deck_of(with("\"activation_checkpointing\": {\"number_checkpoints\": 5, \"partition_activations\": true}"));
  EXPECT_EQ(deck.activation.recompute, Recompute::full);
  EXPECT_EQ(deck.activation.every, 7) << "32 layers over 5, rounded up";
  EXPECT_EQ(deck_of(with("\"activation_checkpointing\": null")).activation.recompute, Recompute::none);
  EXPECT_EQ(deck_of(with("\"pipeline\": {\"activation_checkpoint_interval\": 0}")).activation.recompute, Recompute::none);
}

TEST(Import, AutoIsTheTrainersOrNobodys) {
  const Deck deck = deck_of(with(R"("gradient_clipping": "auto", "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto",
      "stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto"})"));
  EXPECT_EQ(deck.zero.reduce_bucket_size, 4096 * 4096);
  EXPECT_EQ(deck.zero.prefetch_bucket_size, 4096 * deck.model.vocab) << "the largest unit";
  EXPECT_EQ(deck.zero.param_persistence_threshold, 40960);
  EXPECT_EQ(deck.optimizer.gradient_clipping, 1);
  EXPECT_NE(
      faults_in(with("\"zero_optimization\": {\"offload_param\": {\"device\": \"auto\"}}")).find("\"auto\" is not a value of this key"),
      std::string::npos);
  EXPECT_EQ(faults_in(with("\n\"zero_optimization\": {\"stage\": \"auto\"}")),
            "ds.json:2:32: zero_optimization.stage: \"auto\" is filled in by nobody here; give a whole number\n");
}

TEST(Import, AllFaultsComeAtOnceInTheirOrder) {
  EXPECT_EQ(
      faults_in("{\n"
                "  \"train_batch_size\": \"32\",\n"
                "  \"zero_optimisation\": {\"stage\": 3},\n"
                "  \"zero_optimization\": {\"stage\": 2.5, \"stge\": 1, \"nvme_path\": \"/x\",\n"
                "    \"offload_param\": {\"device\": \"nvm\"}, \"zenflow\": {}},\n"
                "  \"optimizer\": [],\n"
                "  \"bf16\": true,\n"
                "  \"wall_clock_breakdown\": \"yes\",\n"
                "  \"tensorboard\": {\"enable\": true}\n"
                "}",
                {"zero.stge=1", "batch.global=4", "batch.micro=1"}),
      "ds.json:2:23: train_batch_size: expected a whole number, got \"32\"; drop the quotes\n"
      "ds.json:3:3: zero_optimisation: is not a key of DeepSpeed's; did you mean zero_optimization?\n"
      "ds.json:4:34: zero_optimization.stage: expected a whole number, got 2.5\n"
      "ds.json:4:39: zero_optimization.stge: is not a key of DeepSpeed's; did you mean stage?\n"
      "ds.json:4:50: zero_optimization.nvme_path: is not a key of DeepSpeed's in this place; "
      "zero_optimization.offload_optimizer.nvme_path is\n"
      "ds.json:5:33: zero_optimization.offload_param.device: as zero.offload_param.device: \"nvm\" is not a value of this key; it takes "
      "\"none\", \"host\", \"nvme\"; did you mean \"nvme\"?\n"
      "ds.json:6:16: optimizer: expected an object { ... }, got a list [ ... ]\n"
      "ds.json:7:11: bf16: expected an object { ... }, got true\n"
      "ds.json:8:27: wall_clock_breakdown: expected true or false, got \"yes\"\n"
      "ds.json:9:19: tensorboard.enable: is not a key of DeepSpeed's; did you mean enabled?\n"
      "override 'zero.stge=1': zero.stge: is not a key; did you mean zero.stage?\n");
}

TEST(Import, StateGoesToDisksAsItDoesThere) {
  const auto of = [](const std::string& optimizer, const std::string& parameters) {
    return with(fmt::format("\"zero_optimization\": {{\"stage\": 3, \"offload_optimizer\": {{{}}}, \"offload_param\": {{{}}}}}", optimizer,
                            parameters));
  };
  const Deck deck = deck_of(of(R"("device": "nvme", "nvme_path": "/a")", R"("device": "nvme", "nvme_path": "/b")"));
  EXPECT_EQ(deck.zero.offload_optimizer.nvme_path, "/a");
  EXPECT_EQ(deck.zero.offload_param.nvme_path, "/b");
  EXPECT_EQ(deck.zero.offload_param.max_in_cpu, 1000000000) << "DeepSpeed's default";
  EXPECT_EQ(deck_of(of(R"("device": "cpu")", R"("device": "cpu")")).zero.offload_param.max_in_cpu, 0) << "it is for nvme alone";
  const std::string faults = faults_in(of(R"("device": "nvme")", R"("device": "none")"));
  EXPECT_TRUE(faults.starts_with("ds.json: zero.offload_optimizer.nvme_path: nvme needs a folder on a local disk")) << faults;
  EXPECT_NE(faults.find("(set it on the command line: zero.offload_optimizer.nvme_path=VALUE)"), std::string::npos) << faults;
}

// Where the model is not known either, that is one fault among the others.
TEST(Import, FaultsOfTheModelComeWithThoseOfTheConfiguration) {
  const auto faults = [](const std::string& text) {
    return faults_of(
        {{}, import_deepspeed_text(text, {.path = "ds.json", .model = "no/such.toml", .overrides = {}, .ranks = 2}).faults, {}});
  };
  EXPECT_EQ(faults(with("\"zero_optimization\": {\"stage\": 3}")),
            "no/such.toml: cannot open: No such file or directory. Check the path and its permissions.\n");
  EXPECT_NE(faults("{\"train_batch_size\": 0}").find("ds.json:1:22: train_batch_size: 0 is out of range"), std::string::npos);
  EXPECT_NE(faults("{\"train_batch_size\": 0}").find("no/such.toml"), std::string::npos);
}

TEST(Import, RulesOfTheDeckNameTheConfigurationsKey) {
  EXPECT_EQ(faults_in(with("\n\"zero_optimization\": {\"stage\": 2, \"offload_optimizer\": {\"device\": \"cpu\"}, \"offload_param\": "
                           "{\"device\": \"cpu\"}}")),
            "ds.json:2:103: zero_optimization.offload_param.device: as zero.offload_param.device: only stage 3 gathers parameters for each "
            "use, and zero.stage is 2; set it to 3\n");
  EXPECT_EQ(faults_in(with("\n\"zero_optimization\": {\"stage\": 2, \"zero_quantized_weights\": true}")),
            "ds.json:2:61: zero_optimization.zero_quantized_weights: as zero.quantized_weights: only stage 3 gathers weights for each use, "
            "and zero.stage is 2; set it to 3, or leave zero.quantized_weights at false\n");
  EXPECT_EQ(faults_in(with("\n\"data_types\": {\"grad_accum_dtype\": \"bf16\"}, \"communication_data_type\": \"fp32\"")),
            "ds.json:2:72: communication_data_type: sets \"fp32\" to precision.gradients, and data_types.grad_accum_dtype sets \"bf16\"; "
            "leave one of "
            "the two out\n");
}

TEST(Import, OverridesStandInTheDeck) {
  const ImportedDeck imported = import_of(with("\"scheduler\": {\"type\": \"WarmupCosineLR\", \"params\": {\"total_num_steps\": 2000}}"),
                                          {"learning_rate.schedule=constant", "data.train=my tokens.bin", "model.layers=2"});
  ASSERT_EQ(faults_of({{}, imported.faults, {}}), "");
  EXPECT_NE(imported.text.find("train = \"my tokens.bin\"      # from the command line\n"), std::string::npos) << imported.text;
  EXPECT_NE(imported.text.find("\nlayers = 2 "), std::string::npos);
  EXPECT_EQ(imported.text.find("min_ratio"), std::string::npos) << "a constant schedule has none:\n" << imported.text;
}

// Bytes that are lost, doubled, replaced, or values that change places: a deck that checks, or faults; never anything else.
TEST(Import, DamagedConfigurationsMakeADeckOrFaults) {
  std::vector<std::string> whole;
  for (const char* name : {"quickstart_8b", "finetune_70b", "pretrain_13b", "pretrain_175b_3d", "trainer_auto", "infinity_70b"})
    whole.push_back(test::slurp(fmt::format("{}/validation/program/decks/deepspeed/{}.json", TESSERA_SOURCE_DIR, name)));
  const std::vector<std::string> words = {"\"auto\"", "null",        "true", "-1", "0",    "1e300", "9223372036854775807", "{}",
                                          "[]",       "\"\\u0000\"", "2.5",  "#",  "\"\"", "\\",    "\"stage\": 3",        "[0.9, 0.95]"};
  std::mt19937_64 random(test::Sample::seed());
  const auto pick = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  int decks = 0, refused = 0;
  const int rounds = test::Sample::cases(500, 3000);
  for (int round = 0; round < rounds; ++round) {
    std::string text = whole[pick(whole.size())];
    for (std::size_t changes = 1 + pick(3); changes > 0; --changes) {
      const std::size_t at = pick(text.size());
      switch (pick(4)) {
        case 0:
          text.erase(at, 1 + pick(4));
          break;
        case 1:
          text.insert(at, text.substr(pick(text.size()), 1 + pick(30)));
          break;
        case 2:
          text[at] = static_cast<char>(pick(256));
          break;
        default: {  // another value, where one begins
          const std::size_t colon = text.find(": ", at);
          if (colon == text.npos) break;
          const std::size_t end = text.find_first_of(",}\n", colon);
          text.replace(colon + 2, (end == text.npos ? text.size() : end) - colon - 2, words[pick(words.size())]);
        }
      }
    }
    const ImportedDeck imported = import_deepspeed_text(text, {.path = "ds.json", .model = "llama3-8b", .overrides = {}, .ranks = 8});
    EXPECT_EQ(imported.text.empty(), !imported.faults.empty()) << text;
    imported.faults.empty() ? ++decks : ++refused;
    if (!imported.text.empty()) {
      EXPECT_EQ(faults_of(parse_deck_text(imported.text, "imported.toml", {}, 8)), "") << text;
    }
  }
  EXPECT_GT(decks, rounds / 100) << test::Sample::describe();
  EXPECT_GT(refused, rounds / 4) << test::Sample::describe();
}

// Whatever one key is set to on the command line: a deck that checks and says it, or faults.
TEST(Import, EveryKeyMayBeOverridden) {
  int decks = 0;
  for (const char* more :
       {R"("scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": 2000}}, "zero_optimization": {"stage": 3,
                               "stage3_prefetch_bucket_size": "auto", "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}})",
        R"("activation_checkpointing": {"number_checkpoints": 4}, "communication_data_type": "bf16", "bf16": {"enabled": true})"})
    for (const Key& key : deck_keys()) {
      if (!test::Sample::takes(key.name, 6)) continue;
      std::vector<std::string> values = {"auto", "true", "false", "0", "1", "2", "0.5", "3 min", "2 GiB", "x"};
      values.insert(values.end(), key.choices.begin(), key.choices.end());
      for (const std::string& value : values) {
        const ImportRequest request{
            .path = "ds.json", .model = "llama3.1-8b", .overrides = {fmt::format("{}={}", key.name, value)}, .ranks = 4};
        const ImportedDeck imported = import_deepspeed_text(with(more), request);
        ASSERT_EQ(imported.text.empty(), !imported.faults.empty()) << request.overrides[0];
        if (imported.text.empty()) continue;
        EXPECT_EQ(faults_of(parse_deck_text(imported.text, "imported.toml", {}, 4)), "") << request.overrides[0];
        EXPECT_NE(imported.text.find("# from the command line"), std::string::npos);
        ++decks;
      }
    }
  EXPECT_GT(decks, test::Sample::cases(20, 300)) << test::Sample::describe();
}

TEST(Import, FilesAreReadAndTheirNamesAreEscaped) {
  const test::Scratch scratch;
  const std::string path = scratch / "a\nb.json";
  test::spill(path, with("\"steps_per_print\": 3"));
  const ImportedDeck imported = import_configuration({.path = path, .model = "llama2-7b", .overrides = {}, .ranks = 0});
  EXPECT_EQ(faults_of({{}, imported.faults, {}}), "");
  EXPECT_EQ(parse_deck_text(imported.text, "x.toml", {}, 0).deck.run.log_every, 3);
  const ImportedDeck missing = import_configuration({.path = scratch / "none.json", .model = "llama2-7b", .overrides = {}, .ranks = 0});
  ASSERT_EQ(missing.faults.size(), 1u);
  EXPECT_NE(missing.faults[0].message.find("No such file"), std::string::npos);
}

}  // namespace
}  // namespace tessera::import_test
