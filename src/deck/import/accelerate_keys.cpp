// The table of a configuration of Hugging Face's Accelerate, as `accelerate config` asks for it, and what of it has a meaning together.
#include "deck/import/importer.hpp"
#include "deck/import/rows.hpp"

namespace tessera {
namespace {

using namespace rows;
using Rows = std::vector<ForeignKey>;

constexpr std::string_view of_launch = "the launcher places the ranks: `mpiexec -n N`, or srun; --ranks tells the import how many";
constexpr std::string_view gathered_by_unit =
    "parameters are gathered by unit (embedding, a layer, the head), and the step's schedule sets the time";
constexpr std::string_view compiled_before = "kernels are compiled with the program, and a step is a schedule made before the run";
constexpr std::string_view of_axes =
    "leave it out and give the axes on the command line: mesh.tp, mesh.cp, mesh.pp, mesh.ep, mesh.replicate";

Rows deepspeed_rows() {
  const std::vector<std::pair<std::string_view, std::string_view>> devices = {{"cpu", "host"}};
  return {
      mapped("deepspeed_config.zero_stage", integer, "zero.stage"),
      with_words(mapped("deepspeed_config.offload_optimizer_device", text, "zero.offload_optimizer.device", "cpu is \"host\""), devices),
      with_words(mapped("deepspeed_config.offload_param_device", text, "zero.offload_param.device", "cpu is \"host\""), devices),
      mapped("deepspeed_config.offload_optimizer_nvme_path", text, "zero.offload_optimizer.nvme_path"),
      mapped("deepspeed_config.offload_param_nvme_path", text, "zero.offload_param.nvme_path"),
      together(mapped("deepspeed_config.gradient_accumulation_steps", integer, "batch.global", "batch.micro x it x ranks")),
      mapped("deepspeed_config.gradient_clipping", real, "optimizer.gradient_clipping"),
      refused("deepspeed_config.deepspeed_config_file", text, "none",
              "import that file instead of this one: tessera deck import THAT_FILE; the keys beside it here belong to the launcher"),
      unneeded("deepspeed_config.zero3_init_flag", boolean, "each rank computes the initial weights that it keeps"),
      unneeded("deepspeed_config.zero3_save_16bit_model", boolean,
               "every checkpoint opens as whole weights, and `tessera consolidate` writes them as safetensors in bf16 or fp32"),
      unneeded("deepspeed_config.deepspeed_multinode_launcher", text, of_launch),
      unneeded("deepspeed_config.deepspeed_hostfile", text, of_launch),
      unneeded("deepspeed_config.deepspeed_exclusion_filter", text, of_launch),
      unneeded("deepspeed_config.deepspeed_inclusion_filter", text, of_launch),
      unneeded("deepspeed_config.deepspeed_moe_layer_cls_names", any, gathered_by_unit),
  };
}

Rows fsdp_rows() {
  Rows all = {
      together(mapped("fsdp_config.sharding_strategy", any, "zero.stage",
                      "FULL_SHARD is 3, also if it is missing; SHARD_GRAD_OP is 2, NO_SHARD 0; hybrid ones are refused")),
      together(mapped("fsdp_config.reshard_after_forward", any, "zero.stage", "false is 2")),
      together(mapped("fsdp_config.offload_params", boolean, "zero.offload_param.device", "true is \"host\", also for the optimizer")),
      with_words(mapped("fsdp_config.activation_checkpointing", boolean, "activation.recompute", "true is \"full\""),
                 {{"true", "full"}, {"false", "none"}}),
  };
  for (const std::string_view name : {"fsdp_config.auto_wrap_policy", "fsdp_config.transformer_layer_cls_to_wrap",
                                      "fsdp_config.min_num_params", "fsdp_config.backward_prefetch", "fsdp_config.backward_prefetch_policy",
                                      "fsdp_config.forward_prefetch", "fsdp_config.use_orig_params", "fsdp_config.sync_module_states",
                                      "fsdp_config.cpu_ram_efficient_loading", "fsdp_config.state_dict_type", "fsdp_config.version"})
    all.push_back(unneeded(name, any, gathered_by_unit));
  return all;
}

Rows other_rows() {
  Rows all = {
      with_words(mapped("mixed_precision", any, "precision.compute",
                        "\"no\" is fp32; fp8 is refused, because only products can be fp8 (precision.fp8)"),
                 {{"no", "fp32"}, {"false", "fp32"}}),
      with_words(mapped("use_cpu", boolean, "run.device", "true is \"host\""), {{"true", "host"}, {"false", "auto"}}),
      unneeded("distributed_type", text, "deepspeed_config and fsdp_config decide what is sharded"),
      open(refused("megatron_lm_config", section, "", of_axes)),
      open(refused("parallelism_config", section, "", of_axes)),
      open(refused("fp8_config", section, "", "set precision.fp8 to one of its recipes in the deck; leave it out")),
      unneeded("debug", boolean, "ranks compare their schedules before the first step"),
      unneeded("enable_cpu_affinity", boolean, "ranks of a node are bound to separate cores"),
  };
  for (const std::string_view name : {"compute_environment", "num_processes", "num_machines", "machine_rank", "main_process_ip",
                                      "main_process_port", "main_training_function", "rdzv_backend", "same_network", "gpu_ids", "tpu_env",
                                      "tpu_name", "tpu_zone", "tpu_use_cluster", "tpu_use_sudo", "commands", "command_file"})
    all.push_back(unneeded(name, any, of_launch));
  for (const std::string_view name : {"dynamo_config", "ipex_config", "mpirun_config"}) all.push_back(unneeded(name, any, compiled_before));
  all.push_back(unneeded("downcast_bf16", any, "`precision.compute` is the only type to choose"));
  return all;
}

}  // namespace

const ForeignTable& accelerate_table() {
  static const ForeignTable table = [] {
    ForeignTable all{
        .owner = "Accelerate", .command = "tessera deck import --keys", .rows = {}, .renamed = {{"fsdp_config.fsdp_", "fsdp_config."}}};
    for (const Rows& some : {deepspeed_rows(), fsdp_rows(), other_rows()}) all.rows.insert(all.rows.end(), some.begin(), some.end());
    return all;
  }();
  return table;
}

bool is_of_accelerate(const JsonNode& root) { return root.member("distributed_type") || root.member("compute_environment"); }

void import_accelerate_keys(Importer& in, bool trainer) {
  import_batch(in, {.all = "", .micro = "", .steps = "deepspeed_config.gradient_accumulation_steps", .default_micro = trainer ? 0 : 8},
               trainer);
  import_shards(in, {.words = "fsdp_config.sharding_strategy",
                     .reshard = "fsdp_config.reshard_after_forward",
                     .offload = "fsdp_config.offload_params",
                     .on = in.met("fsdp_config")});
  import_offload_defaults(in);
  if (trainer) return;
  in.assume("optimizer.learning_rate", "5e-5", "FILL IN: such a file has no optimizer");
  in.assume("precision.compute", "\"fp32\"", "the file asks for no other type");
}

}  // namespace tessera
