// THE table of DeepSpeed's keys, first half: batch, precision, ZeRO, offload, activations, optimizer, scheduler.
#include "deck/import/rows.hpp"

namespace tessera {
namespace {

constexpr std::string_view scaled =
    "the loss is scaled by 1 / (tokens of the global batch), and its gradients are summed in fp32 or exactly; no division before or after "
    "is needed";
constexpr std::string_view by_unit = "parameters are gathered by unit (embedding, a layer, the head), each in buckets";
constexpr std::string_view whole_weights =
    "every checkpoint opens as whole weights, and `tessera consolidate` writes them as safetensors in bf16 or fp32";
constexpr std::string_view masters = "master weights and moments are fp32 in this version; leave it out";
constexpr std::string_view planned_buffers = "the plan sets pieces and buffers of offloaded data";
constexpr std::string_view requests = "a request is sent as soon as the queue has space, and completions are always collected in parallel";
constexpr std::string_view host_adam = "an offloaded optimizer always runs as Tessera's own kernel on host cores";
constexpr std::string_view one_schedule = "it makes DeepSpeed's hooks faster or safer; here a step is a schedule made before the run";

const std::vector<std::pair<std::string_view, std::string_view>> dtype_words = {
    {"float32", "fp32"},        {"float", "fp32"}, {"torch.float32", "fp32"}, {"bfloat16", "bf16"},
    {"torch.bfloat16", "bf16"}, {"bfp16", "bf16"}, {"float16", "fp16"},       {"torch.float16", "fp16"}};
const std::vector<std::pair<std::string_view, std::string_view>> device_words = {{"cpu", "host"}};

using namespace rows;

std::vector<ForeignKey> batch_keys() {
  return {
      together(with_auto(mapped("train_batch_size", integer, "batch.global", "sequences; the product of the next two and the ranks"),
                         "that product", "the Trainer")),
      together(with_auto(mapped("train_micro_batch_size_per_gpu", integer, "batch.micro", "sequences"), "8",
                         "the default of the Trainer's per_device_train_batch_size")),
      together(with_auto(mapped("gradient_accumulation_steps", integer, "batch.global",
                                "micro-batches of a rank are batch.global / (batch.micro x ranks), rounded up"),
                         "1", "the default of the Trainer's gradient_accumulation_steps")),
      refused("managed_gradient_accumulation", boolean, "true", "a step always takes the whole batch; leave it out"),
      with_auto(mapped("gradient_clipping", real, "optimizer.gradient_clipping"), "1.0", "the default of the Trainer's max_grad_norm"),
      unneeded("prescale_gradients", boolean, scaled),
      unneeded("gradient_predivide_factor", real, scaled),
      refused("gradient_allreduce_op", text, "mean", "gradients are those of the mean over the global batch; leave it out"),
      with_words(mapped("communication_data_type", text, "precision.gradients", "sums are reduced in the type that they are stored in"),
                 dtype_words),
      unneeded("seq_parallel_communication_data_type", text, "sequence-parallel ranks (`mesh.cp`) exchange data in the compute type"),
      gone_since("0.19.8", refused("sparse_gradients", boolean, "false", "the embedding's gradient is dense; leave it out")),
      unneeded("disable_allgather", boolean, "updated parameters are always gathered, in buckets of zero.allgather_bucket_size"),
      mapped("steps_per_print", integer, "run.log_every"),
      together(
          mapped("wall_clock_breakdown", boolean, "run.breakdown_every", "true is every steps_per_print steps, which is 10 by default")),
      together(mapped("memory_breakdown", boolean, "run.breakdown_every",
                      "true as wall_clock_breakdown, whose table has the memory by part of a step; `tessera plan` has it before the run")),
      unneeded("dump_state", boolean, "`tessera deck print` shows every key with its value"),
      unneeded("dataloader_drop_last", boolean, "every batch is whole: it is filled up from the next epoch"),
      unneeded("zero_allow_untested_optimizer", boolean, "`optimizer.type` lists the optimizers, and all of them work with every stage"),
      unneeded("zero_force_ds_cpu_optimizer", boolean, host_adam),
      gone_since("0.19.8",
                 unneeded("graph_harvesting", boolean, "on a GPU a step becomes a CUDA graph automatically (`kernels.cuda_graph`)")),
      unneeded("disable_python_gc", boolean, "no Python runs during steps"),
      refused("use_data_before_expert_parallelism", boolean, "false",
              "ranks of mesh.ep are neighbours among the data-parallel ranks; leave it out"),
      unneeded("vocabulary_size", integer, "`model.vocab` is the size of the vocabulary"),
      unneeded("log_level", text, "a run logs its progress and what is wrong, at one level"),
      with_words(mapped("data_types.grad_accum_dtype", text, "precision.gradients"), dtype_words),
      refused("data_types.param_dtype", text, "", masters),
      refused("data_types.keep_in_fp32_modules", any, "auto",
              "kernels read the weights of every module in the type of `precision.compute`; leave it out"),
      refused("data_types.buffer_dtype", text, "", "`precision.compute` is the only type to choose; leave it out"),
      unneeded("timers.throughput.enabled", boolean, "metrics.jsonl holds the tokens a second of every step"),
      unneeded("timers.throughput.synchronized", boolean, "metrics.jsonl holds the tokens a second of every step"),
  };
}

std::vector<ForeignKey> precision_keys() {
  return {
      together(with_auto(mapped("fp16.enabled", boolean, "precision.compute", "true is \"fp16\", with a loss scale"), "true",
                         "in DeepSpeed the Trainer's fp16 decides")),
      unneeded("fp16.auto_cast", boolean, "inputs are ids of tokens"),
      together(mapped("fp16.loss_scale", any, "precision.loss_scale.fixed", "0 and \"dynamic\": the scale moves")),
      together(mapped("fp16.initial_scale_power", integer, "precision.loss_scale.initial_power")),
      together(
          mapped("fp16.initial_loss_scale", real, "precision.loss_scale.initial_power", "DeepSpeed itself reads only initial_scale_power")),
      together(mapped("fp16.loss_scale_window", integer, "precision.loss_scale.window")),
      together(mapped("fp16.hysteresis", integer, "precision.loss_scale.hysteresis")),
      together(mapped("fp16.consecutive_hysteresis", boolean, "precision.loss_scale.consecutive_hysteresis")),
      together(mapped("fp16.min_loss_scale", real, "precision.loss_scale.minimum")),
      refused("fp16.fp16_master_weights_and_grads", boolean, "false", masters),
      together(
          with_auto(mapped("bf16.enabled", boolean, "precision.compute",
                           "true is \"bf16\"; false, if no other type is enabled, is \"fp32\". `bfloat16` is another name of the section"),
                    "true", "in DeepSpeed the Trainer's bf16 decides")),
      unneeded("bf16.immediate_grad_update", boolean, "gradients are added to their sums by the products that make them, or right after"),
      unneeded("bf16.check_grad_overflow", boolean, "a loss or gradient that is not finite always ends the run, with status 8"),
      refused("bf16.bf16_master_weights_and_grads", boolean, "false", masters),
      together(mapped("bf16.bf16_optimizer_states", boolean, "optimizer.moments", "true is \"bf16\", here with stochastic rounding")),
      open(gone_since(
          "0.19.8",
          unless_given(
              "precision.compute",
              refused("amp", section, "enabled",
                      "Apex is not used; write \"bf16\": {\"enabled\": true}, or set precision.compute=bf16 on the command line")))),
      part("amp.enabled", boolean),
      together(mapped("torch_autocast.enabled", boolean, "precision.compute", "with dtype bfloat16: weights keep fp32 masters here too")),
      together(with_words(mapped("torch_autocast.dtype", text, "precision.compute"), dtype_words)),
      unneeded("torch_autocast.lower_precision_safe_modules", list,
               "`precision.compute` is the type of weights and activations everywhere"),
  };
}

std::vector<ForeignKey> zero_keys() {
  return {
      mapped("zero_optimization.stage", integer, "zero.stage"),
      mapped("zero_optimization.contiguous_gradients", boolean, "zero.contiguous_gradients"),
      mapped("zero_optimization.reduce_scatter", boolean, "zero.reduce_scatter"),
      mapped("zero_optimization.reduce_bucket_size", integer, "zero.reduce_bucket_size", "elements in both"),
      unneeded("zero_optimization.use_multi_rank_bucket_allreduce", boolean,
               "gradients are reduced by unit, in buckets of zero.reduce_bucket_size"),
      unneeded("zero_optimization.allgather_partitions", boolean, "updated parameters are always all-gathered"),
      mapped("zero_optimization.allgather_bucket_size", integer, "zero.allgather_bucket_size", "elements in both"),
      mapped("zero_optimization.overlap_comm", boolean, "zero.overlap_comm"),
      unneeded("zero_optimization.load_from_fp32_weights", boolean, "master weights are always restored in fp32"),
      unneeded("zero_optimization.elastic_checkpoint", boolean, "every checkpoint resumes at any number of ranks"),
      mapped("zero_optimization.sub_group_size", integer, "zero.sub_group_size", "elements in both"),
      mapped("zero_optimization.stage3_prefetch_bucket_size", integer, "zero.prefetch_bucket_size", "elements in both"),
      mapped("zero_optimization.stage3_param_persistence_threshold", integer, "zero.param_persistence_threshold", "elements in both"),
      refused("zero_optimization.stage3_model_persistence_threshold", integer, "9223372036854775807",
              "the sum of persistent parameters has no limit; lower stage3_param_persistence_threshold and leave this one out"),
      mapped("zero_optimization.stage3_max_live_parameters", integer, "zero.max_live_parameters", "elements in both"),
      mapped("zero_optimization.stage3_max_reuse_distance", integer, "zero.max_reuse_distance", "elements in both"),
      unneeded("zero_optimization.stage3_gather_16bit_weights_on_model_save", boolean, whole_weights),
      unneeded("zero_optimization.stage3_gather_fp16_weights_on_model_save", boolean, whole_weights),
      unneeded("zero_optimization.stage3_module_granularity_threshold", integer, by_unit),
      unneeded("zero_optimization.stage3_use_all_reduce_for_fetch_params", boolean, by_unit),
      unneeded("zero_optimization.stage3_allgather_sequential", boolean, by_unit),
      unneeded("zero_optimization.ignore_unused_parameters", boolean, "a step uses every parameter"),
      unneeded("zero_optimization.legacy_stage1", boolean, "there is only one stage 1"),
      unneeded("zero_optimization.round_robin_gradients", boolean,
               "every rank owns one contiguous slice of each unit, so there is nothing to distribute round-robin"),
      unneeded("zero_optimization.compute_grad_norm", boolean, "a step always knows the gradient's norm, and metrics.jsonl holds it"),
      unneeded("zero_optimization.parameter_alignment", boolean, "every tensor has an aligned place in the plan"),
      mapped("zero_optimization.zero_hpz_partition_size", integer, "zero.hpz_partition_size", "ranks"),
      mapped("zero_optimization.zero_quantized_weights", boolean, "zero.quantized_weights"),
      unneeded("zero_optimization.zero_quantized_nontrainable_weights", boolean,
               "tensors that `model.freeze` or `[lora]` freezes are stored in the compute type"),
      mapped("zero_optimization.zero_quantized_gradients", boolean, "zero.quantized_gradients"),
      gone_since("0.19.8", mapped("zero_optimization.zeropp_loco_param.err_beta", real, "zero.error_feedback.beta",
                                  "the section sets zero.error_feedback.enabled to true")),
      gone_since("0.19.8", mapped("zero_optimization.zeropp_loco_param.reset_T", integer, "zero.error_feedback.reset_interval",
                                  "in steps; DeepSpeed counts the tensors that it reduces")),
      gone_since("0.19.8", refused("zero_optimization.mics_shard_size", integer, "-1",
                                   "the deck needs the number of groups of shards: leave it out and set mesh.replicate to the "
                                   "data-parallel ranks divided by it")),
      gone_since("0.19.8", refused("zero_optimization.mics_hierarchical_params_gather", boolean, "false",
                                   "gathers stay in a group of shards (mesh.replicate), and host ranks share memory inside nodes "
                                   "(topology.hierarchical); leave it out")),
      unneeded("zero_optimization.memory_efficient_linear", boolean, "products keep no gathered weight for the backward pass"),
      unneeded("zero_optimization.pipeline_loading_checkpoint", boolean, "each rank reads only what it keeps"),
      unneeded("zero_optimization.override_module_apply", boolean, "each rank computes the initial weights that it keeps"),
      unneeded("zero_optimization.log_trace_cache_warnings", boolean, one_schedule),
      unneeded("zero_optimization.enable_sanity_checks", boolean, one_schedule),
      unneeded("zero_optimization.save_muon_momentum_buffer_in_memory", boolean, "momenta are stored with the optimizer's state"),
      unneeded("zero_optimization.leaf_module", section, by_unit),
      part("zero_optimization.leaf_module.classes", list),
      part("zero_optimization.leaf_module.names", list),
      part("zero_optimization.leaf_module.name_suffixes", list),
      refused("zero_optimization.zenflow", section, "",
              "ZenFlow updates a part of the parameters late, and that is not in this version; leave it out"),
      part("zero_optimization.zenflow.topk_ratio", real),
      part("zero_optimization.zenflow.select_strategy", any),
      part("zero_optimization.zenflow.select_interval", any),
      part("zero_optimization.zenflow.update_interval", any),
      part("zero_optimization.zenflow.overlap_step", boolean),
      part("zero_optimization.zenflow.offload", boolean),
      part("zero_optimization.zenflow.auto_ratio", real),
      part("zero_optimization.zenflow.full_warm_up_rounds", integer),
      part("zero_optimization.zenflow.pt_reserved_cores_perc", real),
      part("zero_optimization.zenflow.steps_per_epoch", integer),
  };
}

std::vector<ForeignKey> offload_keys() {
  return {
      with_words(mapped("zero_optimization.offload_optimizer.device", text, "zero.offload_optimizer.device", "cpu is \"host\""),
                 device_words),
      mapped("zero_optimization.offload_optimizer.nvme_path", text, "zero.offload_optimizer.nvme_path"),
      mapped("zero_optimization.offload_optimizer.buffer_count", integer, "zero.offload_optimizer.buffer_count"),
      mapped("zero_optimization.offload_optimizer.pin_memory", boolean, "zero.offload_optimizer.pin_memory"),
      mapped("zero_optimization.offload_optimizer.pipeline_read", boolean, "zero.offload_optimizer.pipeline_read"),
      mapped("zero_optimization.offload_optimizer.pipeline_write", boolean, "zero.offload_optimizer.pipeline_write"),
      mapped("zero_optimization.offload_optimizer.fast_init", boolean, "zero.offload_optimizer.fast_init"),
      mapped("zero_optimization.offload_optimizer.ratio", real, "zero.offload_optimizer.ratio"),
      refused("zero_optimization.offload_optimizer.super_offload", boolean, "false",
              "updates before the global norm is known, taken back if it clips, are not in this version; leave it out"),
      unneeded("zero_optimization.offload_optimizer.cpuadam_cores_perc", real, "the update uses a rank's threads (`run.threads`)"),
      with_words(mapped("zero_optimization.offload_param.device", text, "zero.offload_param.device", "cpu is \"host\""), device_words),
      mapped("zero_optimization.offload_param.nvme_path", text, "zero.offload_param.nvme_path"),
      unneeded("zero_optimization.offload_param.buffer_count", integer, planned_buffers),
      unneeded("zero_optimization.offload_param.buffer_size", integer, planned_buffers),
      mapped("zero_optimization.offload_param.max_in_cpu", integer, "zero.offload_param.max_in_cpu", "elements of a rank in both"),
      mapped("zero_optimization.offload_param.pin_memory", boolean, "zero.offload_param.pin_memory"),
      with_words(mapped("zero_optimization.cpu_offload", boolean, "zero.offload_optimizer.device", "true is \"host\""),
                 {{"true", "host"}, {"false", "none"}}),
      with_words(mapped("zero_optimization.cpu_offload_param", boolean, "zero.offload_param.device", "true is \"host\""),
                 {{"true", "host"}, {"false", "none"}}),
      mapped("zero_optimization.cpu_offload_use_pin_memory", boolean, "zero.offload_optimizer.pin_memory"),
      mapped("aio.block_size", integer, "nvme.block_size", "bytes in both"),
      mapped("aio.queue_depth", integer, "nvme.queue_depth"),
      mapped("aio.intra_op_parallelism", integer, "nvme.threads"),
      unneeded("aio.thread_count", integer, "DeepSpeed does not read it either: its name there is intra_op_parallelism"),
      unneeded("aio.single_submit", boolean, requests),
      unneeded("aio.overlap_events", boolean, requests),
      unneeded("aio.use_gds", boolean, "pieces pass through pinned memory of the host, where the optimizer runs"),
  };
}

std::vector<ForeignKey> activation_keys() {
  return {
      unneeded("activation_checkpointing.partition_activations", boolean,
               "it cuts kept activations over tensor-parallel ranks; the section itself becomes `activation.recompute` = \"full\""),
      together(mapped("activation_checkpointing.number_checkpoints", integer, "activation.every",
                      "model.layers / number_checkpoints, rounded up")),
      unneeded("activation_checkpointing.contiguous_memory_optimization", boolean, "every activation has its planned place in one arena"),
      with_words(mapped("activation_checkpointing.cpu_checkpointing", boolean, "activation.offload", "true is \"host\""),
                 {{"true", "host"}, {"false", "none"}}),
      unneeded("activation_checkpointing.synchronize_checkpoint_boundary", boolean, "tasks wait for the bytes that they touch"),
      unneeded("activation_checkpointing.profile", boolean, "`run.trace` times every task, also recomputed ones"),
  };
}

std::vector<ForeignKey> optimizer_keys() {
  constexpr std::string_view of_onebit = "it belongs to 0/1 Adam and 1-bit LAMB, which are not in this version; leave it out";
  constexpr std::string_view of_adam =
      "for Adam: false is \"adam\", whose weight decay is part of the gradient; for AdamW it is always true";
  return {
      together(mapped("optimizer.type", text, "optimizer.type",
                      "its name in lower case. Adam is \"adamw\", because DeepSpeed's decouples weight decay too, unless adam_w_mode = "
                      "false. Unknown types are refused")),
      unneeded("optimizer.legacy_fusion", boolean, "one kernel updates a whole shard"),
      together(
          with_auto(mapped("optimizer.params.lr", real, "optimizer.learning_rate"), "5e-5", "the default of the Trainer's learning_rate")),
      together(with_auto(mapped("optimizer.params.betas", list, "optimizer.beta1", "the second is `optimizer.beta2`"), "[0.9, 0.999]",
                         "the default of the Trainer's adam_beta1, adam_beta2")),
      together(with_auto(mapped("optimizer.params.eps", real, "optimizer.eps"), "1e-8", "the default of the Trainer's adam_epsilon")),
      together(with_auto(mapped("optimizer.params.weight_decay", real, "optimizer.weight_decay", "of matrices only"), "0.0",
                         "the default of the Trainer's weight_decay")),
      together(mapped("optimizer.params.bias_correction", boolean, "optimizer.bias_correction", "of Adam and LAMB")),
      refused("optimizer.params.amsgrad", boolean, "false", "AMSGrad is not in this version; leave it out"),
      together(mapped("optimizer.params.adam_w_mode", boolean, "optimizer.type", of_adam)),
      together(mapped("optimizer.params.adamw_mode", boolean, "optimizer.type", of_adam)),
      unneeded("optimizer.params.torch_adam", boolean, "it chooses between two implementations of one update"),
      unneeded("optimizer.params.set_grad_none", boolean, "gradients' memory is planned, and written before it is read"),
      refused("optimizer.params.fp32_optimizer_states", boolean, "true", "moments are fp32 in this version; leave it out"),
      refused("optimizer.params.max_grad_norm", real, "0", "the whole gradient is clipped: write gradient_clipping instead"),
      refused("optimizer.params.eps_inside_sqrt", boolean, "false", "eps is added to the square root; leave it out"),
      together(mapped("optimizer.params.max_coeff", real, "optimizer.max_trust_ratio", "of LAMB")),
      together(mapped("optimizer.params.min_coeff", real, "optimizer.min_trust_ratio", "of LAMB")),
      together(mapped("optimizer.params.freeze_step", integer, "optimizer.freeze_step", "of OneBitAdam")),
      unneeded("optimizer.params.cuda_aware", boolean, "ranks send data from where kernels made it, on a GPU by NCCL"),
      unneeded("optimizer.params.comm_backend_name", text, "GPU ranks communicate by NCCL, host ranks by shared memory and MPI"),
      refused("optimizer.params.var_freeze_step", integer, "", of_onebit),
      refused("optimizer.params.var_update_scaler", integer, "", of_onebit),
      refused("optimizer.params.local_step_scaler", integer, "", of_onebit),
      refused("optimizer.params.local_step_clipper", integer, "", of_onebit),
      refused("optimizer.params.coeff_beta", real, "", of_onebit),
      refused("optimizer.params.factor_max", real, "", of_onebit),
      refused("optimizer.params.factor_min", real, "", of_onebit),
      refused("optimizer.params.factor_threshold", real, "", of_onebit),
      together(mapped("optimizer.params.momentum", real, "optimizer.momentum", "of SGD and Muon")),
      together(mapped("optimizer.params.nesterov", boolean, "optimizer.nesterov", "of SGD")),
      refused("optimizer.params.dampening", real, "0", "momentum takes the whole gradient; leave it out"),
      together(mapped("optimizer.params.muon_lr", real, "optimizer.learning_rate",
                      "for the matrices of layers, instead of lr. Another `adam_lr` makes a table of `optimizer.groups`")),
      together(mapped("optimizer.params.adam_lr", real, "optimizer.learning_rate",
                      "for tensors that Muon does not update, instead of lr. Another `muon_lr` makes a table of `optimizer.groups`")),
      together(mapped("optimizer.params.ns_method", text, "optimizer.newton_schulz",
                      "for Muon: \"standard\" and \"gram\" are \"simple\", two orders of the same products")),
  };
}

std::vector<ForeignKey> scheduler_keys() {
  const std::vector<std::pair<std::string_view, std::string_view>> words = {{"warmuplr", "warmup_lr"},
                                                                            {"warmupdecaylr", "warmup_decay_lr"},
                                                                            {"warmupcosinelr", "warmup_cosine_lr"},
                                                                            {"cosine", "warmup_cosine_lr"},
                                                                            {"onecycle", "one_cycle"},
                                                                            {"lrrangetest", "lr_range_test"}};
  constexpr std::string_view instead = "it replaces the optimizer's lr there";
  const auto param = [](std::string_view name, ForeignType type, std::string_view ours, std::string_view says = "") {
    return together(mapped(name, type, ours, says));
  };
  return {
      together(
          with_words(mapped("scheduler.type", text, "learning_rate.schedule",
                            "WarmupLR is \"warmup_lr\", WarmupDecayLR \"warmup_decay_lr\", WarmupCosineLR, which guides also call Cosine, "
                            "\"warmup_cosine_lr\", OneCycle \"one_cycle\", LRRangeTest \"lr_range_test\""),
                     words)),
      unneeded("scheduler.params.last_batch_iteration", integer, "a resumed run continues at its checkpoint's step"),
      with_auto(param("scheduler.params.warmup_min_lr", real, "learning_rate.warmup_min_lr"), "0.0", "the Trainer"),
      with_auto(param("scheduler.params.warmup_max_lr", real, "optimizer.learning_rate", instead), "5e-5",
                "the default of the Trainer's learning_rate"),
      with_auto(param("scheduler.params.warmup_num_steps", integer, "learning_rate.warmup_steps"), "0",
                "the default of the Trainer's warmup_steps"),
      param("scheduler.params.warmup_type", text, "learning_rate.warmup_type", "a scheduler without it has DeepSpeed's default, \"log\""),
      with_auto(param("scheduler.params.total_num_steps", integer, "run.steps"), "1000", "the Trainer computes it from its epochs"),
      param("scheduler.params.warmup_min_ratio", real, "learning_rate.warmup_min_ratio"),
      param("scheduler.params.cos_min_ratio", real, "learning_rate.min_ratio"),
      param("scheduler.params.lr_range_test_min_lr", real, "optimizer.learning_rate", instead),
      param("scheduler.params.lr_range_test_step_size", integer, "learning_rate.lr_range_test.step_size"),
      param("scheduler.params.lr_range_test_step_rate", real, "learning_rate.lr_range_test.step_rate"),
      param("scheduler.params.lr_range_test_staircase", boolean, "learning_rate.lr_range_test.staircase"),
      param("scheduler.params.cycle_min_lr", real, "learning_rate.one_cycle.min_lr"),
      param("scheduler.params.cycle_max_lr", real, "optimizer.learning_rate", instead),
      param("scheduler.params.decay_lr_rate", real, "learning_rate.one_cycle.decay_lr_rate"),
      param("scheduler.params.cycle_first_step_size", integer, "learning_rate.one_cycle.first_step_size"),
      param("scheduler.params.cycle_second_step_size", integer, "learning_rate.one_cycle.second_step_size",
            "cycle_first_step_size if it is missing"),
      param("scheduler.params.cycle_first_stair_count", integer, "learning_rate.one_cycle.first_stair_count"),
      param("scheduler.params.cycle_second_stair_count", integer, "learning_rate.one_cycle.second_stair_count",
            "cycle_first_stair_count if it is missing"),
      param("scheduler.params.decay_step_size", integer, "learning_rate.one_cycle.decay_step_size"),
      param("scheduler.params.cycle_momentum", boolean, "learning_rate.one_cycle.cycle_momentum",
            "true, also if it is missing, replaces the optimizer's betas in both"),
      param("scheduler.params.cycle_min_mom", real, "learning_rate.one_cycle.min_mom"),
      param("scheduler.params.cycle_max_mom", real, "learning_rate.one_cycle.max_mom"),
      param("scheduler.params.decay_mom_rate", real, "learning_rate.one_cycle.decay_mom_rate"),
  };
}

}  // namespace

std::vector<ForeignKey> deepspeed_step_keys() {
  std::vector<ForeignKey> all;
  for (const auto& some :
       {batch_keys(), precision_keys(), zero_keys(), offload_keys(), activation_keys(), optimizer_keys(), scheduler_keys()})
    all.insert(all.end(), some.begin(), some.end());
  return all;
}

}  // namespace tessera
