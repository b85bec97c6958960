#include "train/observe/loss_scale.hpp"

#include <fmt/format.h>

namespace tessera {
namespace {

/// A power of two with all its digits.
std::string text_of(float scale) { return scale < 1 ? fmt::format("{:g}", scale) : fmt::format("{:.0f}", scale); }

}  // namespace

std::string describe_loss_scale(std::int64_t step, const kernels::StepReport& report, float next) {
  const bool moves = next != report.loss_scale;
  if (report.skipped)
    return fmt::format("step {}: gradients overflowed fp16 at a loss scale of {}; the update is skipped{}", step,
                       text_of(report.loss_scale), moves ? fmt::format(", and the scale falls to {}", text_of(next)) : "");
  return moves ? fmt::format("step {}: the loss scale rises from {} to {}", step, text_of(report.loss_scale), text_of(next)) : "";
}

std::string lowest_scale_advice(const LossScaleKeys& keys, float scale) {
  if (keys.fixed > 0)
    return fmt::format(
        "at the fixed loss scale {}, as often in a row as precision.loss_scale.hysteresis allows. Set a lower "
        "precision.loss_scale.fixed, or 0 for a scale that moves",
        text_of(scale));
  return fmt::format(
      "at the lowest loss scale, {} (precision.loss_scale.minimum), so a lower scale does not help. Look at the loss of the steps before: "
      "if it had grown, lower optimizer.learning_rate, warm up longer (learning_rate.warmup_steps) or clip gradients "
      "(optimizer.gradient_clipping). Or set precision.compute = \"bf16\", whose range is that of fp32",
      text_of(scale));
}

}  // namespace tessera
