// Keys of the deck: what is sharded, offloaded, made again.
#include "deck/schema/schema_rows.hpp"

namespace tessera::schema {

std::vector<Key> zero_keys() {
  const Refusals no_cpu = {{"cpu", "the host's memory is called \"host\" here"}};
  return {
      // [zero]
      {KEY(zero.stage), .type = integer, .limits = {.least = 0, .most = 3}, .fallback = "0",
       .beyond = "ZeRO has stages 0 to 3: 0 shards nothing, 1 the optimizer state, 2 also the gradients, 3 also the parameters",
       .help = "What is sharded over ranks: 0 nothing, 1 optimizer state, 2 also gradients, 3 also parameters."},
      {KEY(zero.overlap_comm), .type = toggle, .fallback = "\"auto\"", .automatic = Auto::kept,
       .help = "Runs gathers and reductions beside compute; auto does so on GPUs and where a rank has a thread to spare. On GPUs, or with "
               "true, "
               "a unit's gradient keeps its memory until that of the next is complete, so that the backward pass waits for no reduction; "
               "false saves that memory."},
      {KEY(zero.contiguous_gradients), .type = boolean, .fallback = "true",
       .refused = {{"false", "gradients always stand in one contiguous buffer a unit; leave it at true"}},
       .help = "Gradients stand in contiguous buffers; always so."},
      {KEY(zero.reduce_scatter), .type = boolean, .fallback = "true",
       .refused = {{"false",
                    "stages 1, 2 and 3 always reduce-scatter gradients, all-reduce in its place is not in this version; leave it at true"}},
       .help = "Sharded gradients are summed by reduce-scatter; always so."},
      {KEY(zero.round_robin_gradients), .type = boolean, .fallback = "false",
       .refused = {{"true", "every rank owns one contiguous slice of each unit, there is nothing to deal out in turns; leave it at false"}},
       .help = "Not in this version: shards are contiguous slices of units."},
      {KEY(zero.reduce_bucket_size), .type = elements, .unit = "elements", .limits = {.least = 1, .most = 1e18}, .fallback = "500000000",
       .automatic = Auto::resolved,
       .help = "Gradient elements that are reduced together at most; auto is width squared. On GPUs at least 2^31: shards travel whole."},
      {KEY(zero.allgather_bucket_size), .type = elements, .unit = "elements", .limits = {.least = 1, .most = 1e18}, .fallback = "500000000",
       .help = "Parameter elements that are gathered together after the update at most, stages 1 and 2. On GPUs at least 2^31: shards "
               "travel whole."},
      {KEY(zero.prefetch_bucket_size), .type = elements, .unit = "elements", .limits = {.least = 0, .most = 1e18}, .fallback = "\"auto\"",
       .automatic = Auto::resolved,
       .help = "Stage 3: parameter elements that may be gathered ahead of their use, and at least what the next pass needs; auto is the "
               "largest unit of the model; 0: no prefetch."},
      {KEY(zero.param_persistence_threshold), .type = elements, .unit = "elements", .limits = {.least = 0, .most = 1e18},
       .fallback = "100000", .automatic = Auto::resolved,
       .help = "Stage 3: parameters with at most so many elements stay whole on every rank; auto is 10 x width."},
      {KEY(zero.max_live_parameters), .type = elements, .unit = "elements", .limits = {.least = 0, .most = 1e18}, .fallback = "1000000000",
       .help = "Stage 3: gathered parameter elements that a rank may hold at one time. What a pass needs is always held, and with prefetch "
               "what "
               "the next one needs beside it."},
      {KEY(zero.max_reuse_distance), .type = elements, .unit = "elements", .limits = {.least = 0, .most = 1e18}, .fallback = "1000000000",
       .help = "Stage 3: gathered parameters stay if they are used again within this many parameter elements."},
      {KEY(zero.sub_group_size), .type = elements, .unit = "elements", .limits = {.least = 1, .most = 1e18}, .fallback = "1000000000",
       .help = "Elements of a shard that the optimizer updates in one task at most."},
      {KEY(zero.hpz_partition_size), .type = integer, .unit = "ranks", .limits = {.least = 1, .most = 1e7}, .fallback = "1",
       .help =
           "Stage 3: ranks that hold a compute copy between them, of a node for example (ZeRO++ hpZ). Gathers stay among them, and updated "
           "shards come from the other groups once a step; 1: all ranks hold one. A multiple of mesh.cp x mesh.ep."},
      {KEY(zero.quantized_weights), .type = boolean, .fallback = "false", .identity = true, .silent = true,
       .help = "Stage 3: compute copies are blocks of 256 codes of 8 bits and a scale, made of the master weights at each update (ZeRO++ "
               "qwZ). Gathers move them, and every rank multiplies by what it decodes. Small parameters "
               "(param_persistence_threshold) and a tied embedding stay as they are."},
      {KEY(zero.quantized_gradients), .type = boolean, .fallback = "false", .identity = true, .silent = true,
       .help =
           "Stages 2 and 3, not in reproducible mode: gradients of a micro-batch travel to their owners as blocks of 256 codes of 4 bits "
           "and a scale, whole units at a time (ZeRO++ qgZ). With hpz_partition_size they meet in its groups first, in 8 bits, and cross "
           "groups as sums. Small parameters meet in fp32."},
      {KEY(zero.error_feedback.enabled), .type = boolean, .fallback = "false", .identity = true, .silent = true,
       .help =
           "With quantized_gradients: each rank keeps what rounding took from the gradients that it sent, and adds it to the next that it "
           "sends (LoCo). That takes 1.02 bytes a parameter on every rank. No checkpoint holds it: after a resume it begins at zero."},
      {KEY(zero.error_feedback.beta), .type = real, .limits = {.least = 0, .below = 1}, .fallback = "0.8", .identity = true, .silent = true,
       .help = "Share of an error that stays from one gradient to the next; the rest is what the last one left. 0: that alone."},
      {KEY(zero.error_feedback.reset_interval), .type = integer, .unit = "updates", .limits = {.least = 1, .most = 1e12},
       .fallback = "1024", .identity = true, .silent = true, .help = "Updates after which errors begin at zero again."},
      {KEY(zero.offload_optimizer.device), .type = text, .fallback = "\"none\"", .refused = no_cpu,
       .help =
           "Where master weights and moments lie when not with the kernels: host, or nvme, from where pieces pass through the host. Its "
           "cores then run the optimizer (stages 1 to 3), and the gradients that it reads lie on the host. No bit of a run in "
           "reproducible mode depends on it."},
      {KEY(zero.offload_optimizer.ratio), .type = real, .limits = {.above = 0, .most = 1}, .fallback = "1.0",
       .help = "With offload_optimizer: share of the parameters whose optimizer state leaves the kernels' memory, the last layers first, "
               "whose gradients are there first; the rest is updated by the kernels, unit by unit."},
      {KEY(zero.offload_optimizer.nvme_path), .type = text, .unit = "path", .fallback = "\"\"",
       .help = "With nvme: a folder on a local disk; several, joined by colons, are written in turn. Each rank makes a file there that "
               "nobody else can read and that is gone when the process is."},
      {KEY(zero.offload_optimizer.buffer_count), .type = integer, .limits = {.least = 2, .most = 64}, .fallback = "4",
       .help = "With offload_optimizer: pieces that may be on their way between the memories at a time, of at most zero.sub_group_size "
               "elements and 4194304."},
      {KEY(zero.offload_optimizer.pin_memory), .type = boolean, .fallback = "true",
       .help =
           "With offload_optimizer on a GPU: what is copied to and from it lies in pinned memory, which copies beside other work need."},
      {KEY(zero.offload_optimizer.pipeline_read), .type = boolean, .fallback = "true",
       .help = "With nvme: the next piece is read while one is updated; false reads it in between."},
      {KEY(zero.offload_optimizer.pipeline_write), .type = boolean, .fallback = "true",
       .help = "With nvme: a piece is written while the next is updated; false writes it in between."},
      {KEY(zero.offload_optimizer.fast_init), .type = boolean, .fallback = "true",
       .help = "With nvme: moments of a new run are zeros that need not be written; false writes them, so that a disk shows its faults "
               "before the first step."},
      {KEY(zero.offload_param.device), .type = text, .fallback = "\"none\"", .refused = no_cpu,
       .help =
           "Where the shards of the parameters that kernels read lie when not with the kernels: host or nvme, from where each comes up "
           "for its gathers (stage 3, beside offload_optimizer). Small tensors (zero.param_persistence_threshold) stay. No bit of a run "
           "depends on it."},
      {KEY(zero.offload_param.nvme_path), .type = text, .unit = "path", .fallback = "\"\"",
       .help = "With nvme: folders, as for offload_optimizer, whose own serve where this is empty."},
      {KEY(zero.offload_param.max_in_cpu), .type = elements, .unit = "elements", .limits = {.least = 0, .most = 1e18}, .fallback = "0",
       .help = "With nvme: elements of a rank's shards that stay in host memory, the first units."},
      {KEY(zero.offload_param.pin_memory), .type = boolean, .fallback = "true",
       .help = "With offload_param on a GPU: the shards lie in pinned memory, which copies beside other work need."},

      // [activation]
      {KEY(activation.recompute), .type = text, .fallback = "\"none\"", .automatic = Auto::kept,
       .help =
           "What the backward pass makes again and the forward pass need not keep. selective: the half of the bytes that costs the fewest "
           "FLOPs; full: all but the residual stream that enters a layer; auto: the fewest FLOPs with which the plan fits memory.device, "
           "or "
           "what the ranks have, said at the start. No bit of a run depends on it."},
      {KEY(activation.every), .type = integer, .unit = "layers", .limits = {.least = 1, .most = 100000}, .fallback = "1",
       .help = "With recompute = \"full\": layers from one kept stream to the next."},
      {KEY(activation.keep), .type = texts, .fallback = "[]",
       .help = "What recompute does not drop: values of a layer, for example \"attention.context\", or kinds of segments (\"attention\", "
               "\"mlp\"; \"block\" where they stand side by side), which stand for all that recompute = \"none\" keeps of them. A name "
               "that is none is refused with the list of all."},
      {KEY(activation.offload), .type = text, .fallback = "\"none\"", .refused = no_cpu,
       .help =
           "Where the residual streams that the backward pass reads wait for it: none leaves them with the kernels; host and nvme (the "
           "folders of zero.offload_optimizer.nvme_path) take them from there, two passes before they are used. No bit depends on it."}};
}

}  // namespace tessera::schema
