// Arguments of Hugging Face's Trainer become decks: every name has an outcome, alone and beside a configuration of DeepSpeed.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/json.hpp"

#include "../scratch.hpp"
#include "deck/import/foreign_keys.hpp"
#include "deck/import/import.hpp"
#include "deck/schema/value.hpp"
#include "small_deck.hpp"

namespace tessera::trainer_test {
namespace {

// Of TrainingArguments in transformers 5.24; older files hold names of the table beyond these.
constexpr std::string_view names_of_transformers[] = {"output_dir",
                                                      "per_device_train_batch_size",
                                                      "num_train_epochs",
                                                      "max_steps",
                                                      "learning_rate",
                                                      "lr_scheduler_type",
                                                      "lr_scheduler_kwargs",
                                                      "warmup_steps",
                                                      "optim",
                                                      "optim_args",
                                                      "weight_decay",
                                                      "adam_beta1",
                                                      "adam_beta2",
                                                      "adam_epsilon",
                                                      "optim_target_modules",
                                                      "gradient_accumulation_steps",
                                                      "average_tokens_across_devices",
                                                      "max_grad_norm",
                                                      "label_smoothing_factor",
                                                      "bf16",
                                                      "fp16",
                                                      "bf16_full_eval",
                                                      "fp16_full_eval",
                                                      "tf32",
                                                      "activation_checkpointing",
                                                      "activation_checkpointing_kwargs",
                                                      "gradient_checkpointing",
                                                      "gradient_checkpointing_kwargs",
                                                      "torch_compile",
                                                      "torch_compile_backend",
                                                      "torch_compile_mode",
                                                      "use_liger_kernel",
                                                      "liger_kernel_config",
                                                      "use_cache",
                                                      "neftune_noise_alpha",
                                                      "torch_empty_cache_steps",
                                                      "auto_find_batch_size",
                                                      "logging_strategy",
                                                      "logging_steps",
                                                      "logging_first_step",
                                                      "log_on_each_node",
                                                      "logging_nan_inf_filter",
                                                      "include_num_input_tokens_seen",
                                                      "log_level",
                                                      "log_level_replica",
                                                      "disable_tqdm",
                                                      "report_to",
                                                      "run_name",
                                                      "project",
                                                      "trackio_space_id",
                                                      "trackio_bucket_id",
                                                      "trackio_static_space_id",
                                                      "eval_strategy",
                                                      "eval_steps",
                                                      "eval_delay",
                                                      "per_device_eval_batch_size",
                                                      "prediction_loss_only",
                                                      "eval_on_start",
                                                      "eval_do_concat_batches",
                                                      "eval_use_gather_object",
                                                      "eval_accumulation_steps",
                                                      "include_for_metrics",
                                                      "batch_eval_metrics",
                                                      "save_only_model",
                                                      "save_strategy",
                                                      "save_steps",
                                                      "save_on_each_node",
                                                      "save_total_limit",
                                                      "enable_jit_checkpoint",
                                                      "push_to_hub",
                                                      "hub_token",
                                                      "hub_private_repo",
                                                      "hub_model_id",
                                                      "hub_strategy",
                                                      "hub_always_push",
                                                      "hub_revision",
                                                      "load_best_model_at_end",
                                                      "metric_for_best_model",
                                                      "greater_is_better",
                                                      "ignore_data_skip",
                                                      "restore_callback_states_from_checkpoint",
                                                      "full_determinism",
                                                      "seed",
                                                      "data_seed",
                                                      "use_cpu",
                                                      "accelerator_config",
                                                      "parallelism_config",
                                                      "dataloader_drop_last",
                                                      "dataloader_num_workers",
                                                      "dataloader_pin_memory",
                                                      "dataloader_persistent_workers",
                                                      "dataloader_prefetch_factor",
                                                      "dataloader_multiprocessing_context",
                                                      "dataloader_in_order",
                                                      "remove_unused_columns",
                                                      "label_names",
                                                      "train_sampling_strategy",
                                                      "length_column_name",
                                                      "ddp_find_unused_parameters",
                                                      "ddp_bucket_cap_mb",
                                                      "ddp_broadcast_buffers",
                                                      "ddp_static_graph",
                                                      "ddp_backend",
                                                      "ddp_timeout",
                                                      "fsdp",
                                                      "fsdp_config",
                                                      "deepspeed",
                                                      "debug",
                                                      "skip_memory_metrics",
                                                      "do_train",
                                                      "do_eval",
                                                      "do_predict",
                                                      "resume_from_checkpoint",
                                                      "local_rank"};

ImportedDeck import_of(const Json& arguments, const std::vector<std::string>& overrides = {}, const std::string& deepspeed = "") {
  return import_trainer_text(arguments.dump(),
                             {.path = deepspeed, .trainer = "args.json", .model = "llama3-8b", .overrides = overrides, .ranks = 2});
}

std::string faults_in(const Json& arguments, const std::vector<std::string>& overrides = {}, const std::string& deepspeed = "") {
  return faults_of({{}, import_of(arguments, overrides, deepspeed).faults, {}});
}

Deck deck_of(const Json& arguments, const std::vector<std::string>& overrides = {}, const std::string& deepspeed = "") {
  const ImportedDeck imported = import_of(arguments, overrides, deepspeed);
  EXPECT_EQ(faults_of({{}, imported.faults, {}}), "") << arguments.dump();
  const ParsedDeck parsed = parse_deck_text(imported.text, "imported.toml", {}, 2);
  EXPECT_EQ(faults_of(parsed), "") << imported.text;
  return parsed.deck;
}

/// {"a": {"b": value}} of "a.b".
Json nested(std::string_view name, const Json& value) {
  Json root = Json::object();
  root.nested(name, '.') = value;
  return root;
}

/// A value that asks for something.
Json sample(const ForeignKey& key) {
  switch (key.type) {
    case ForeignType::integer:
      return 3;
    case ForeignType::real:
      return 2.5;
    case ForeignType::boolean:
      return key.off != "true";
    case ForeignType::list:
      return Json::array({"labels"});
    case ForeignType::section:
      return Json::object();
    default:
      return "word";
  }
}

// Of DPOConfig, KTOConfig, ORPOConfig, CPOConfig, RewardConfig and SFTConfig in TRL 1.16, without those of transformers.
constexpr std::string_view names_of_trl[] = {"activation_offloading",
                                             "alpha",
                                             "assistant_only_loss",
                                             "beta",
                                             "center_rewards_coefficient",
                                             "chat_template_path",
                                             "completion_only_loss",
                                             "cpo_alpha",
                                             "dataset_kwargs",
                                             "dataset_num_proc",
                                             "dataset_text_field",
                                             "desirable_weight",
                                             "disable_dropout",
                                             "discopop_tau",
                                             "eos_token",
                                             "eval_packing",
                                             "f_alpha_divergence_coef",
                                             "f_divergence_type",
                                             "generate_during_eval",
                                             "is_encoder_decoder",
                                             "label_smoothing",
                                             "ld_alpha",
                                             "loss_type",
                                             "loss_weights",
                                             "max_completion_length",
                                             "max_length",
                                             "model_init_kwargs",
                                             "packing",
                                             "packing_strategy",
                                             "pad_to_multiple_of",
                                             "pad_token",
                                             "padding_free",
                                             "padding_value",
                                             "precompute_ref_batch_size",
                                             "precompute_ref_log_probs",
                                             "ref_model_mixup_alpha",
                                             "ref_model_sync_steps",
                                             "router_aux_loss_coef",
                                             "shuffle_dataset",
                                             "simpo_gamma",
                                             "sync_ref_model",
                                             "truncation_mode",
                                             "trust_remote_code",
                                             "undesirable_weight",
                                             "use_weighting"};

TEST(Trainer, EveryNameOfTransformersAndTrlIsInTheTable) {
  for (const std::string_view name : names_of_transformers)
    EXPECT_TRUE(trainer_table().find(name) || trainer_table().is_section(name)) << name;
  for (const std::string_view name : names_of_trl) EXPECT_TRUE(trainer_table().find(name)) << name;
}

// Nothing is silent: a name becomes a line, a remark, or a fault; null is a remark, and what is no name a fault at any depth.
TEST(Trainer, NoNameIsSilent) {
  for (const ForeignKey& key : trainer_table().rows) {
    const auto at_the_key = [&](const Fault& f) { return f.key == key.name && f.line > 0; };
    const ImportedDeck absent = import_of(nested(key.name, nullptr));
    EXPECT_TRUE(absent.text.find(key.name) != std::string::npos || std::ranges::any_of(absent.faults, at_the_key))
        << key.name << "\n"
        << faults_of({{}, absent.faults, {}});
    const ImportedDeck given = import_of(nested(key.name, sample(key)));
    const bool said = std::ranges::any_of(given.faults, at_the_key);
    if (key.outcome == ForeignOutcome::refused) {
      EXPECT_TRUE(said) << key.name;
      if (key.off.empty()) continue;
      const ImportedDeck off = import_of(nested(key.name, key.type == ForeignType::text ? Json(key.off) : Json::parse(key.off)));
      EXPECT_EQ(faults_of({{}, off.faults, {}}), "") << key.name;
      EXPECT_NE(off.text.find(key.name), std::string::npos) << key.name;
    } else if (key.outcome == ForeignOutcome::unneeded) {
      EXPECT_EQ(faults_of({{}, given.faults, {}}), "") << key.name;
      EXPECT_NE(given.text.find(key.name), std::string::npos) << key.name;
    } else {
      EXPECT_TRUE(find_key(key.ours)) << key.ours;
      EXPECT_TRUE(said || given.text.find(key.name) != std::string::npos) << key.name << "\n"
                                                                          << given.text << faults_of({{}, given.faults, {}});
    }
  }
  EXPECT_NE(faults_in({{"learning_rat", 1}}).find("is not a key of the Trainer's; did you mean learning_rate?"), std::string::npos);
  for (const ForeignKey& key : trainer_table().rows) {
    if (key.section().empty()) continue;
    const std::string wrong = std::string(key.section()) + ".no_such_word";
    EXPECT_NE(faults_in(nested(wrong, 1)).find(wrong + ": is not a key of the Trainer's"), std::string::npos) << wrong;
  }
}

TEST(Trainer, ValuesBecomeTheDecks) {
  struct Case {
    Json arguments;
    std::string key, value;
  };
  for (const Case& c : std::vector<Case>{
           {{}, "run.epochs", "3.0"},
           {{}, "run.steps", "\"auto\""},
           {{}, "run.seed", "42"},
           {{}, "run.log_every", "500"},
           {{{"report_to", "wandb"}}, "metrics.tensorboard", "false"},
           {{{"report_to", Json::array({"wandb", "tensorboard"})}}, "metrics.tensorboard", "true"},
           {{{"report_to", "all"}}, "metrics.tensorboard", "true"},
           {{{"report_to", "all"}}, "metrics.wandb", "\"\""},
           {{{"report_to", "wandb"}}, "metrics.wandb", "\"huggingface\""},
           {{{"report_to", Json::array({"wandb", "mlflow"})}, {"project", "words"}}, "metrics.wandb", "\"words\""},
           {{{"report_to", Json::array({"wandb", "mlflow"})}, {"project", "words"}}, "metrics.mlflow", "\"words\""},
           {{{"use_peft", true}}, "lora.rank", "16"},
           {{{"use_peft", true}}, "lora.dropout", "0.05"},
           {{{"use_peft", true}}, "lora.targets", "[\"q_proj\", \"v_proj\"]"},
           {{{"use_peft", true}, {"lora_r", 8}, {"lora_dropout", 0.1}}, "lora.dropout", "0.1"},
           {{{"use_peft", true}, {"lora_target_modules", "all-linear"}}, "lora.targets", "\"all-linear\""},
           {{{"use_peft", true}, {"lora_modules_to_save", Json::array({"lm_head"})}}, "lora.modules_to_save", "\"lm_head\""},
           {{{"use_peft", true}, {"use_rslora", true}}, "lora.scaling", "\"rslora\""},
           {{{"lora_r", 8}}, "lora.rank", "0"},
           {{{"use_peft", false}, {"lora_r", 8}}, "lora.rank", "0"},
           {{}, "checkpoint.keep_best", "false"},
           {{{"load_best_model_at_end", true},
             {"metric_for_best_model", "eval_loss"},
             {"greater_is_better", false},
             {"eval_strategy", "steps"}},
            "checkpoint.keep_best",
            "true"},
           {{{"save_strategy", "best"}, {"eval_strategy", "steps"}}, "checkpoint.keep_best", "true"},
           {{{"save_strategy", "best"}, {"eval_strategy", "steps"}}, "checkpoint.every", "0"},
           {{{"early_stopping_patience", 3}, {"eval_strategy", "steps"}}, "evaluate.patience", "3"},
           {{{"early_stopping_patience", 3}, {"early_stopping_threshold", 0.25}, {"eval_strategy", "steps"}},
            "evaluate.min_improvement",
            "0.25"},
           {{}, "checkpoint.every", "500"},
           {{}, "checkpoint.keep", "0"},
           {{}, "batch.micro", "8"},
           {{}, "batch.global", "16"},
           {{}, "learning_rate.schedule", "\"linear\""},
           {{}, "learning_rate.min_ratio", "0.0"},
           {{}, "optimizer.beta2", "0.999"},
           {{}, "precision.compute", "\"fp32\""},
           {{{"num_train_epochs", 1.5}}, "run.epochs", "1.5"},
           {{{"num_train_epochs", 1.5}, {"max_steps", -1}}, "run.epochs", "1.5"},
           {{{"num_train_epochs", 1.5}, {"max_steps", 70}}, "run.steps", "70"},
           {{{"per_device_train_batch_size", 2}, {"gradient_accumulation_steps", 3}}, "batch.global", "12"},
           {{{"per_gpu_train_batch_size", 2}}, "batch.micro", "2"},
           {{{"warmup_steps", 20}}, "learning_rate.warmup_steps", "20"},
           {{{"warmup_steps", 0.05}}, "learning_rate.warmup_ratio", "0.05"},
           {{{"warmup_steps", 0}, {"warmup_ratio", 0.03}}, "learning_rate.warmup_ratio", "0.03"},
           {{{"warmup_steps", 7}, {"warmup_ratio", 0.03}}, "learning_rate.warmup_ratio", "0.0"},
           {{{"lr_scheduler_type", "cosine"}}, "learning_rate.schedule", "\"cosine\""},
           {{{"lr_scheduler_type", "constant_with_warmup"}, {"warmup_steps", 9}}, "learning_rate.warmup_steps", "9"},
           {{{"lr_scheduler_type", "constant"}, {"warmup_steps", 9}}, "learning_rate.warmup_steps", "0"},
           {{{"lr_scheduler_type", "cosine_with_min_lr"}, {"lr_scheduler_kwargs", {{"min_lr_rate", 0.2}}}},
            "learning_rate.min_ratio",
            "0.2"},
           {{{"lr_scheduler_type", "cosine_with_min_lr"}, {"learning_rate", 1e-3}, {"lr_scheduler_kwargs", {{"min_lr", 1e-4}}}},
            "learning_rate.min_ratio",
            "0.1"},
           {{{"optim", "adamw_torch_fused"}}, "optimizer.type", "\"adamw\""},
           {{{"optim", "lion_32bit"}, {"adam_beta2", 0.98}}, "optimizer.beta2", "0.98"},
           {{{"optim", "sgd"}, {"adam_beta2", 0.98}}, "optimizer.type", "\"sgd\""},
           {{{"optim", "adamw_bnb_8bit"}}, "optimizer.type", "\"adam8bit\""},
           {{{"optim", "adafactor"}}, "optimizer.type", "\"adafactor\""},
           {{{"bf16", true}}, "precision.compute", "\"bf16\""},
           {{{"fp16", true}}, "precision.compute", "\"fp16\""},
           {{{"activation_checkpointing", true}, {"activation_checkpointing_kwargs", {{"every_n_layers", 2}}}}, "activation.every", "2"},
           {{{"gradient_checkpointing", true}, {"activation_checkpointing", true}}, "activation.recompute", "\"full\""},
           {{{"use_cpu", true}}, "run.device", "\"host\""},
           {{{"save_strategy", "no"}}, "checkpoint.every", "0"},
           {{{"save_total_limit", 4}}, "checkpoint.keep", "4"},
           {{{"eval_strategy", "steps"}, {"eval_steps", 30}}, "evaluate.every", "30"},
           {{{"evaluation_strategy", "steps"}, {"logging_steps", 40}}, "evaluate.every", "40"},
           {{{"eval_strategy", "no"}, {"eval_steps", 30}}, "evaluate.every", "0"},
           {{{"run_name", "mine"}}, "run.name", "\"mine\""},
           {{{"data_seed", 42}}, "run.seed", "42"},
           {{{"fsdp", "full_shard auto_wrap"}}, "zero.stage", "3"},
           {{{"fsdp", {"shard_grad_op"}}}, "zero.stage", "2"},
           {{{"fsdp", true}, {"fsdp_config", {{"reshard_after_forward", false}}}}, "zero.stage", "2"},
           {{{"fsdp", "full_shard offload"}}, "zero.offload_param.device", "\"host\""},
           {{{"fsdp", true}, {"fsdp_config", {{"fsdp_cpu_offload", true}}}}, "zero.offload_optimizer.device", "\"host\""},
           {{{"fsdp", Json::array()}}, "zero.stage", "0"},
           {{{"deepspeed", {{"zero_optimization", {{"stage", 2}}}}}}, "zero.stage", "2"},
       })
    EXPECT_EQ(value_text(*find_key(c.key), deck_of(c.arguments.is_null() ? Json::object() : c.arguments)), c.value) << c.arguments;
}

// TRL's configurations of losses of pairs, which one file does not tell apart by a name.
TEST(Trl, LossesOfPairsBecomeObjectives) {
  struct Case {
    Json arguments;
    std::string key, value;
  };
  const Json dpo = {{"loss_type", Json::array({"sigmoid"})}}, adapted = {{"loss_type", "sigmoid"}, {"use_peft", true}};
  const auto with = [](Json base, const Json& more) {
    base.update(more);
    return base;
  };
  const Json sum = {{"loss_type", Json::array({"sigmoid", "apo_zero", "sft"})}, {"loss_weights", Json::array({0.8, 0.2, 1})}};
  for (const Case& c : std::vector<Case>{
           {dpo, "preference.objective", "\"dpo\""},
           {dpo, "preference.beta", "0.1"},
           {dpo, "preference.reference", "\"copy\""},
           {dpo, "data.document_mask", "true"},
           {dpo, "batch.sequence_length", "2048"},
           {dpo, "optimizer.learning_rate", "1e-06"},
           {dpo, "precision.compute", "\"bf16\""},
           {dpo, "run.log_every", "10"},
           {dpo, "activation.recompute", "\"full\""},
           {with(dpo, {{"bf16", false}, {"logging_steps", 3}, {"learning_rate", 2e-6}}), "precision.compute", "\"fp32\""},
           {with(dpo, {{"fp16", true}}), "precision.compute", "\"fp16\""},
           {with(dpo, {{"max_length", 512}}), "batch.sequence_length", "1024"},
           {with(dpo, {{"max_length", nullptr}}), "batch.sequence_length", "4096"},
           {with(dpo, {{"beta", 0.3}, {"label_smoothing", 0.1}}), "preference.beta", "0.3"},
           {with(dpo, {{"beta", 0.3}, {"label_smoothing", 0.1}}), "preference.label_smoothing", "0.1"},
           {{{"loss_type", "ipo"}, {"label_smoothing", 0.1}}, "preference.label_smoothing", "0.0"},
           {sum, "preference.objective", "[\"dpo\", \"apo_zero\", \"sft\"]"},
           {sum, "preference.weights", "[0.8, 0.2, 1.0]"},
           {adapted, "preference.reference", "\"adapter\""},
           {adapted, "lora.dropout", "0.0"},
           {with(adapted, {{"lora_dropout", 0.1}}), "lora.dropout", "0.0"},
           {with(adapted, {{"disable_dropout", false}}), "lora.dropout", "0.05"},
           {with(adapted, {{"lora_modules_to_save", "lm_head"}}), "preference.reference", "\"copy\""},
           {{{"loss_type", "sigmoid"}, {"cpo_alpha", 0.5}}, "preference.objective", "\"cpo\""},
           {{{"loss_type", "sigmoid"}, {"cpo_alpha", 0.5}}, "preference.alpha", "0.5"},
           {{{"loss_type", "sigmoid"}, {"cpo_alpha", 0.5}}, "preference.reference", "\"none\""},
           {{{"cpo_alpha", 0.5}}, "preference.objective", "\"cpo\""},
           {{{"loss_type", "simpo"}, {"cpo_alpha", 0}, {"simpo_gamma", 1.2}}, "preference.objective", "\"simpo\""},
           {{{"loss_type", "simpo"}, {"cpo_alpha", 0}, {"simpo_gamma", 1.2}}, "preference.gamma", "1.2"},
           {{{"loss_type", "simpo"}}, "preference.objective", "[\"simpo\", \"sft\"]"},
           {{{"loss_type", "simpo"}}, "preference.weights", "[1.0, 1.0]"},
           {{{"loss_type", "nll"}, {"max_length", 512}}, "batch.sequence_length", "512"},
           {{{"loss_type", "nll"}}, "preference.objective", "[]"},
           {{{"max_length", 512}}, "batch.sequence_length", "512"},
       })
    EXPECT_EQ(value_text(*find_key(c.key), deck_of(c.arguments)), c.value) << c.arguments;
}

TEST(Trl, TellsWhatTrlIgnoresAndRefusesWhatIsNotHere) {
  const Json smoothed = {{"loss_type", "sigmoid"}, {"label_smoothing", 0.1}};
  EXPECT_NE(import_of(smoothed).text.find("TRL ignores it with sigmoid, here the loss is cDPO's"), std::string::npos);
  EXPECT_NE(import_of({{"loss_type", "ipo"}, {"label_smoothing", 0.1}}).text.find("no loss of this file reads it, in TRL neither"),
            std::string::npos);
  struct Case {
    Json arguments;
    std::string says;
    std::vector<std::string> settles;
  };
  for (const Case& c : std::vector<Case>{
           {{{"beta", 0.2}}, "beta: belongs to several of TRL's configurations", {"preference.objective=\"dpo\""}},
           {{{"beta", 0.2}, {"max_completion_length", 64}}, "beta: as preference.objective: \"orpo\"", {"preference.objective=\"dpo\""}},
           {{{"loss_type", "exo_pair"}}, "loss_type: as preference.objective: \"exo_pair\"", {"preference.objective=\"dpo\""}},
           {{{"loss_type", "kto"}, {"desirable_weight", 1.0}}, "\"kto\"", {"preference.objective=\"hinge\""}},
           {{{"loss_type", "hinge"}, {"cpo_alpha", 1}}, "loss_type: \"hinge\" of CPOConfig", {"preference.objective=\"cpo\""}},
           {{{"loss_type", "dft"}}, "loss_type: \"dft\" is refused", {"preference.objective=\"dpo\""}},
       }) {
    EXPECT_NE(faults_in(c.arguments).find(c.says), std::string::npos) << c.arguments << "\n" << faults_in(c.arguments);
    EXPECT_EQ(faults_in(c.arguments, c.settles), "") << c.arguments;
  }
  EXPECT_NE(faults_in({{"center_rewards_coefficient", nullptr}, {"max_length", 512}}).find("reward models are not in this version"),
            std::string::npos);
  EXPECT_NE(faults_in({{"loss_type", "kto"}, {"desirable_weight", 1.2}}).find("desirable_weight: 1.2 is refused"), std::string::npos);
}

TEST(Trainer, WhatIsNotHereIsRefusedUnlessTheCommandLineSettlesIt) {
  struct Case {
    Json arguments;
    std::string says;
    std::vector<std::string> settles;
  };
  for (const Case& c : std::vector<Case>{
           {{{"optim", "lion_8bit"}}, "optim: as optimizer.type: \"lion_8bit\" is not a value", {"optimizer.type=adamw"}},
           {{{"optim", "galore_adamw"}}, "optim: as optimizer.type", {"optimizer.type=adamw"}},
           {{{"lr_scheduler_type", "polynomial"}}, "powers other than 1", {"learning_rate.schedule=linear"}},
           {{{"lr_scheduler_type", "warmup_stable_decay"}, {"lr_scheduler_kwargs", {{"num_decay_steps", 5}}}},
            "num_decay_steps: 5 is refused: set learning_rate.schedule=wsd learning_rate.decay_steps=N",
            {"learning_rate.schedule=wsd", "learning_rate.decay_steps=5"}},
           {{{"lr_scheduler_type", "cosine"}, {"lr_scheduler_kwargs", {{"decay_type", "1-sqrt"}}}},
            "decay_type: as learning_rate.decay_type: has no effect with learning_rate.schedule = \"cosine\"",
            {"learning_rate.schedule=wsd", "learning_rate.decay_steps=5"}},
           {{{"save_strategy", "epoch"}}, "save_strategy: \"epoch\" is refused: intervals are whole steps here", {"checkpoint.every=50"}},
           {{{"load_best_model_at_end", true}, {"metric_for_best_model", "bleu"}, {"eval_strategy", "steps"}},
            "metric_for_best_model: \"bleu\" is refused: an evaluation measures only the validation loss",
            {"checkpoint.keep_best=false"}},
           {{{"load_best_model_at_end", true}, {"greater_is_better", true}, {"eval_strategy", "steps"}},
            "greater_is_better: true is refused",
            {"checkpoint.keep_best=false"}},
           {{{"save_steps", 0.1}}, "save_steps: 0.1 is refused", {"checkpoint.every=50"}},
           {{{"logging_steps", 0.1}}, "logging_steps: 0.1 is refused", {"run.log_every=5"}},
           {{{"eval_strategy", "epoch"}}, "eval_strategy: \"epoch\" is refused", {"evaluate.every=50", "data.validation=v.h5"}},
           {{{"data_seed", 7}}, "data_seed: is 7 and seed is 42", {"run.seed=7"}},
           {{{"fsdp", "hybrid_shard"}}, "fsdp: \"hybrid_shard\" is refused", {"zero.stage=3"}},
       }) {
    EXPECT_NE(faults_in(c.arguments).find(c.says), std::string::npos) << c.arguments << "\n" << faults_in(c.arguments);
    EXPECT_EQ(faults_in(c.arguments, c.settles), "") << c.arguments;
  }
  const ImportedDeck unknown =
      import_trainer_text("{}", {.path = "", .trainer = "args.json", .model = "llama3-8b", .overrides = {}, .ranks = 0});
  EXPECT_NE(faults_of({{}, unknown.faults, {}}).find("add --ranks N, or batch.global=N"), std::string::npos);
}

// "auto" and what is not there come from the Trainer; what both say must be one thing.
TEST(Trainer, FillsInAConfigurationOfDeepSpeed) {
  const test::Scratch scratch;
  const std::string ds = scratch / "ds.json";
  test::spill(ds, R"({"bf16": {"enabled": "auto"}, "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto", "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto"},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
    "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto",
    "total_num_steps": "auto"}}})");
  const Json arguments = {{"bf16", true},
                          {"learning_rate", 2e-5},
                          {"per_device_train_batch_size", 1},
                          {"gradient_accumulation_steps", 4},
                          {"warmup_ratio", 0.03},
                          {"weight_decay", 0.1},
                          {"max_grad_norm", 0.5},
                          {"num_train_epochs", 2},
                          {"adam_beta2", 0.95}};
  for (const bool named : {false, true}) {
    Json held = arguments;
    if (named) held["deepspeed"] = ds;
    const Deck deck = deck_of(held, {}, named ? "" : ds);
    EXPECT_EQ(deck.zero.stage, 3);
    EXPECT_EQ(deck.zero.reduce_bucket_size, 4096 * 4096);
    EXPECT_EQ(deck.batch, (BatchKeys{.global = 8, .micro = 1, .sequence_length = 4096}));
    EXPECT_EQ(deck.optimizer.learning_rate, 2e-5);
    EXPECT_EQ(deck.optimizer.beta2, 0.95);
    EXPECT_EQ(deck.optimizer.weight_decay, 0.1);
    EXPECT_EQ(deck.optimizer.gradient_clipping, 0.5);
    EXPECT_EQ(deck.run.epochs, 2);
    EXPECT_EQ(deck.run.steps, 0);
    EXPECT_EQ(deck.learning_rate.warmup_ratio, 0.03);
    EXPECT_EQ(deck.learning_rate.warmup_steps, 0);
    EXPECT_EQ(deck.precision.compute, DType::bf16);
  }
  // A scheduler there takes the place of the Trainer's; what is only printed does not.
  test::spill(ds, R"({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "steps_per_print": 2000,
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 5}}})");
  const Json whole = {{"lr_scheduler_type", "cosine"}, {"logging_steps", 7}, {"num_train_epochs", 2}};
  EXPECT_EQ(deck_of(whole, {}, ds).learning_rate.schedule, RateSchedule::warmup_lr);
  EXPECT_EQ(deck_of(whole, {}, ds).learning_rate.warmup_steps, 5);
  EXPECT_EQ(deck_of(whole, {}, ds).run.log_every, 7);
  EXPECT_NE(import_of(whole, {}, ds).text.find("lr_scheduler_type:\n#     the scheduler of "), std::string::npos);
  // One without a warmup takes none from the Trainer, and one that gives the betas none of its.
  test::spill(ds, R"({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "scheduler": {"type": "OneCycle",
    "params": {"cycle_min_lr": 1e-6, "cycle_max_lr": 1e-4}}})");
  for (const Json& warmup : {Json{{"warmup_steps", 9}}, Json{{"warmup_ratio", 0.1}}}) {
    Json with = whole;
    with.update(warmup);
    with["adam_beta2"] = 0.98;
    const Deck cycle = deck_of(with, {}, ds);
    EXPECT_EQ(cycle.learning_rate, (LearningRateKeys{.schedule = RateSchedule::one_cycle, .one_cycle = {.min_lr = 1e-6}}));
    EXPECT_EQ(cycle.optimizer.beta2, 0.95) << "the deck's default, which nothing reads";
    EXPECT_NE(import_of(with, {}, ds).text.find("adam_beta2"), std::string::npos) << "dropped without a word";
  }
  test::spill(ds, R"({"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 1.0, "zero_optimization": {"stage": 2}})");
  const std::string faults = faults_in(arguments, {}, ds);
  EXPECT_NE(faults.find("args.json:1:"), std::string::npos) << faults;
  EXPECT_NE(faults.find("max_grad_norm: sets 0.5 to optimizer.gradient_clipping, and gradient_clipping of " + ds + " sets 1.0"),
            std::string::npos)
      << faults;
  EXPECT_NE(faults.find("per_device_train_batch_size: sets 1 to batch.micro"), std::string::npos) << faults;
  EXPECT_NE(faults_in({{"deepspeed", "no/such.json"}}).find("no/such.json: cannot open"), std::string::npos);
}

