#include "deck/schema/hints.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "deck/schema/schema.hpp"

namespace tessera {
namespace {

constexpr std::string_view state_buffers = "the plan sets pieces and buffers of offloaded state; leave it out";
constexpr std::string_view not_needed_consolidate =
    "not needed: every checkpoint opens as whole weights, and `tessera consolidate` writes them as safetensors; leave it out";
constexpr std::string_view ramps = "a table [[batch.ramp]] for each phase: until_step, and global or sequence_length";
constexpr std::string_view accumulation = "accumulation steps = batch.global / (batch.micro x ranks), rounded up";

// Looked up by full path first, then by the last word.
constexpr HintWord aliases[] = {
    // DeepSpeed
    {"zero_optimization", "zero"},
    {"bf16", "precision.compute", "for example compute = \"bf16\""},
    {"fp16", "precision.compute", "for example compute = \"fp16\""},
    {"loss_scale", "precision.loss_scale.fixed"},
    {"initial_scale_power", "precision.loss_scale.initial_power"},
    {"initial_loss_scale", "precision.loss_scale.initial_power", "16 is a scale of 65536"},
    {"loss_scale_window", "precision.loss_scale.window"},
    {"hysteresis", "precision.loss_scale.hysteresis"},
    {"min_loss_scale", "precision.loss_scale.minimum"},
    {"train_batch_size", "batch.global"},
    {"train_micro_batch_size_per_gpu", "batch.micro"},
    {"gradient_accumulation_steps", "batch.global", accumulation},
    {"curriculum_learning", "batch.ramp", ramps},
    {"curriculum_seqlen", "batch.ramp", ramps},
    {"stage3_prefetch_bucket_size", "zero.prefetch_bucket_size"},
    {"stage3_param_persistence_threshold", "zero.param_persistence_threshold"},
    {"stage3_max_live_parameters", "zero.max_live_parameters"},
    {"stage3_max_reuse_distance", "zero.max_reuse_distance"},
    {"zero_hpz_partition_size", "zero.hpz_partition_size"},
    {"zero_quantized_weights", "zero.quantized_weights"},
    {"zero_quantized_gradients", "zero.quantized_gradients"},
    {"zeropp_loco_param", "zero.error_feedback"},
    {"err_beta", "zero.error_feedback.beta"},
    {"reset_T", "zero.error_feedback.reset_interval"},
    {"zero_quantized_nontrainable_weights", "", "tensors that model.freeze or [lora] freezes are stored in the compute type; leave it out"},
    {"stage3_gather_16bit_weights_on_model_save", "", not_needed_consolidate},
    {"stage3_gather_fp16_weights_on_model_save", "", not_needed_consolidate},
    {"gather_16bit_weights_on_model_save", "", not_needed_consolidate},
    {"stage3_model_persistence_threshold", "zero.param_persistence_threshold",
     "a limit on the sum of persistent parameters is not in this version"},
    {"model_persistence_threshold", "zero.param_persistence_threshold",
     "a limit on the sum of persistent parameters is not in this version"},
    {"stage3_module_granularity_threshold", "", "parameters are always gathered by unit (embedding, layer, head); leave it out"},
    {"module_granularity_threshold", "", "parameters are always gathered by unit (embedding, layer, head); leave it out"},
    {"allgather_partitions", "", "updated parameters are always all-gathered; leave it out"},
    {"load_from_fp32_weights", "", "master weights are always restored in fp32; leave it out"},
    {"elastic_checkpoint", "", "every checkpoint resumes at any number of ranks; leave it out"},
    {"ignore_unused_parameters", "", "the schedule uses every parameter; leave it out"},
    {"zero_allow_untested_optimizer", "", "optimizer.type lists the optimizers that work with ZeRO; leave it out"},
    {"mics_shard_size", "mesh.replicate", "the number of groups: data-parallel ranks divided by the shards of a group"},
    {"zenflow", "", "not in this version; leave it out"},
    {"cpu_offload", "zero.offload_optimizer.device", "write \"host\""},
    {"cpu_offload_param", "zero.offload_param.device", "write \"host\""},
    {"nvme_path", "zero.offload_optimizer.nvme_path"},
    {"buffer_size", "", state_buffers},
    {"cpu_offload_use_pin_memory", "zero.offload_optimizer.pin_memory"},
    {"aio", "nvme"},
    {"intra_op_parallelism", "nvme.threads"},
    {"thread_count", "nvme.threads"},
    {"single_submit", "", "a request is sent as soon as the queue has space; leave it out"},
    {"overlap_events", "", "completions are always collected in parallel; leave it out"},
    {"use_gds", "", "pieces pass through pinned host memory, where the optimizer runs; leave it out"},
    {"activation_checkpointing", "activation"},
    {"gradient_checkpointing", "activation.recompute", "write recompute = \"full\""},
    {"recompute_granularity", "activation.recompute"},
    {"recompute_num_layers", "activation.every"},
    {"number_checkpoints", "activation.every", "model.layers / number_checkpoints, with recompute = \"full\""},
    {"partition_activations", "", "tensor-parallel ranks (mesh.tp) already share the stream between products; leave it out"},
    {"contiguous_memory_optimization", "", "every activation has its planned place in one arena; leave it out"},
    {"cpu_checkpointing", "activation.offload", "write \"host\""},
    {"activation.profile", "", "`run.trace` times every task, also recomputed ones; leave it out"},
    {"recompute_method", "activation.recompute",
     "\"full\" treats all layers alike; \"auto\" recomputes more in a first block of layers than in the others"},
    {"recompute_modules", "activation.keep", "it names values that are not recomputed"},
    {"selective_ac_option", "activation.recompute", "\"selective\", or \"auto\" for a memory limit"},
    {"activation_memory_budget", "memory.device", "in bytes, with activation.recompute = \"auto\""},
    {"trace_step", "run.trace", "run.trace = 12, or a range: \"3..5\""},
    {"host_limit", "memory.host", "its new name"},
    {"pinned_memory", "memory.pinned"},
    {"gpu_memory", "memory.device"},
    {"device_memory", "memory.device"},
    {"gpu_memory_limit", "memory.device"},
    {"synchronize_checkpoint_boundary", "", "tasks wait for the bytes that they touch; leave it out"},
    {"tensor_parallel", "mesh.tp"},
    {"pipeline_parallel", "mesh.pp"},
    {"tp_size", "mesh.tp"},
    {"pp_size", "mesh.pp"},
    {"tensor_model_parallel_size", "mesh.tp"},
    {"pipeline_model_parallel_size", "mesh.pp"},
    {"virtual_pipeline_model_parallel_size", "pipeline.virtual_stages", "with pipeline.schedule = \"interleaved\""},
    {"num_virtual_stages_per_pipeline_rank", "pipeline.virtual_stages", "with pipeline.schedule = \"interleaved\""},
    {"num_layers_per_virtual_pipeline_stage", "pipeline.layers", "of each run, with pipeline.schedule = \"interleaved\""},
    {"pipeline_parallel_schedule", "pipeline.schedule"},
    {"context_parallel_size", "mesh.cp"},
    {"sequence_parallel_size", "mesh.cp"},
    {"sp_size", "mesh.cp"},
    {"expert_model_parallel_size", "mesh.ep"},
    {"scheduler", "learning_rate"},
    {"learning_rate.type", "learning_rate.schedule"},
    {"warmup_num_steps", "learning_rate.warmup_steps"},
    {"total_num_steps", "run.steps"},
    {"warmup_max_lr", "optimizer.learning_rate"},
    {"cos_min_ratio", "learning_rate.min_ratio"},
    {"cycle_min_lr", "learning_rate.one_cycle.min_lr"},
    {"cycle_max_lr", "optimizer.learning_rate"},
    {"cycle_first_step_size", "learning_rate.one_cycle.first_step_size"},
    {"cycle_second_step_size", "learning_rate.one_cycle.second_step_size"},
    {"cycle_first_stair_count", "learning_rate.one_cycle.first_stair_count"},
    {"cycle_second_stair_count", "learning_rate.one_cycle.second_stair_count"},
    {"cycle_min_mom", "learning_rate.one_cycle.min_mom"},
    {"cycle_max_mom", "learning_rate.one_cycle.max_mom"},
    {"lr_range_test_min_lr", "optimizer.learning_rate"},
    {"lr_range_test_step_size", "learning_rate.lr_range_test.step_size"},
    {"lr_range_test_step_rate", "learning_rate.lr_range_test.step_rate"},
    {"lr_range_test_staircase", "learning_rate.lr_range_test.staircase"},
    {"steps_per_print", "run.log_every"},
    {"wall_clock_breakdown", "run.breakdown_every", "the steps between two tables of step times"},
    {"communication_data_type", "precision.gradients", "with run.reproducible gradients are reduced as exact integers in any case"},
    {"data_types", "precision"},
    {"grad_accum_dtype", "precision.gradients"},
    {"fp32_allreduce", "precision.gradients"},
    {"accumulate_allreduce_grads_in_fp32", "precision.gradients"},
    {"grad_reduce_in_bf16", "precision.gradients"},
    {"mixed_precision_reduce", "precision.gradients"},
    {"prescale_gradients", "", "gradients are averaged over the global batch; leave it out"},
    // Hugging Face
    {"hidden_size", "model.width"},
    {"num_hidden_layers", "model.layers"},
    {"num_attention_heads", "model.heads"},
    {"num_key_value_heads", "model.kv_heads"},
    {"intermediate_size", "model.ff_width"},
    {"vocab_size", "model.vocab"},
    {"rms_norm_eps", "model.norm_eps"},
    {"layer_norm_epsilon", "model.norm_eps"},
    {"initializer_range", "model.init_std"},
    {"tie_word_embeddings", "model.tied"},
    {"attention_bias", "model.qkv_bias"},
    {"factor", "model.rope_factor"},
    {"low_freq_factor", "model.rope_low_freq_factor"},
    {"high_freq_factor", "model.rope_high_freq_factor"},
    {"original_max_position_embeddings", "model.rope_original_context"},
    {"beta_fast", "model.rope_beta_fast"},
    {"beta_slow", "model.rope_beta_slow"},
    {"attention_factor", "model.rope_attention_factor"},
    {"partial_rotary_factor", "model.rotary_fraction"},
    {"max_position_embeddings", "batch.sequence_length"},
    {"n_positions", "model.learned_positions"},
    {"n_embd", "model.width"},
    {"n_layer", "model.layers"},
    {"n_head", "model.heads"},
    {"n_inner", "model.ff_width"},
    {"per_device_train_batch_size", "batch.micro"},
    {"adam_beta1", "optimizer.beta1"},
    {"adam_beta2", "optimizer.beta2"},
    {"adam_epsilon", "optimizer.eps"},
    {"betas", "optimizer.beta1", "and optimizer.beta2, one number each"},
    {"max_grad_norm", "optimizer.gradient_clipping"},
    {"lr_scheduler_type", "learning_rate.schedule"},
    {"max_steps", "run.steps"},
    {"num_train_epochs", "run.epochs"},
    {"num_epochs", "run.epochs"},
    {"max_epochs", "run.epochs"},
    {"save_steps", "checkpoint.every"},
    {"save_total_limit", "checkpoint.keep"},
    {"eval_steps", "evaluate.every"},
    {"logging_steps", "run.log_every"},
    {"resume_from_checkpoint", "run.resume"},
    // llm.c, nanoGPT, Megatron-LM, torchtitan
    {"lr", "optimizer.learning_rate"},
    {"max_lr", "optimizer.learning_rate"},
    {"min_lr", "learning_rate.min_ratio", "as a share of the peak"},
    {"warmup_iters", "learning_rate.warmup_steps"},
    {"lr_warmup_iters", "learning_rate.warmup_steps"},
    {"lr_decay_iters", "learning_rate.decay_steps"},
    {"lr_wsd_decay_iters", "learning_rate.decay_steps"},
    {"lr_wsd_decay_style", "learning_rate.decay_type"},
    {"max_iters", "run.steps"},
    {"train_iters", "run.steps"},
    {"training_steps", "run.steps"},
    {"num_iterations", "run.steps"},
    {"n_layer", "model.layers"},
    {"n_layers", "model.layers"},
    {"num_layers", "model.layers"},
    {"n_embd", "model.width"},
    {"d_model", "model.width"},
    {"channels", "model.width"},
    {"n_head", "model.heads"},
    {"n_heads", "model.heads"},
    {"num_heads", "model.heads"},
    {"n_kv_head", "model.kv_heads"},
    {"n_kv_heads", "model.kv_heads"},
    {"num_query_groups", "model.kv_heads"},
    {"d_ff", "model.ff_width"},
    {"ffn_hidden_size", "model.ff_width"},
    {"num_local_experts", "model.experts"},
    {"num_experts", "model.experts"},
    {"num_experts_per_tok", "model.experts_per_token"},
    {"moe_router_topk", "model.experts_per_token"},
    {"top_k", "model.experts_per_token"},
    {"moe_intermediate_size", "model.expert_ff_width"},
    {"moe_ffn_hidden_size", "model.expert_ff_width"},
    {"shared_expert_intermediate_size", "model.shared_ff_width"},
    {"first_k_dense_replace", "model.dense_layers"},
    {"decoder_sparse_step", "model.kinds"},
    {"mlp_only_layers", "model.kinds"},
    {"moe_layer_freq", "model.kinds"},
    {"routed_scaling_factor", "model.router_scale"},
    {"moe_router_topk_scaling_factor", "model.router_scale"},
    {"scoring_func", "model.router_scores"},
    {"moe_router_score_function", "model.router_scores"},
    {"n_group", "model.expert_groups"},
    {"moe_router_num_groups", "model.expert_groups"},
    {"topk_group", "model.groups_per_token"},
    {"moe_router_group_topk", "model.groups_per_token"},
    {"moe_shared_expert_intermediate_size", "model.shared_ff_width"},
    {"norm_topk_prob", "model.normalize_top_k"},
    {"router_aux_loss_coef", "model.router_aux_loss"},
    {"moe_aux_loss_coeff", "model.router_aux_loss"},
    {"moe_z_loss_coeff", "model.router_z_loss"},
    {"moe_router_enable_expert_bias", "model.router_balance"},
    {"moe_router_bias_update_rate", "model.router_bias_rate"},
    {"moe_expert_capacity_factor", "experts.capacity_factor"},
    {"padded_vocab_size", "model.vocab"},
    {"block_size", "batch.sequence_length"},
    {"seq_len", "batch.sequence_length"},
    {"seq_length", "batch.sequence_length"},
    {"max_seq_len", "batch.sequence_length"},
    {"global_batch_size", "batch.global"},
    {"rampup_batch_size", "batch.ramp", ramps},
    {"micro_batch_size", "batch.micro"},
    {"local_batch_size", "batch.micro"},
    {"grad_clip", "optimizer.gradient_clipping"},
    {"clip_grad", "optimizer.gradient_clipping"},
    {"dtype", "precision.compute"},
    {"out_dir", "run.output_dir"},
    {"save_interval", "checkpoint.every"},
    {"eval_interval", "evaluate.every"},
    {"eval_iters", "evaluate.batches"},
    {"val_loss_every", "evaluate.every"},
    {"world_size", "mesh.dp"},
};

std::string_view last_word(std::string_view name) { return name.substr(name.rfind('.') + 1); }
std::string_view section_of(std::string_view name) { return name.find('.') == name.npos ? "" : name.substr(0, name.rfind('.')); }

const HintWord* find_alias(std::string_view word) {
  auto it = std::find_if(std::begin(aliases), std::end(aliases), [&](const HintWord& a) { return a.theirs == word; });
  return it == std::end(aliases) ? nullptr : it;
}

/// The most edits that a word of so many letters may be away.
int near_enough(std::size_t length) { return std::max(1, static_cast<int>(length) / 3); }

std::string show(std::string_view name) { return is_section(name) ? fmt::format("[{}]", name) : std::string(name); }

Hint from_alias(const HintWord& alias, std::string_view what) {
  if (alias.ours.empty()) return {fmt::format("is not a {} here: {}", what, alias.note), ""};
  return {fmt::format("is not a {} here; use {}{}", what, show(alias.ours), alias.note.empty() ? "" : fmt::format(" ({})", alias.note)),
          std::string(alias.ours)};
}

}  // namespace

std::span<const HintWord> hint_words() { return aliases; }

int edit_distance(std::string_view a, std::string_view b, int most) {
  const auto beyond = [&](std::size_t more, std::size_t less) { return more > less && more - less > static_cast<std::size_t>(most); };
  if (beyond(a.size(), b.size()) || beyond(b.size(), a.size())) return most + 1;
  const std::size_t width = b.size() + 1;
  std::vector<int> rows(3 * width);
  int *before = rows.data(), *last = before + width, *row = last + width;
  std::iota(last, last + width, 0);
  int least_of_last = 0;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    int least = row[0] = static_cast<int>(i);
    for (std::size_t j = 1; j < width; ++j) {
      int d = last[j - 1] + (a[i - 1] != b[j - 1]);
      if (last[j] < d) d = last[j] + 1;
      if (row[j - 1] < d) d = row[j - 1] + 1;
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && before[j - 2] < d) d = before[j - 2] + 1;
      row[j] = d;
      if (d < least) least = d;
    }
    // No later row is below the two before it.
    if (least > most && least_of_last > most) return most + 1;
    least_of_last = least;
    int* const free = before;
    before = last, last = row, row = free;
  }
  return last[b.size()];
}

