// What goes with types of numbers: sums of gradients, the scale of the loss.
#include <fmt/format.h>

#include <cmath>

#include "deck/rules/draft.hpp"

namespace tessera {
namespace {

/// A sum of several micro-batches would be rounded after each, and lose what is small beside it.
void check_gradients(Draft& draft) {
  if (!draft.good({"precision.gradients", "batch.global", "batch.micro", "mesh.dp"})) return;
  const std::int64_t global = draft.deck.batch.global, micro = draft.deck.batch.micro, ranks = draft.deck.mesh.dp;
  if (draft.deck.precision.gradients != DType::bf16 || ranks == 0 || global % micro != 0 || global / micro <= ranks) return;
  std::int64_t larger = ceil_div(global, ranks);
  while (global % larger != 0) ++larger;
  draft.fault({"precision.gradients", "batch.micro", "batch.global"},
              fmt::format("bf16 sums of gradients need one micro-batch a rank, and batch.global {} / (batch.micro {} x {} rank{}) makes {} "
                          "of them; set precision.gradients = \"fp32\" or batch.micro = {}, or start {} ranks",
                          global, micro, ranks, ranks == 1 ? "" : "s", ceil_div(global / micro, ranks), larger, global / micro));
}

bool is_power_of_two(double x) { return std::exp2(std::round(std::log2(x))) == x; }

/// Scales are powers of two: what they multiply keeps its digits, and sums that are exact stay so.
void check_loss_scale(Draft& draft) {
  if (!draft.good({"precision.compute", "precision.loss_scale.minimum", "precision.loss_scale.fixed"})) return;
  constexpr std::string_view moving[] = {"precision.loss_scale.initial_power", "precision.loss_scale.window",
                                         "precision.loss_scale.consecutive_hysteresis", "precision.loss_scale.minimum"};
  const LossScaleKeys& scale = draft.deck.precision.loss_scale;
  if (!draft.deck.precision.scales_loss()) {
    for (const std::string_view key :
         {"precision.loss_scale.initial_power", "precision.loss_scale.window", "precision.loss_scale.hysteresis",
          "precision.loss_scale.consecutive_hysteresis", "precision.loss_scale.minimum", "precision.loss_scale.fixed"})
      if (draft.differs(key))
        draft.idle(
            key, "precision.compute",
            fmt::format("only fp16 scales the loss, and precision.compute is \"{}\"; leave {} out or set precision.compute = \"fp16\"",
                        name_of(draft.deck.precision.compute), key));
    return;
  }
  for (const auto& [key, value] : {std::pair{"precision.loss_scale.minimum", scale.minimum}, {"precision.loss_scale.fixed", scale.fixed}})
    if (value > 0 && !is_power_of_two(value))
      draft.fault({key}, fmt::format("{:g} is not a power of two; nearest valid values: {:g} or {:g}", value,
                                     std::exp2(std::floor(std::log2(value))), std::exp2(std::ceil(std::log2(value)))));
  if (scale.fixed > 0) {
    for (const std::string_view key : moving)
      if (draft.differs(key))
        draft.idle(key, "precision.loss_scale.fixed",
                   fmt::format("a fixed scale does not move; leave {} out or set precision.loss_scale.fixed = 0", key));
  } else if (draft.good({"precision.loss_scale.initial_power"}) && scale.initial() < scale.minimum) {
    draft.fault({"precision.loss_scale.initial_power", "precision.loss_scale.minimum"},
                fmt::format("the scale starts with 2^{} = {:g}, below its minimum {:g}; raise initial_power or lower minimum",
                            scale.initial_power, scale.initial(), scale.minimum));
  }
}

void check_delayed_scaling(Draft& draft) {
  if (!draft.good({"precision.fp8"}) || draft.deck.precision.fp8 == Fp8Recipe::tensorwise_delayed) return;
  for (const std::string_view key : {"precision.fp8_history", "precision.fp8_margin"})
    if (draft.differs(key))
      draft.idle(key, "precision.fp8",
                 fmt::format("only \"tensorwise_delayed\" keeps histories, and precision.fp8 is \"{}\"; leave {} out or set precision.fp8 "
                             "= \"tensorwise_delayed\"",
                             word_of(draft.deck.precision.fp8), key));
}

void check_fp8(Draft& draft) {
  check_delayed_scaling(draft);
  if (!draft.good({"precision.fp8", "precision.compute"})) return;
  if (draft.deck.precision.fp8 == Fp8Recipe::none) {
    if (draft.differs("precision.fp8_skip"))
      draft.idle("precision.fp8_skip", "precision.fp8",
                 "precision.fp8 is \"none\", so no product is in fp8; leave precision.fp8_skip out or set precision.fp8");
    return;
  }
  const std::string word(word_of(draft.deck.precision.fp8));
  if (draft.deck.precision.compute != DType::bf16)
    draft.fault({"precision.fp8", "precision.compute"}, fmt::format("fp8 products need tensors in bf16, and precision.compute is \"{}\"; "
                                                                    "set precision.compute = \"bf16\" or precision.fp8 = \"none\"",
                                                                    name_of(draft.deck.precision.compute)));
  if (draft.good({"model.experts"}) && draft.deck.model.experts > 0)
    draft.fault({"precision.fp8", "model.experts"},
                fmt::format("products of experts are not in fp8 in this version; set precision.fp8 = \"none\" (here \"{}\") or "
                            "model.experts = 0",
                            word));
  if (draft.good({"kernels.pack_weights"}) && draft.deck.kernels.pack_weights)
    draft.fault({"kernels.pack_weights", "precision.fp8"},
                "packed weights work only for products in the compute type; set kernels.pack_weights = false or precision.fp8 = \"none\"");
}

}  // namespace

void check_precision(Draft& draft) {
  check_gradients(draft);
  check_fp8(draft);
  check_loss_scale(draft);
}

}  // namespace tessera
