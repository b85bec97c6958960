// THE table of the arguments of Hugging Face's Trainer: the names of transformers' TrainingArguments, older ones that files still hold
// included.
#include <tuple>

#include "deck/import/rows.hpp"
#include "optimizer/texts/table.hpp"

namespace tessera {
namespace {

using namespace rows;

constexpr std::string_view nothing_sent = "metrics.jsonl in the run's folder holds every step; nothing is sent anywhere";
constexpr std::string_view what_logs = "a line every run.log_every steps, and metrics.jsonl holds every step";
constexpr std::string_view of_hub = "push_to_hub, to which it belongs, is refused if it is true";
constexpr std::string_view of_loading = "samples are read from token files before the step, without extra processes";
constexpr std::string_view of_evaluation = "an evaluation is the mean loss over evaluate.batches micro-batches of batch.micro sequences";
constexpr std::string_view of_ddp = "a step's collectives are a schedule made before the run";
constexpr std::string_view kernels_are_compiled = "kernels are compiled with the program, and a step is a schedule made before the run";
constexpr std::string_view of_fsdp =
    "parameters are gathered by unit (embedding, a layer, the head), and the step's schedule sets the time";
constexpr std::string_view other_schedule = "it belongs to a schedule that is not supported; leave it out";
constexpr std::string_view of_memory = "`tessera plan` lists a rank's memory before the run";
constexpr std::string_view of_commands = "`tessera train`, `tessera evaluate` and `tessera generate` are commands of their own";
constexpr std::string_view places_of_ranks = "the launcher places the ranks";

using Words = std::vector<std::pair<std::string_view, std::string_view>>;
using Rows = std::vector<ForeignKey>;

Rows unneeded_rows(std::string_view says, const std::vector<std::pair<std::string_view, ForeignType>>& names) {
  Rows all;
  for (const auto& [name, type] : names) all.push_back(unneeded(name, type, says));
  return all;
}

Rows length_and_batch() {
  return {
      mapped("output_dir", text, "run.output_dir"),
      together(mapped("run_name", text, "run.name", "if it is not a path")),
      together(mapped("num_train_epochs", real, "run.epochs", "3.0 if it is missing; without effect if max_steps is above 0")),
      together(mapped("max_steps", integer, "run.steps", "if it is above 0")),
      together(mapped("per_device_train_batch_size", integer, "batch.micro", "sequences; 8 if it is missing")),
      together(mapped("gradient_accumulation_steps", integer, "batch.global", "per_device_train_batch_size x it x ranks")),
      refused("auto_find_batch_size", boolean, "false", "`tessera plan --recommend` finds batch.micro before the run; set it to false"),
      mapped("seed", integer, "run.seed", "42 if it is missing"),
      together(mapped("data_seed", integer, "run.seed", "one seed sets weights and the order of data; any other than seed is refused")),
      mapped("full_determinism", boolean, "run.reproducible"),
      with_words(mapped("use_cpu", boolean, "run.device", "true is \"host\""), {{"true", "host"}, {"false", "auto"}}),
      with_words(mapped("no_cuda", boolean, "run.device", "true is \"host\""), {{"true", "host"}, {"false", "auto"}}),
      together(mapped("max_length", integer, "batch.sequence_length", "tokens; of TRL's arguments; twice that for pairs of texts")),
      together(mapped("max_seq_length", integer, "batch.sequence_length", "the older name of max_length")),
      refused("packing", boolean, "false",
              "for TRL: set it to false and set data.packing=documents data.document_mask=true on the command line"),
      refused("padding_free", boolean, "false",
              "for TRL: set it to false and set data.packing=documents data.document_mask=true on the command line, which puts whole "
              "documents into a sequence"),
      unneeded("packing_strategy", text, "data.packing on the command line sets how sequences are filled"),
      unneeded("assistant_only_loss", boolean, "`tessera tokenize --chat` decides it: only the assistant's turns count in the loss"),
      unneeded("completion_only_loss", boolean,
               "`tessera tokenize` decides it: in lines with \"prompt\" and \"completion\" only the completions count in the loss"),
      refused("eos_token", text, "", "for TRL: `tessera tokenize --end-token NAME` sets it; leave it out"),
      mapped("router_aux_loss_coef", real, "model.router_aux_loss", "of TRL's arguments"),
      together(mapped("use_peft", boolean, "lora.rank", "for TRL: without it the keys of adapters have no effect")),
      together(mapped("lora_r", integer, "lora.rank", "16 if it is missing")),
      together(mapped("lora_alpha", real, "lora.alpha", "32 if it is missing")),
      together(mapped("lora_dropout", real, "lora.dropout", "0.05 if it is missing")),
      together(mapped("lora_target_modules", any, "lora.targets", "[\"q_proj\", \"v_proj\"] if it is missing")),
      together(mapped("lora_modules_to_save", any, "lora.modules_to_save")),
      together(mapped("use_rslora", boolean, "lora.scaling", "true is \"rslora\"")),
      refused("use_dora", boolean, "false", "DoRA is not in this version; set it to false"),
      refused("lora_target_parameters", any, "", "name experts in lora.targets on the command line (\"experts.*\"), and leave it out"),
      unneeded("lora_task_type", text, "the loss is always of the next token"),
      refused("embedding_learning_rate", real, "",
              "for Unsloth: set 'optimizer.groups=[{ tensors = [\"embedding.*\", \"head.*\"], learning_rate = R }]' on the command line, "
              "and leave it out"),
  };
}

/// TRL's DPOConfig, CPOConfig, ORPOConfig, KTOConfig and RewardConfig, and what SFTConfig shares with them.
Rows trl() {
  Rows all = {
      together(mapped("loss_type", any, "preference.objective",
                      "\"sigmoid\" is \"dpo\", and \"cpo\" of CPOConfig; \"nll\" of SFTConfig is the loss of tokens; a list is added up")),
      together(mapped("loss_weights", list, "preference.weights")),
      together(mapped("beta", real, "preference.beta", "with loss_type, or as ORPOConfig's")),
      together(mapped("label_smoothing", real, "preference.label_smoothing",
                      "with \"sigmoid\" the loss is cDPO's; TRL ignores it there silently")),
      together(mapped("cpo_alpha", real, "preference.alpha", "with \"simpo\" it is the weight of \"sft\"; 1.0 if it is missing")),
      together(mapped("simpo_gamma", real, "preference.gamma")),
      together(mapped("disable_dropout", boolean, "lora.dropout", "true, and if it is missing with a loss of pairs, is 0.0")),
      refused("alpha", real, "0", "AlphaPO's rewards are not in this version; set it to 0.0"),
      refused("ld_alpha", real, "1", "LD-DPO's weights of long texts are not in this version; leave it out"),
      refused("f_divergence_type", text, "reverse_kl", "other divergences are not in this version; set \"reverse_kl\""),
      unneeded("f_alpha_divergence_coef", real, "f_divergence_type \"alpha_divergence\", to which it belongs, is refused"),
      refused("use_weighting", boolean, "false", "WPO's weights are not in this version; set it to false"),
      unneeded("discopop_tau", real, "loss_type \"discopop\", to which it belongs, is refused"),
      refused("rpo_alpha", real, "", "set loss_type to [\"sigmoid\", \"sft\"] and loss_weights to [1.0, rpo_alpha], and leave it out"),
      refused("reference_free", boolean, "false", "losses without a reference are \"simpo\" and CPOConfig's \"sigmoid\"; set it to false"),
      refused("desirable_weight", real, "1", "KTO is not in this version; leave it out"),
      refused("undesirable_weight", real, "1", "KTO is not in this version; leave it out"),
      refused("center_rewards_coefficient", real, "", "reward models are not in this version; leave it out"),
      refused("sync_ref_model", boolean, "false", "the reference stays as the run begins; set it to false"),
      refused("truncation_mode", text, "keep_start", "a text keeps its first tokens; set \"keep_start\""),
      refused("max_prompt_length", integer, "", "`tessera tokenize` leaves out prompts that fill the length; leave it out"),
      refused("is_encoder_decoder", boolean, "false", "models are decoders; set it to false"),
      refused("generate_during_eval", boolean, "false", "[samples] prints texts while a run trains; set it to false"),
      refused("chat_template_path", text, "", "`tessera tokenize` reads the template of the tokenizer's folder; leave it out"),
      with_words(mapped("activation_offloading", boolean, "activation.offload", "true is \"host\""), {{"true", "host"}, {"false", "none"}}),
  };
  const auto add = [&](const Rows& rows) { all.insert(all.end(), rows.begin(), rows.end()); };
  add(unneeded_rows("the reference's log-probabilities are the same; preference.reference = \"file\" reads stored ones",
                    {{"precompute_ref_log_probs", boolean}, {"precompute_ref_batch_size", integer}}));
  add(unneeded_rows("sync_ref_model, to which it belongs, is refused if it is true",
                    {{"ref_model_mixup_alpha", real}, {"ref_model_sync_steps", integer}}));
  add(unneeded_rows("--model, or run.init, names the folder of the model, which runs no code of its own",
                    {{"model_init_kwargs", any}, {"ref_model_init_kwargs", any}, {"trust_remote_code", boolean}}));
  add(unneeded_rows("padding counts in no loss", {{"pad_to_multiple_of", any}, {"pad_token", text}, {"padding_value", integer}}));
  add(unneeded_rows("it belongs to models of an encoder and a decoder", {{"max_completion_length", integer}}));
  add(unneeded_rows("`tessera tokenize` reads the texts before a run", {{"dataset_num_proc", integer},
                                                                        {"dataset_text_field", text},
                                                                        {"dataset_kwargs", any},
                                                                        {"shuffle_dataset", boolean},
                                                                        {"eval_packing", boolean}}));
  return all;
}

Rows optimizer_and_schedule() {
  Words optimizer_words;
  for (const Optimizer& row : optimizers())
    for (const std::string_view name : row.trainer) optimizer_words.emplace_back(name, row.name);
  const Words schedules = {{"constant_with_warmup", "constant"}, {"cosine_with_min_lr", "cosine"}};
  return {
      together(with_words(mapped("optim", text, "optimizer.type",
                                 "any implementation with an fp32 state: AdamW is \"adamw\"; unknown optimizers are refused"),
                          optimizer_words)),
      refused("optim_args", text, "", "AdamW takes its arguments by their own names; leave it out"),
      refused("optim_target_modules", any, "", "it belongs to GaLore and APOLLO, which are not in this version; leave it out"),
      refused("adafactor", boolean, "false", "an older form of optim = \"adafactor\": write that, and set this to false"),
      mapped("learning_rate", real, "optimizer.learning_rate"),
      mapped("weight_decay", real, "optimizer.weight_decay", "for matrices only, as in the Trainer"),
      together(mapped("adam_beta1", real, "optimizer.beta1")),
      together(mapped("adam_beta2", real, "optimizer.beta2")),
      together(mapped("adam_epsilon", real, "optimizer.eps")),
      mapped("max_grad_norm", real, "optimizer.gradient_clipping", "0 is no clipping, as in the Trainer"),
      together(with_words(mapped("lr_scheduler_type", text, "learning_rate.schedule",
                                 "\"linear\" if it is missing; it ends at 0, as \"cosine\" does (`learning_rate.min_ratio` = 0.0)"),
                          schedules)),
      together(mapped("lr_scheduler_kwargs.min_lr_rate", real, "learning_rate.min_ratio", "with cosine_with_min_lr")),
      together(mapped("lr_scheduler_kwargs.min_lr", real, "learning_rate.min_ratio", "over learning_rate, with cosine_with_min_lr")),
      refused("lr_scheduler_kwargs.num_cycles", real, "0.5", other_schedule),
      refused("lr_scheduler_kwargs.power", real, "1.0", other_schedule),
      refused("lr_scheduler_kwargs.lr_end", real, "", other_schedule),
      refused("lr_scheduler_kwargs.timescale", any, "", other_schedule),
      refused("lr_scheduler_kwargs.warmup_lr_rate", any, "", other_schedule),
      unless_given("learning_rate.decay_steps", refused("lr_scheduler_kwargs.num_decay_steps", integer, "",
                                                        "set learning_rate.schedule=wsd learning_rate.decay_steps=N on the command line")),
      refused("lr_scheduler_kwargs.num_stable_steps", any, "", other_schedule),
      refused("lr_scheduler_kwargs.warmup_type", text, "linear", other_schedule),
      with_words(mapped("lr_scheduler_kwargs.decay_type", text, "learning_rate.decay_type", "1-sqrt is \"minus_sqrt\""),
                 {{"1-sqrt", "minus_sqrt"}}),
      refused("lr_scheduler_kwargs.min_lr_ratio", real, "0", "set learning_rate.min_ratio=R on the command line, and leave it out"),
      together(
          mapped("warmup_steps", real, "learning_rate.warmup_steps", "below 1 it is a share of the steps, `learning_rate.warmup_ratio`")),
      together(mapped("warmup_ratio", real, "learning_rate.warmup_ratio", "if warmup_steps is 0")),
      refused("label_smoothing_factor", real, "0", "targets are single tokens in this version; set it to 0.0"),
      refused("neftune_noise_alpha", real, "0", "noise on embeddings is not in this version; leave it out"),
      unneeded("average_tokens_across_devices", boolean,
               "the loss is the mean over the tokens of the global batch, on whichever ranks they are"),
      unneeded("logging_nan_inf_filter", boolean, "a loss that is not finite ends the run, with status 8"),
  };
}

Rows precision_and_memory() {
  const Words recompute = {{"true", "full"}, {"false", "none"}};
  Rows all = {
      together(mapped("bf16", boolean, "precision.compute", "true is \"bf16\"; false, if no other type is requested, is \"fp32\"")),
      together(mapped("fp16", boolean, "precision.compute", "true is \"fp16\", with a loss scale")),
      with_words(mapped("activation_checkpointing", boolean, "activation.recompute", "true is \"full\""), recompute),
      with_words(mapped("gradient_checkpointing", boolean, "activation.recompute", "true is \"full\""), recompute),
  };
  const auto add = [&](const Rows& rows) { all.insert(all.end(), rows.begin(), rows.end()); };
  for (const auto& [use_reentrant, every, offload] :
       {std::tuple("activation_checkpointing_kwargs.use_reentrant", "activation_checkpointing_kwargs.every_n_layers",
                   "activation_checkpointing_kwargs.offload"),
        std::tuple("gradient_checkpointing_kwargs.use_reentrant", "gradient_checkpointing_kwargs.every_n_layers",
                   "gradient_checkpointing_kwargs.offload")}) {
    add({unneeded(use_reentrant, boolean, "the step's schedule includes what is recomputed"), mapped(every, integer, "activation.every"),
         with_words(mapped(offload, boolean, "activation.offload", "true is \"host\""), {{"true", "host"}, {"false", "none"}})});
  }
  add(unneeded_rows("an evaluation computes in precision.compute, as training does",
                    {{"bf16_full_eval", boolean}, {"fp16_full_eval", boolean}}));
  add(unneeded_rows("precision.compute is the only type to choose",
                    {{"tf32", boolean}, {"half_precision_backend", text}, {"fp16_backend", text}, {"fp16_opt_level", text}}));
  add(unneeded_rows(kernels_are_compiled, {{"torch_compile", boolean},
                                           {"torch_compile_backend", text},
                                           {"torch_compile_mode", text},
                                           {"torchdynamo", text},
                                           {"use_liger_kernel", boolean},
                                           {"liger_kernel_config", any},
                                           {"use_ipex", boolean},
                                           {"jit_mode_eval", boolean}}));
  add(unneeded_rows(of_memory, {{"torch_empty_cache_steps", integer}, {"skip_memory_metrics", boolean}, {"use_cache", boolean}}));
  return all;
}

Rows logging_and_evaluation() {
  Rows all = {
      together(mapped("logging_steps", real, "run.log_every", "500 if it is missing; only whole steps")),
      together(mapped("eval_strategy", text, "evaluate.every", "\"steps\" takes eval_steps, \"no\" is 0; \"epoch\" is refused")),
      together(mapped("evaluation_strategy", text, "evaluate.every", "the older name of eval_strategy")),
      together(mapped("eval_steps", real, "evaluate.every", "logging_steps if it is missing; only whole steps")),
      refused("eval_delay", real, "0", "evaluations come every evaluate.every steps from the first on; set it to 0"),
      refused("eval_on_start", boolean, "false", "evaluations come after steps; set it to false (`tessera evaluate` takes any checkpoint)"),
  };
  const auto add = [&](const Rows& rows) { all.insert(all.end(), rows.begin(), rows.end()); };
  add(unneeded_rows(what_logs, {{"logging_strategy", text},
                                {"logging_first_step", boolean},
                                {"log_on_each_node", boolean},
                                {"log_level", text},
                                {"log_level_replica", text},
                                {"disable_tqdm", boolean},
                                {"include_num_input_tokens_seen", any},
                                {"include_tokens_per_second", boolean},
                                {"debug", any}}));
  add({together(
      mapped("report_to", any, "metrics.tensorboard",
             "true if it names \"tensorboard\" or \"all\"; \"wandb\" is `metrics.wandb` and \"mlflow\" `metrics.mlflow`, only by name"))});
  add({together(mapped("project", text, "metrics.wandb", "if report_to names \"wandb\" or \"mlflow\"; \"huggingface\" if it is missing"))});
  add(unneeded_rows(nothing_sent,
                    {{"logging_dir", text}, {"trackio_space_id", text}, {"trackio_bucket_id", text}, {"trackio_static_space_id", any}}));
  add(unneeded_rows(of_evaluation, {{"per_device_eval_batch_size", integer},
                                    {"per_gpu_eval_batch_size", integer},
                                    {"eval_batch_size", integer},
                                    {"prediction_loss_only", boolean},
                                    {"eval_do_concat_batches", boolean},
                                    {"eval_use_gather_object", boolean},
                                    {"eval_accumulation_steps", integer},
                                    {"include_for_metrics", list},
                                    {"include_inputs_for_metrics", boolean},
                                    {"batch_eval_metrics", boolean},
                                    {"past_index", integer}}));
  add(unneeded_rows(of_commands, {{"do_train", boolean}, {"do_eval", boolean}, {"do_predict", boolean}}));
  return all;
}

Rows saving() {
  Rows all = {
      together(mapped("save_strategy", text, "checkpoint.every",
                      "\"steps\" takes save_steps, \"no\" is 0, \"best\" is 0 with `checkpoint.keep_best`; \"epoch\" is refused")),
      together(mapped("save_steps", real, "checkpoint.every", "500 if it is missing; only whole steps")),
      mapped("save_total_limit", integer, "checkpoint.keep", "all if it is missing"),
      refused("save_only_model", boolean, "false",
              "a run resumes only from whole checkpoints; set it to false (checkpoint.weights_every=N also saves weights alone)"),
      refused("save_on_each_node", boolean, "false",
              "a checkpoint is one folder that all ranks write, on a file system that all nodes see (run.output_dir); set it to false"),
      unneeded("enable_jit_checkpoint", boolean, "a signal always saves before the run ends, with status 75"),
      unneeded("save_safetensors", boolean, "`tessera consolidate` writes safetensors of any checkpoint"),
      unneeded("overwrite_output_dir", boolean, "a folder of another run is refused; run.overwrite=true moves that run aside"),
      together(mapped("load_best_model_at_end", boolean, "checkpoint.keep_best",
                      "true keeps the checkpoint of the lowest validation loss, to which RUN/checkpoints/best links; the run itself ends "
                      "with its last weights")),
      together(mapped("metric_for_best_model", text, "checkpoint.keep_best", "\"loss\" and \"eval_loss\"; no other metric is measured")),
      together(mapped("greater_is_better", boolean, "checkpoint.keep_best", "false: a lower loss is better")),
      mapped("early_stopping_patience", integer, "evaluate.patience",
             "for EarlyStoppingCallback, as files of programs around the Trainer store it"),
      mapped("early_stopping_threshold", real, "evaluate.min_improvement",
             "the same; measured from the last improvement, while the Trainer measures from the lowest loss"),
      refused("resume_from_checkpoint", any, "true",
              "Tessera cannot read a checkpoint of the Trainer: leave it out, and set run.init=FOLDER to start from its weights"),
      refused("ignore_data_skip", boolean, "false", "a resumed run continues with the next sample; set it to false"),
      unneeded("restore_callback_states_from_checkpoint", boolean, "a checkpoint holds everything that a resume needs"),
      refused("push_to_hub", boolean, "false",
              "nothing is sent anywhere; set it to false (`tessera consolidate` writes the folder that the Hub takes)"),
  };
  const auto add = [&](const Rows& rows) { all.insert(all.end(), rows.begin(), rows.end()); };
  add(unneeded_rows(of_hub, {{"hub_token", text},
                             {"hub_private_repo", boolean},
                             {"hub_model_id", text},
                             {"hub_strategy", text},
                             {"hub_always_push", boolean},
                             {"hub_revision", text},
                             {"push_to_hub_model_id", text},
                             {"push_to_hub_organization", text},
                             {"push_to_hub_token", text}}));
  return all;
}

Rows data_and_launch() {
  Rows all = {
      refused("train_sampling_strategy", text, "random", "samples come in one random order, drawn from run.seed; set \"random\""),
      refused("group_by_length", boolean, "false",
              "samples come in one random order; set it to false (data.packing=documents leaves little padding)"),
      refused("accelerator_config.split_batches", boolean, "false",
              "per_device_train_batch_size is that of a rank here; set it to false and set batch.global on the command line"),
      refused("split_batches", boolean, "false",
              "per_device_train_batch_size is that of a rank here; set it to false and set batch.global on the command line"),
      refused("parallelism_config", any, "",
              "leave it out and give the axes on the command line: mesh.tp, mesh.cp, mesh.pp, mesh.ep, mesh.replicate"),
      refused("sharded_ddp", any, "", "set zero.stage on the command line, and leave it out"),
      refused("use_mps_device", boolean, "false", "kernels are for hosts and CUDA; set it to false"),
      refused("tpu_num_cores", integer, "", "kernels are for hosts and CUDA; leave it out"),
      together(mapped("deepspeed", any, "zero.stage",
                      "DeepSpeed's file, or its content: imported with this one, which sets what is \"auto\" there")),
      together(mapped("fsdp", any, "zero.stage",
                      "true and full_shard are 3, shard_grad_op 2, no_shard 0; offload is `zero.offload_optimizer.device` and "
                      "`zero.offload_param.device` = \"host\"; hybrid ones are refused")),
      together(mapped("fsdp_config.reshard_after_forward", any, "zero.stage", "false is 2")),
      together(mapped("fsdp_config.cpu_offload", boolean, "zero.offload_param.device", "true is \"host\", also for the optimizer")),
      with_words(mapped("fsdp_config.activation_checkpointing", boolean, "activation.recompute", "true is \"full\""),
                 {{"true", "full"}, {"false", "none"}}),
      refused("fsdp_config.xla", boolean, "false", "kernels are for hosts and CUDA; set it to false"),
      refused("fsdp_config.xla_fsdp_v2", boolean, "false", "kernels are for hosts and CUDA; set it to false"),
      refused("fsdp_config.xla_fsdp_grad_ckpt", boolean, "false", "kernels are for hosts and CUDA; set it to false"),
  };
  const auto add = [&](const Rows& rows) { all.insert(all.end(), rows.begin(), rows.end()); };
  add(unneeded_rows(of_fsdp, {{"fsdp_config.version", any},
                              {"fsdp_config.min_num_params", any},
                              {"fsdp_config.transformer_layer_cls_to_wrap", any},
                              {"fsdp_config.auto_wrap_policy", text},
                              {"fsdp_config.backward_prefetch", any},
                              {"fsdp_config.forward_prefetch", any},
                              {"fsdp_config.limit_all_gathers", any},
                              {"fsdp_config.use_orig_params", any},
                              {"fsdp_config.sync_module_states", any},
                              {"fsdp_config.cpu_ram_efficient_loading", any},
                              {"fsdp_config.state_dict_type", text},
                              {"fsdp_config.xla_fsdp_settings", any},
                              {"fsdp_min_num_params", integer},
                              {"fsdp_transformer_layer_cls_to_wrap", text}}));
  add(unneeded_rows(of_loading, {{"dataloader_drop_last", boolean},
                                 {"dataloader_num_workers", integer},
                                 {"dataloader_pin_memory", boolean},
                                 {"dataloader_persistent_workers", boolean},
                                 {"dataloader_prefetch_factor", integer},
                                 {"dataloader_multiprocessing_context", text},
                                 {"dataloader_in_order", boolean},
                                 {"remove_unused_columns", boolean},
                                 {"label_names", list},
                                 {"length_column_name", text},
                                 {"dispatch_batches", boolean},
                                 {"accelerator_config.dispatch_batches", boolean},
                                 {"accelerator_config.even_batches", boolean},
                                 {"accelerator_config.use_seedable_sampler", boolean},
                                 {"accelerator_config.non_blocking", boolean},
                                 {"accelerator_config.gradient_accumulation_kwargs", any},
                                 {"accelerator_config.use_configured_state", boolean}}));
  add(unneeded_rows(of_ddp, {{"ddp_find_unused_parameters", boolean},
                             {"ddp_bucket_cap_mb", integer},
                             {"ddp_broadcast_buffers", boolean},
                             {"ddp_static_graph", boolean},
                             {"ddp_backend", text}}));
  add(unneeded_rows("topology.collective_timeout is the time that a rank waits for the others", {{"ddp_timeout", integer}}));
  add(unneeded_rows(places_of_ranks,
                    {{"local_rank", integer}, {"_n_gpu", integer}, {"mp_parameters", text}, {"ray_scope", text}, {"xpu_backend", text}}));
  return all;
}

}  // namespace

const ForeignTable& trainer_table() {
  static const ForeignTable table = [] {
    ForeignTable all{.owner = "the Trainer",
                     .command = "tessera deck import --keys",
                     .rows = {},
                     .renamed = {{"fsdp_config.fsdp_", "fsdp_config."}, {"per_gpu_train_batch_size", "per_device_train_batch_size"}}};
    for (const Rows& some : {length_and_batch(), trl(), optimizer_and_schedule(), precision_and_memory(), logging_and_evaluation(),
                             saving(), data_and_launch()})
      all.rows.insert(all.rows.end(), some.begin(), some.end());
    return all;
  }();
  return table;
}

}  // namespace tessera
