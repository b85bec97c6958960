// Keys of the deck: types and scales.
#include "deck/schema/schema_rows.hpp"

namespace tessera::schema {

std::vector<Key> precision_keys() {
  return {
      // [precision]
      {KEY(precision.compute), .type = text, .choices = {"fp32", "bf16", "fp16"}, .identity = true,
       .refused = {{"fp8", "only products are in fp8; set \"bf16\" and precision.fp8"}},
       .help = "Type of weights and activations in forward and backward. Master weights and moments are fp32. fp16 scales the loss by "
               "[precision.loss_scale]; its range is small, so prefer bf16 if the GPU has it."},
      {KEY(precision.gradients), .type = text, .choices = {"fp32", "bf16"},
       .help = "Type of a step's sums of gradients. bf16 takes 2 bytes a parameter instead of 4 (8 with run.reproducible). It needs one "
               "micro-batch a rank, whose gradient is computed in fp32, rounded, and reduced in half as many bytes. With run.reproducible "
               "the reduction stays in exact integers, and only the sum is rounded. A resume may change this key."},
      {KEY(precision.fp8), .type = text, .identity = true, .silent = true,
       .help = "Computes the products of linear layers, forward and backward, in 8-bit numbers with scales. Each operand is rounded when "
               "it is multiplied, and sums are fp32. tensorwise: one scale a matrix, from its largest magnitude. tensorwise_delayed: one "
               "scale from the largest magnitude of the last fp8_history steps, so a tensor is read once. rowwise: one scale for each row "
               "of an operand along which a product sums. These three have weights and activations in E4M3, gradients in E5M2. blockwise "
               "(DeepSeek-V3): all in E4M3, with a power-of-two scale for 128 values of activations and gradients and for 128 x 128 of "
               "weights. Weights, masters, moments and values kept for the backward pass stay as they are. The host emulates fp8 with the "
               "numbers of its definition. A GPU needs compute capability 8.9, for rowwise 9.0, and has no blockwise. Needs "
               "precision.compute = \"bf16\"; not with experts."},
      {KEY(precision.fp8_skip), .type = texts, .identity = true, .silent = true,
       .help = "With precision.fp8: patterns (as in model.freeze) of tensors whose products stay in the compute type. A pattern also "
               "matches all names that start with it and a dot: \"head\" is head.weight. In a model with tied embeddings the head's "
               "product reads embedding.weight. Tensors of one product are skipped together. A pattern that matches no tensor is refused."},
      {KEY(precision.fp8_history), .type = integer, .unit = "optimizer steps", .limits = {.least = 1, .most = 65536}, .identity = true,
       .silent = true,
       .help = "With precision.fp8 = \"tensorwise_delayed\": number of earlier steps whose largest magnitude gives the scale. Transformer "
               "Engine's amax_history_len. Checkpoints store the histories, and a resume may not change this key."},
      {KEY(precision.fp8_margin), .type = integer, .unit = "powers of 2", .limits = {.least = 0, .most = 16}, .identity = true,
       .silent = true,
       .help = "With precision.fp8 = \"tensorwise_delayed\": margin that a scale leaves above that magnitude. Larger values saturate."},

      // [precision.loss_scale]
      {KEY(precision.loss_scale.initial_power), .type = integer, .unit = "power of 2", .limits = {.least = 0, .most = 40}, .identity = true,
       .silent = true,
       .help = "With precision.compute = \"fp16\": a run starts with a loss scale of 2 to this power. If gradients overflow, the update is "
               "skipped and the scale is halved; the log shows it."},
      {KEY(precision.loss_scale.window), .type = integer, .unit = "optimizer steps", .limits = {.least = 1, .most = 1e12}, .identity = true,
       .silent = true, .help = "Steps without an overflow after which the scale doubles."},
      {KEY(precision.loss_scale.hysteresis), .type = integer, .unit = "overflows", .limits = {.least = 1, .most = 1e6}, .identity = true,
       .silent = true,
       .help = "Overflows before the scale halves: the first ones only skip the update. They are counted until the scale doubles."},
      {KEY(precision.loss_scale.consecutive_hysteresis), .type = boolean, .identity = true, .silent = true,
       .help = "Counts only overflows in a row: a step without one resets precision.loss_scale.hysteresis."},
      {KEY(precision.loss_scale.minimum), .type = real, .limits = {.above = 0, .most = 1e12}, .identity = true, .silent = true,
       .help = "Lowest scale, a power of 2. If gradients overflow there, the run ends with status 8 and a message that says what to do."},
      {KEY(precision.loss_scale.fixed), .type = real, .limits = {.least = 0, .most = 1e12}, .identity = true, .silent = true,
       .help = "A constant scale, a power of 2. hysteresis overflows in a row end the run. 0: the scale moves."}};
}

}  // namespace tessera::schema