TEST(Trainer, YamlIsToldHowItBecomesJson) {
  const ImportedDeck imported =
      import_configuration({.path = "", .trainer = "recipe.yaml", .model = "llama3-8b", .overrides = {}, .ranks = 2});
  EXPECT_NE(faults_of({{}, imported.faults, {}}).find("recipe.yaml: this is YAML, but JSON is read: python3 -c "), std::string::npos);
}

TEST(Accelerate, ItsConfigurationBecomesADeck) {
  const auto import_json = [](const Json& root, const std::vector<std::string>& overrides = {}) {
    return import_deepspeed_text(root.dump(), {.path = "acc.json", .model = "llama3-8b", .overrides = overrides, .ranks = 2});
  };
  const auto value = [&](const Json& root, const char* key) {
    const ImportedDeck imported = import_json(root);
    EXPECT_EQ(faults_of({{}, imported.faults, {}}), "") << root;
    return value_text(*find_key(key), parse_deck_text(imported.text, "imported.toml", {}, 2).deck);
  };
  const Json deepspeed = {{"distributed_type", "DEEPSPEED"},
                          {"mixed_precision", "bf16"},
                          {"num_processes", 2},
                          {"deepspeed_config",
                           {{"zero_stage", 3},
                            {"offload_optimizer_device", "cpu"},
                            {"offload_param_device", "none"},
                            {"gradient_accumulation_steps", 4},
                            {"gradient_clipping", 0.5},
                            {"zero3_init_flag", true}}}};
  for (const auto& [key, text] : {std::pair("zero.stage", "3"), std::pair("zero.offload_optimizer.device", "\"host\""),
                                  std::pair("zero.offload_param.device", "\"none\""), std::pair("batch.global", "64"),
                                  std::pair("optimizer.gradient_clipping", "0.5"), std::pair("precision.compute", "\"bf16\"")})
    EXPECT_EQ(value(deepspeed, key), text) << key;
  Json fsdp = {
      {"distributed_type", "FSDP"}, {"mixed_precision", "no"}, {"fsdp_config", {{"fsdp_version", 2}, {"fsdp_offload_params", true}}}};
  EXPECT_EQ(value(fsdp, "zero.stage"), "3");
  EXPECT_EQ(value(fsdp, "zero.offload_param.device"), "\"host\"");
  EXPECT_EQ(value(fsdp, "precision.compute"), "\"fp32\"");
  for (const Json& strategy : {Json("SHARD_GRAD_OP"), Json(2)}) {
    fsdp["fsdp_config"] = {{"fsdp_sharding_strategy", strategy}};
    EXPECT_EQ(value(fsdp, "zero.stage"), "2") << strategy;
  }
  const auto faults = [&](const Json& root) { return faults_of({{}, import_json(root).faults, {}}); };
  fsdp["fsdp_config"] = {{"fsdp_sharding_strategy", "HYBRID_SHARD"}};
  EXPECT_NE(faults(fsdp).find("hybrid_shard\" is refused"), std::string::npos) << faults(fsdp);
  EXPECT_EQ(value({{"distributed_type", "NO"}, {"mixed_precision", "fp16"}}, "precision.compute"), "\"fp16\"");
  EXPECT_NE(faults({{"distributed_type", "NO"}, {"num_proceses", 2}}).find("did you mean num_processes?"), std::string::npos);
  EXPECT_NE(faults_in(deepspeed).find("this is a configuration of Accelerate"), std::string::npos);
  for (const ForeignKey& key : accelerate_table().rows) {
    Json root = nested(key.name, nullptr);
    root["distributed_type"] = "NO";
    EXPECT_NE(import_json(root).text.find(key.name), std::string::npos) << key.name;
    EXPECT_TRUE(key.outcome != ForeignOutcome::mapped || find_key(key.ours)) << key.name;
  }
  // Beside the Trainer's arguments.
  const test::Scratch scratch;
  test::spill(scratch / "acc.json", deepspeed.dump());
  const Deck both = deck_of({{"learning_rate", 2e-5}, {"bf16", true}, {"max_grad_norm", 0.5}, {"per_device_train_batch_size", 1}}, {},
                            scratch / "acc.json");
  EXPECT_EQ(both.zero.stage, 3);
  EXPECT_EQ(both.batch, (BatchKeys{.global = 2, .micro = 1, .sequence_length = 4096}));
  EXPECT_EQ(both.optimizer.learning_rate, 2e-5);
}

TEST(Trainer, ThePageHoldsTheTable) {
  const std::string page = test::slurp(std::string(TESSERA_SOURCE_DIR) + "/docs/trainer.md");
  for (const ForeignTable* table : {&trainer_table(), &accelerate_table()})
    EXPECT_NE(page.find(table->reference()), std::string::npos) << "put the table of `tessera deck import --keys` into docs/trainer.md";
}

}  // namespace
}  // namespace tessera::trainer_test
