// Keys of the deck: types and scales.
#include "deck/schema/schema_rows.hpp"

namespace tessera::schema {

std::vector<Key> precision_keys() {
  return {
      // [precision]
      {KEY(precision.compute), .type = text, .choices = {"fp32", "bf16", "fp16"}, .fallback = "\"bf16\"", .identity = true,
       .refused = {{"fp8", "products alone are in fp8; set \"bf16\" and precision.fp8"}},
       .help = "Type of weights and activations in forward and backward; master weights and moments are fp32. fp16 scales the loss by "
               "[precision.loss_scale]; its range is small, so prefer bf16 where the GPU has it."},
      {KEY(precision.gradients), .type = text, .choices = {"fp32", "bf16"}, .fallback = "\"fp32\"",
       .help = "Type of a step's sums of gradients. bf16 takes 2 bytes a parameter in place of 4 (8 with run.reproducible) and needs one "
               "micro-batch a rank, whose gradient is made in fp32, rounded, and reduced in half as many bytes. With run.reproducible "
               "exact integers are reduced as ever, and their sum alone is rounded. A resume may change it."},
      {KEY(precision.fp8), .type = text, .fallback = "\"none\"", .identity = true, .silent = true,
       .help =
           "Products of linear layers, forward and backward, of codes of 8 bits and their scales: each operand is rounded to them where "
           "it is multiplied, and sums are fp32. tensorwise: a scale a matrix, from its largest magnitude; "
           "tensorwise_delayed: from the largest of the fp8_history steps before, so that a tensor is read once; rowwise: one for each "
           "row of an operand along which a product sums; these have weights and activations in E4M3, gradients in E5M2. blockwise "
           "(DeepSeek-V3): all in E4M3, a scale that is a power of two for 128 values of activations and gradients and for 128 x 128 of "
           "weights. Weights, masters, moments and what is kept for the backward pass stay as they are. On the host fp8 is emulated, "
           "with the numbers of its definition; a GPU needs compute capability 8.9, for rowwise 9.0, and has no "
           "blockwise. With precision.compute = \"bf16\", not with experts."},
      {KEY(precision.fp8_skip), .type = texts, .fallback = "[\"head\", \"embedding\"]", .identity = true, .silent = true,
       .help = "With precision.fp8: patterns (as in model.freeze) of tensors whose products stay in the compute type. A pattern also "
               "stands for all names that begin with it and a dot: \"head\" is head.weight. Of a model with tied embeddings the head's "
               "product reads embedding.weight. Tensors of one product are skipped together. A pattern of no tensor is refused."},
      {KEY(precision.fp8_history), .type = integer, .unit = "optimizer steps", .limits = {.least = 1, .most = 65536}, .fallback = "1024",
       .identity = true, .silent = true,
       .help = "With precision.fp8 = \"tensorwise_delayed\": a scale is that of the largest magnitude of so many steps before. Transformer "
               "Engine's amax_history_len. Checkpoints keep the histories; a resume may not change it."},
      {KEY(precision.fp8_margin), .type = integer, .unit = "powers of 2", .limits = {.least = 0, .most = 16}, .fallback = "0",
       .identity = true, .silent = true,
       .help = "With precision.fp8 = \"tensorwise_delayed\": room that a scale leaves above that magnitude. Codes beyond saturate."},

      // [precision.loss_scale]
      {KEY(precision.loss_scale.initial_power), .type = integer, .unit = "power of 2", .limits = {.least = 0, .most = 40}, .fallback = "16",
       .identity = true, .silent = true,
       .help = "With precision.compute = \"fp16\": the scale of the loss that a run begins with is 2 to this power. An update whose "
               "gradients overflow is skipped and the scale halves; the log says so."},
      {KEY(precision.loss_scale.window), .type = integer, .unit = "optimizer steps", .limits = {.least = 1, .most = 1e12},
       .fallback = "1000", .identity = true, .silent = true, .help = "Steps without an overflow after which the scale doubles."},
      {KEY(precision.loss_scale.hysteresis), .type = integer, .unit = "overflows", .limits = {.least = 1, .most = 1e6}, .fallback = "2",
       .identity = true, .silent = true,
       .help = "Overflows until the scale halves: the first ones are skipped alone. They count until the scale doubles."},
      {KEY(precision.loss_scale.consecutive_hysteresis), .type = boolean, .fallback = "false", .identity = true, .silent = true,
       .help = "Only overflows in a row count: a step without one refills precision.loss_scale.hysteresis."},
      {KEY(precision.loss_scale.minimum), .type = real, .limits = {.above = 0, .most = 1e12}, .fallback = "1.0", .identity = true,
       .silent = true, .help = "Lowest scale, a power of 2. Gradients that overflow there end the run with status 8 and what to do."},
      {KEY(precision.loss_scale.fixed), .type = real, .limits = {.least = 0, .most = 1e12}, .fallback = "0.0", .identity = true,
       .silent = true,
       .help = "A scale that neither falls nor rises, a power of 2; hysteresis overflows in a row end the run. 0: the scale moves."}};
}

}  // namespace tessera::schema