std::string_view nearest(std::string_view word, std::span<const std::string_view> words) {
  std::string_view best;
  int least = 0;
  for (std::string_view w : words) {
    const int near = near_enough(std::max(word.size(), w.size())), most = best.empty() ? near : std::min(near, least - 1);
    if (most < 0) break;
    if (const int d = edit_distance(word, w, most); d <= most) best = w, least = d;
  }
  return best;
}

Hint hint_for_key(std::string_view name) {
  std::string_view leaf = last_word(name);
  if (const HintWord* alias = find_alias(name)) return from_alias(*alias, "key");
  // The keys of DeepSpeed's offload sections have words that mean something else elsewhere (ratio, buffer_size).
  const auto may_mean = [&](const Key& key) { return key.section() == section_of(name) && edit_distance(leaf, key.leaf(), 2) <= 2; };
  if (section_of(name).starts_with("zero.offload_") && std::ranges::none_of(deck_keys(), may_mean)) {
    return {fmt::format("is not a key here: {}", state_buffers), ""};
  }
  // The same word in another section is a better guess than any other word: [run] learning_rate means optimizer.learning_rate.
  for (const Key& key : deck_keys()) {
    if (key.leaf() == leaf) return {fmt::format("is not a key; use {}", key.name), std::string(key.name)};
  }
  if (const HintWord* alias = find_alias(leaf)) return from_alias(*alias, "key");
  const Key* best = nullptr;
  int least = 0;
  for (const Key& key : deck_keys()) {
    // A misspelt word in the right section, or a misspelt path.
    const int near = near_enough(std::max(leaf.size(), key.leaf().size())), most = best ? std::min(near, least - 1) : near;
    const int elsewhere = key.section() == section_of(name) ? 0 : 1;
    if (most < 0) break;
    int d = edit_distance(leaf, key.leaf(), most) + elsewhere;
    if (d > 0) d = std::min(d, edit_distance(name, key.name, most));
    if (d <= most) best = &key, least = d;
  }
  if (best) return {fmt::format("is not a key; did you mean {}?", best->name), std::string(best->name)};
  std::string list;
  for (const Key& key : deck_keys()) {
    if (key.section() == section_of(name)) list += (list.empty() ? "" : ", ") + std::string(key.leaf());
  }
  if (!list.empty()) return {fmt::format("is not a key; [{}] has {}", section_of(name), list), ""};
  return {"is not a key, and none has a name near it; `tessera deck reference` lists them all", ""};
}

Hint hint_for_section(std::string_view name) {
  if (const HintWord* alias = find_alias(name)) return from_alias(*alias, "section");
  if (const HintWord* alias = find_alias(last_word(name))) return from_alias(*alias, "section");
  std::vector<std::string_view> sections;
  for (const Key& key : deck_keys()) {
    if (sections.empty() || sections.back() != key.section()) sections.push_back(key.section());
  }
  if (std::string_view near = nearest(name, sections); !near.empty()) {
    return {fmt::format("is not a section; did you mean [{}]?", near), std::string(near)};
  }
  std::string list;
  for (auto s : sections) list += fmt::format("{}[{}]", list.empty() ? "" : " ", s);
  return {fmt::format("is not a section; the sections are {}", list), ""};
}

}  // namespace tessera
