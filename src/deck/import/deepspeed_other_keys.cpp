// The table of DeepSpeed's keys, second half: what stands around a step. Monitors, checkpoints, axes, tuning.
#include "deck/import/rows.hpp"

namespace tessera {
namespace {

using namespace rows;

constexpr std::string_view metrics =
    "metrics.jsonl in the run's folder holds every step, and scripts/plot_run draws it; nothing is sent anywhere";
constexpr std::string_view in_folder = "a run's figures are in its folder, `run.output_dir`";
constexpr std::string_view traffic = "`tessera plan` counts what collectives move, and `run.trace` = N times each of them in step N";
constexpr std::string_view flops = "`tessera plan` counts a step's FLOPs, and every line of the log has the MFU";
constexpr std::string_view all_collectives = "the table of run.breakdown_every has every kind of collective";
constexpr std::string_view traced = "a timeline has every task of the step with its FLOPs";
constexpr std::string_view how_saved = "the checkpoint format decides how files are written (docs/checkpoint_format.md)";
constexpr std::string_view tensor_cut = "it tells DeepSpeed where to cut a model that it does not know; here the deck describes the model";
constexpr std::string_view compiled = "a step is a schedule made before the run, with every collective and every byte planned";

/// A section all of whose keys have its outcome.
std::vector<ForeignKey> section_of(const ForeignKey& row, std::vector<std::pair<std::string_view, ForeignType>> parts) {
  std::vector<ForeignKey> keys = {row};
  for (const auto& [name, type] : parts) keys.push_back(part(name, type));
  return keys;
}

std::vector<ForeignKey> monitor_keys() {
  std::vector<ForeignKey> all;
  const auto add = [&](const std::vector<ForeignKey>& keys) { all.insert(all.end(), keys.begin(), keys.end()); };
  add({mapped("tensorboard.enabled", boolean, "metrics.tensorboard"), unneeded("tensorboard.output_path", text, in_folder),
       unneeded("tensorboard.job_name", text, in_folder)});
  add({mapped("csv_monitor.enabled", boolean, "metrics.csv"), unneeded("csv_monitor.output_path", text, in_folder),
       unneeded("csv_monitor.job_name", text, in_folder)});
  add({together(mapped("wandb.enabled", boolean, "metrics.wandb", "true is the project's name")),
       together(mapped("wandb.project", text, "metrics.wandb", "of an enabled section; \"deepspeed\" if it is missing")),
       together(mapped("wandb.team", text, "metrics.wandb_team", "of an enabled section")),
       together(mapped("wandb.group", text, "metrics.wandb_group", "of an enabled section"))});
  add(section_of(unneeded("comet", section, metrics), {{"comet.enabled", boolean},
                                                       {"comet.samples_log_interval", integer},
                                                       {"comet.project", text},
                                                       {"comet.workspace", text},
                                                       {"comet.api_key", text},
                                                       {"comet.experiment_name", text},
                                                       {"comet.experiment_key", text},
                                                       {"comet.online", boolean},
                                                       {"comet.mode", text}}));
  add({together(mapped("comms_logger.enabled", boolean, "run.breakdown_every",
                       "true as wall_clock_breakdown: its table has tasks, bytes, bus and algorithm bandwidth of each kind of collective")),
       unneeded("comms_logger.prof_all", boolean, all_collectives), unneeded("comms_logger.prof_ops", list, all_collectives),
       unneeded("comms_logger.verbose", boolean, traffic), unneeded("comms_logger.debug", boolean, traffic)});
  add({together(mapped("flops_profiler.enabled", boolean, "run.trace", "true traces step profile_step, which is 1 by default")),
       together(mapped("flops_profiler.profile_step", integer, "run.trace", "of an enabled profiler")),
       unneeded("flops_profiler.recompute_fwd_factor", real, flops), unneeded("flops_profiler.module_depth", integer, traced),
       unneeded("flops_profiler.top_modules", integer, traced), unneeded("flops_profiler.detailed", boolean, traced),
       unneeded("flops_profiler.output_file", text, in_folder)});
  return all;
}

std::vector<ForeignKey> checkpoint_keys() {
  std::vector<ForeignKey> all = {
      unneeded("checkpoint.tag_validation", text, "all ranks agree on a step before they save it"),
      unneeded("checkpoint.load_universal", boolean, "every checkpoint resumes on any number of ranks, at any stage"),
      with_auto(refused("checkpoint.use_node_local_storage", boolean, "false",
                        "a checkpoint is one folder that all ranks write, on a file system that all nodes see (run.output_dir); leave it "
                        "out, or set checkpoint.staging to a disk of the nodes"),
                "false", "the default of the Trainer's save_on_each_node"),
      unneeded("checkpoint.parallel_write.pipeline_stage", boolean, "every rank writes its own part"),
      unneeded("checkpoint.checkpoint_serialization", boolean, how_saved),
  };
  const auto add = [&](const std::vector<ForeignKey>& keys) { all.insert(all.end(), keys.begin(), keys.end()); };
  add(section_of(unneeded("checkpoint.writer", section, how_saved), {{"checkpoint.writer.type", text},
                                                                     {"checkpoint.writer.decoupled", boolean},
                                                                     {"checkpoint.writer.io_buffer_size", integer},
                                                                     {"checkpoint.writer.io_buffer_double", boolean},
                                                                     {"checkpoint.writer.show_statistics", boolean},
                                                                     {"checkpoint.writer.data_parallel", text},
                                                                     {"checkpoint.writer.io_multiplier", integer}}));
  add(section_of(unneeded("datastates_ckpt", section, how_saved), {{"datastates_ckpt.host_cache_size", real}}));
  all.push_back(
      open(gone_since("0.19.8", refused("nebula", section, "enabled",
                                        "Nebula's service is not used; set enabled to false, and checkpoint.every in the deck"))));
  all.push_back(part("nebula.enabled", boolean));
  return all;
}

std::vector<ForeignKey> axis_keys() {
  std::vector<ForeignKey> all = {
      with_words(mapped("tensor_parallel.autotp_size", integer, "mesh.tp", "0 is 1: none"), {{"0", "1"}}),
      mapped("tensor_parallel.tp.tp_size", integer, "mesh.tp"),
      mapped("tensor_parallel.tp_size", integer, "mesh.tp", "as some guides write it"),
      unneeded("tensor_parallel.tp.tp_grain_size", integer, tensor_cut),
      unneeded("tensor_parallel.dtype", text, "`precision.compute` is the compute type"),
      unneeded("tensor_parallel.tp_overlap_comm", boolean, "`zero.overlap_comm` applies to all collectives"),
      unneeded("tensor_parallel.partition_config", any, tensor_cut),
      unneeded("tensor_parallel.preset_model", text, tensor_cut),
      unneeded("tensor_parallel.injection_policy_tuple", any, tensor_cut),
      unneeded("tensor_parallel.keep_module_on_host", boolean, tensor_cut),
      with_auto(mapped("pipeline.stages", integer, "mesh.pp"), "1", "the pipeline module that is passed to DeepSpeed"),
      mapped("pipeline_parallel.pp_size", integer, "mesh.pp", "as some guides write it"),
      unneeded("pipeline.partition", text, "FLOPs and memory decide where layers are cut; `pipeline.layers` overrides that"),
      unneeded("pipeline.seed_layers", boolean, "an initial weight depends only on the seed, its tensor's name and its place"),
      together(mapped("pipeline.activation_checkpoint_interval", integer, "activation.every",
                      "with `activation.recompute` = \"full\"; 0 is none")),
      unneeded("pipeline.pipe_partitioned", boolean, "it cuts what stages send over tensor-parallel ranks"),
      unneeded("pipeline.grad_partitioned", boolean, "it cuts what stages send over tensor-parallel ranks"),
      mapped("sequence_parallel_size", integer, "mesh.cp", "Ulysses, as `context.method` = \"ulysses\" is"),
  };
  const auto experts = section_of(open(refused("expert_parallel", section, "enabled",
                                               "mesh.ep divides experts among ranks (mesh.ep=N on the command line for autoep_size = N); "
                                               "then set enabled to false or leave it out")),
                                  {{"expert_parallel.enabled", boolean},
                                   {"expert_parallel.autoep_size", integer},
                                   {"expert_parallel.expert_tensor_parallel_size", integer},
                                   {"expert_parallel.preset_model", text},
                                   {"expert_parallel.use_grouped_mm", boolean},
                                   {"expert_parallel.top_k", any},
                                   {"expert_parallel.score_func", text},
                                   {"expert_parallel.score_apply", text},
                                   {"expert_parallel.combine_impl", text},
                                   {"expert_parallel.routed_scaling_factor", any},
                                   {"expert_parallel.route_scale", real},
                                   {"expert_parallel.load_balance_coeff", any}});
  all.insert(all.end(), experts.begin(), experts.end());
  return all;
}

std::vector<ForeignKey> compile_keys() {
  std::vector<ForeignKey> all = {
      with_words(mapped("compile.offload_activation", boolean, "activation.offload", "true is \"host\""),
                 {{"true", "host"}, {"false", "none"}}),
      refused("compile.offload_opt_states", boolean, "false", "write zero_optimization.offload_optimizer with device cpu instead"),
      refused("compile.offload_parameters", boolean, "false", "write zero_optimization.offload_param with device cpu instead"),
  };
  for (const auto& [name, type] : std::vector<std::pair<std::string_view, ForeignType>>{{"compile.deepcompile", boolean},
                                                                                        {"compile.free_activation", boolean},
                                                                                        {"compile.free_activation_threshold", integer},
                                                                                        {"compile.offload_activation_pin_memory", boolean},
                                                                                        {"compile.double_buffer", boolean},
                                                                                        {"compile.symmetric_memory", boolean},
                                                                                        {"compile.debug_log", boolean},
                                                                                        {"compile.sync_before_reduce", boolean},
                                                                                        {"compile.sync_after_reduce", boolean},
                                                                                        {"compile.sync_before_allgather", boolean},
                                                                                        {"compile.sync_after_allgather", boolean},
                                                                                        {"compile.keep_int_input_tensors", boolean},
                                                                                        {"compile.keep_all_input_tensors", boolean},
                                                                                        {"compile.passes", list}})
    all.push_back(unneeded(name, type, compiled));
  return all;
}

std::vector<ForeignKey> tuning_keys() {
  std::vector<ForeignKey> all;
  const auto add = [&](const std::vector<ForeignKey>& keys) { all.insert(all.end(), keys.begin(), keys.end()); };
  add(section_of(gone_since("0.19.8", refused("elasticity", section, "enabled",
                                              "any number of ranks works with any batch, also after a resume: write train_batch_size and "
                                              "train_micro_batch_size_per_gpu, and set enabled to false")),
                 {{"elasticity.enabled", boolean},
                  {"elasticity.max_train_batch_size", integer},
                  {"elasticity.micro_batch_sizes", list},
                  {"elasticity.min_gpus", integer},
                  {"elasticity.max_gpus", integer},
                  {"elasticity.num_gpus_per_node", integer},
                  {"elasticity.model_parallel_size", integer},
                  {"elasticity.min_time", integer},
                  {"elasticity.prefer_larger_batch", boolean},
                  {"elasticity.ignore_non_elastic_batch_info", boolean},
                  {"elasticity.version", real}}));
  add(section_of(open(refused("autotuning", section, "enabled",
                              "there is no search by trial runs: `tessera plan` predicts what a deck needs; set enabled to false")),
                 {{"autotuning.enabled", boolean},
                  {"autotuning.fast", boolean},
                  {"autotuning.metric", text},
                  {"autotuning.start_profile_step", integer},
                  {"autotuning.end_profile_step", integer},
                  {"autotuning.tuner_type", text},
                  {"autotuning.tuner_early_stopping", integer},
                  {"autotuning.tuner_num_trials", integer},
                  {"autotuning.max_train_micro_batch_size_per_gpu", integer},
                  {"autotuning.num_tuning_micro_batch_sizes", integer},
                  {"autotuning.mp_size", integer},
                  {"autotuning.overwrite", boolean}}));
  return all;
}

std::vector<ForeignKey> feature_keys() {
  std::vector<ForeignKey> all = section_of(
      refused("hybrid_engine", section, "enabled",
              "training and generation are separate: a run trains, and `tessera generate` reads its checkpoints; set enabled to false"),
      {{"hybrid_engine.enabled", boolean},
       {"hybrid_engine.max_out_tokens", integer},
       {"hybrid_engine.inference_tp_size", integer},
       {"hybrid_engine.release_inference_cache", boolean},
       {"hybrid_engine.pin_parameters", boolean},
       {"hybrid_engine.tp_gather_partition_size", integer},
       {"hybrid_engine.enable_cuda_graph", boolean}});
  const auto add = [&](const std::vector<ForeignKey>& keys) { all.insert(all.end(), keys.begin(), keys.end()); };
  add(section_of(
      gone_since("0.19.8", refused("progressive_layer_drop", section, "enabled",
                                   "layers are not dropped in this version; set enabled to false or leave it out")),
      {{"progressive_layer_drop.enabled", boolean}, {"progressive_layer_drop.theta", real}, {"progressive_layer_drop.gamma", real}}));
  const auto gone = [](const ForeignKey& row) { return open(gone_since("0.19.8", row)); };
  add({
      gone(refused("eigenvalue", section, "enabled",
                   "it serves quantized training, which is not in this version; set enabled to false or leave it out")),
      gone(refused("sparse_attention", section, "", "attention is causal and dense in this version; leave it out")),
      open(refused(
          "data_efficiency", section, "enabled",
          "samples come in one random order, whole; set enabled to false or leave it out, and set batch.ramp for increasing lengths")),
      gone(refused("curriculum_learning", section, "enabled",
                   "DeepSpeed's curriculum drops the part of a sequence beyond the current length, and a ramp here drops nothing; set "
                   "enabled to false or leave it out, and give the lengths by steps in batch.ramp")),
      gone(refused("compression_training", section, "", "pruned and quantized training is not in this version; leave it out")),
      gone(refused("quantize_training", section, "enabled",
                   "quantized training is not in this version; set enabled to false or leave it out")),
      open(refused("weight_quantization", section, "", "quantized training is not in this version; leave it out")),
  });
  return all;
}

}  // namespace

std::vector<ForeignKey> deepspeed_other_keys() {
  std::vector<ForeignKey> all;
  for (const auto& some : {monitor_keys(), checkpoint_keys(), axis_keys(), compile_keys(), tuning_keys(), feature_keys()})
    all.insert(all.end(), some.begin(), some.end());
  return all;
}

}  // namespace tessera
