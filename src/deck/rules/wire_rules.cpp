// What travels as blocks of codes (ZeRO++ qwZ, qgZ), and what rounding leaves (LoCo).
#include <fmt/format.h>

#include "deck/rules/draft.hpp"

namespace tessera {

namespace {

void check_error_feedback(Draft& draft) {
  if (!draft.good({"zero.error_feedback.enabled"}) || draft.deck.zero.error_feedback.enabled) return;
  for (const std::string_view key : {"zero.error_feedback.beta", "zero.error_feedback.reset_interval"})
    if (draft.differs(key))
      draft.idle(key, "zero.error_feedback.enabled",
                 "has no effect with zero.error_feedback.enabled = false; set that to true or leave this key out");
}

}  // namespace

void check_quantized(Draft& draft) {
  check_error_feedback(draft);
  if (!draft.good({"zero.quantized_weights", "zero.quantized_gradients", "zero.error_feedback.enabled", "zero.stage", "run.reproducible",
                   "mesh.replicate"}))
    return;
  const ZeroKeys& zero = draft.deck.zero;
  if (zero.quantized_weights && zero.stage != 3)
    draft.fault(
        {"zero.quantized_weights", "zero.stage"},
        fmt::format(
            "only stage 3 gathers weights for each use, and zero.stage is {}; set it to 3, or leave zero.quantized_weights at false",
            zero.stage));
  if (!zero.quantized_gradients) {
    if (zero.error_feedback.enabled)
      draft.fault({"zero.error_feedback.enabled", "zero.quantized_gradients"},
                  "only quantized gradients have rounding errors to keep; set zero.quantized_gradients = true, or leave it at false");
    return;
  }
  if (zero.stage < 2)
    draft.fault({"zero.quantized_gradients", "zero.stage"},
                fmt::format("stages 2 and 3 send a gradient to its owner after each micro-batch, and zero.stage is {}; set it to 2 or 3, "
                            "or leave zero.quantized_gradients at false",
                            zero.stage));
  if (draft.deck.run.reproducible)
    draft.fault({"zero.quantized_gradients", "run.reproducible"},
                "each rank rounds its own part of a gradient to 4 bits, so sums depend on the number of ranks; set run.reproducible = "
                "false, or leave zero.quantized_gradients at false (zero.quantized_weights works)");
  if (draft.deck.mesh.replicate > 1)
    draft.fault({"zero.quantized_gradients", "mesh.replicate"},
                "replicas sum whole gradients in fp32; divide the ranks with zero.hpz_partition_size instead of mesh.replicate, or leave "
                "zero.quantized_gradients at false");
  if (draft.differs("zero.reduce_bucket_size"))
    draft.resolved.push_back("note: zero.reduce_bucket_size does not cut gradients that are sent as quantized blocks");
}

}  // namespace tessera
