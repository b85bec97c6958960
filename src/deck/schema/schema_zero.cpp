// Keys of the deck: what is sharded, offloaded, made again.
#include "deck/schema/schema_rows.hpp"

namespace tessera::schema {

namespace {
Refusals no_cpu() { return {{"cpu", "the host's memory is called \"host\" here"}}; }
}  // namespace

std::vector<Key> zero_keys() {
  return {
      // [zero]
      {KEY(zero.stage), .type = integer, .limits = {.least = 0, .most = 3},
       .beyond = "ZeRO has stages 0 to 3: 0 shards nothing, 1 the optimizer state, 2 also the gradients, 3 also the parameters",
       .help = "State that is sharded over ranks: 0 nothing, 1 optimizer state, 2 also gradients, 3 also parameters."},
      {KEY(zero.overlap_comm), .type = toggle, .automatic = Auto::kept,
       .help = "Runs gathers and reductions in parallel with compute. auto does so on GPUs and if a rank has a spare thread. On GPUs, or "
               "with true, a unit's gradient stays in memory until the next unit's is complete. The backward pass then waits for no "
               "reduction. false saves that memory."},
      {KEY(zero.contiguous_gradients), .type = boolean,
       .refused = {{"false", "gradients always lie in one contiguous buffer a unit; leave it at true"}},
       .help = "Gradients are stored in contiguous buffers; always true."},
      {KEY(zero.reduce_scatter), .type = boolean,
       .refused = {{"false", "stages 1, 2 and 3 always reduce-scatter gradients, and all-reduce is not in this version; leave it at true"}},
       .help = "Sharded gradients are summed by reduce-scatter; always true."},
      {KEY(zero.round_robin_gradients), .type = boolean,
       .refused = {{"true",
                    "every rank owns one contiguous slice of each unit, so there is nothing to distribute round-robin; leave it at false"}},
       .help = "Not in this version: shards are contiguous slices of units."},
      {KEY(zero.reduce_bucket_size), .type = elements, .unit = "elements", .limits = {.least = 1, .most = 1e18},
       .automatic = Auto::resolved,
       .help = "Most gradient elements that are reduced together; auto is width squared. On GPUs at least 2^31: shards are sent whole."},
      {KEY(zero.allgather_bucket_size), .type = elements, .unit = "elements", .limits = {.least = 1, .most = 1e18},
       .help = "Stages 1 and 2: most parameter elements that are gathered together after the update. On GPUs at least 2^31: shards are "
               "sent whole."},
      {KEY(zero.prefetch_bucket_size), .type = elements, .unit = "elements", .limits = {.least = 0, .most = 1e18},
       .automatic = Auto::resolved,
       .help = "Stage 3: parameter elements that may be gathered before their use, and at least what the next pass needs. auto is the "
               "largest unit of the model; 0: no prefetch."},
      {KEY(zero.param_persistence_threshold), .type = elements, .unit = "elements", .limits = {.least = 0, .most = 1e18},
       .automatic = Auto::resolved,
       .help = "Stage 3: parameters with at most this many elements stay whole on every rank; auto is 10 x width."},
      {KEY(zero.max_live_parameters), .type = elements, .unit = "elements", .limits = {.least = 0, .most = 1e18},
       .help = "Stage 3: gathered parameter elements that a rank may hold at one time. The needs of the current pass, and with prefetch of "
               "the next one, are always met."},
      {KEY(zero.max_reuse_distance), .type = elements, .unit = "elements", .limits = {.least = 0, .most = 1e18},
       .help = "Stage 3: gathered parameters stay if they are used again within this many parameter elements."},
      {KEY(zero.sub_group_size), .type = elements, .unit = "elements", .limits = {.least = 1, .most = 1e18},
       .help = "Most elements of a shard that the optimizer updates in one task."}};
}

std::vector<Key> zeropp_keys() {
  return {
      {KEY(zero.hpz_partition_size), .type = integer, .unit = "ranks", .limits = {.least = 1, .most = 1e7},
       .help =
           "Stage 3: number of ranks, for example of a node, that together hold one compute copy (ZeRO++ hpZ). Gathers stay among them, "
           "and updated shards come from the other groups once a step; 1: all ranks together hold one. A multiple of mesh.cp x mesh.ep."},
      {KEY(zero.quantized_weights), .type = boolean, .identity = true, .silent = true,
       .help = "Stage 3: compute copies are quantized blocks of 256 8-bit numbers and a scale, made from the master weights at each update "
               "(ZeRO++ qwZ). Gathers send the blocks, and every rank multiplies by the decoded values. Small parameters "
               "(param_persistence_threshold) and a tied embedding are not quantized."},
      {KEY(zero.quantized_gradients), .type = boolean, .identity = true, .silent = true,
       .help = "Stages 2 and 3, not in reproducible mode: gradients of a micro-batch are sent to their owners as quantized blocks (ZeRO++ "
               "qgZ). A block has 256 4-bit numbers and a scale; units are sent whole. With hpz_partition_size gradients are first summed "
               "inside its groups, in 8 bits, and the sums are sent between groups. Small parameters are reduced in fp32."},
      {KEY(zero.error_feedback.enabled), .type = boolean, .identity = true, .silent = true,
       .help =
           "With quantized_gradients: each rank keeps the rounding errors of the gradients that it sent, and adds them to the next ones "
           "(LoCo). That takes 1.02 bytes a parameter on every rank. Checkpoints do not store them: after a resume they start at zero."},
      {KEY(zero.error_feedback.beta), .type = real, .limits = {.least = 0, .below = 1}, .identity = true, .silent = true,
       .help = "Share of the kept error that stays from one gradient to the next; the rest is the last gradient's error. 0: only the last "
               "error counts."},
      {KEY(zero.error_feedback.reset_interval), .type = integer, .unit = "updates", .limits = {.least = 1, .most = 1e12}, .identity = true,
       .silent = true, .help = "Updates after which the kept errors start at zero again."}};
}

std::vector<Key> offload_keys() {
  return {
      {KEY(zero.offload_optimizer.device), .type = text, .refused = no_cpu(),
       .help = "Memory for master weights and moments if they are not with the kernels: host, or nvme, from which pieces pass through the "
               "host. The host's cores then run the optimizer (stages 1 to 3) and hold the gradients that it reads. In reproducible mode "
               "it changes no bit of a run."},
      {KEY(zero.offload_optimizer.ratio), .type = real, .limits = {.above = 0, .most = 1},
       .help = "With offload_optimizer: share of the parameters whose optimizer state is offloaded. The last layers go first, because "
               "their gradients are complete first. The kernels update the rest, unit by unit."},
      {KEY(zero.offload_optimizer.nvme_path), .type = text, .unit = "path",
       .help = "With nvme: folder on a local disk. Several folders, joined by colons, are written in rotation. Each rank creates a file "
               "there that nobody else can read and that disappears when the process ends."},
      {KEY(zero.offload_optimizer.buffer_count), .type = integer, .limits = {.least = 2, .most = 64},
       .help = "With offload_optimizer: pieces that may be copied between the memories at one time. A piece has at most "
               "zero.sub_group_size and at most 4194304 elements."},
      {KEY(zero.offload_optimizer.pin_memory), .type = boolean,
       .help = "With offload_optimizer on a GPU: data that is copied to and from the GPU lies in pinned memory, so that copies overlap "
               "with compute."},
      {KEY(zero.offload_optimizer.pipeline_read), .type = boolean,
       .help = "With nvme: reads the next piece while one is updated. false reads it between updates."},
      {KEY(zero.offload_optimizer.pipeline_write), .type = boolean,
       .help = "With nvme: writes a piece while the next is updated. false writes it between updates."},
      {KEY(zero.offload_optimizer.fast_init), .type = boolean,
       .help = "With nvme: does not write the moments of a new run, which are zeros. false writes them, so that a faulty disk shows before "
               "the first step."},
      {KEY(zero.offload_param.device), .type = text, .refused = no_cpu(),
       .help = "Memory for the parameters' shards that kernels read: host or nvme, from which each is copied up for its gathers (stage 3, "
               "together with offload_optimizer). Small tensors (zero.param_persistence_threshold) stay with the kernels. It changes no "
               "bit of a run."},
      {KEY(zero.offload_param.nvme_path), .type = text, .unit = "path",
       .help = "With nvme: folders, as for offload_optimizer. Empty: those of offload_optimizer."},
      {KEY(zero.offload_param.max_in_cpu), .type = elements, .unit = "elements", .limits = {.least = 0, .most = 1e18},
       .help = "With nvme: elements of a rank's shards that stay in host memory, the first units."},
      {KEY(zero.offload_param.pin_memory), .type = boolean,
       .help = "With offload_param on a GPU: the shards lie in pinned memory, so that copies overlap with compute."}};
}

std::vector<Key> activation_keys() {
  return {
      // [activation]
      {KEY(activation.recompute), .type = text, .automatic = Auto::kept,
       .help = "Activations that the forward pass drops and the backward pass recomputes. selective: the half of the bytes that costs the "
               "fewest FLOPs. full: all except the residual stream that enters a layer. auto: the fewest FLOPs with which the plan fits "
               "memory.device, or the memory that the ranks have; the start logs it. It changes no bit of a run."},
      {KEY(activation.every), .type = integer, .unit = "layers", .limits = {.least = 1, .most = 100000},
       .help = "With recompute = \"full\": number of layers between two stored residual streams."},
      {KEY(activation.keep), .type = texts,
       .help = "Values that recompute does not drop: values of a layer, for example \"attention.context\", or kinds of segments "
               "(\"attention\", \"mlp\"; \"block\" if they are parallel). A kind keeps everything that recompute = \"none\" keeps of it. "
               "Unknown names are refused with a list of all."},
      {KEY(activation.offload), .type = text, .refused = no_cpu(),
       .help =
           "Memory for the residual streams that the backward pass reads. none leaves them with the kernels. host and nvme (the folders of "
           "zero.offload_optimizer.nvme_path) store them, and they are copied back two passes before use. It changes no bit of a run."}};
}

}  // namespace tessera::schema
