// The scale of the loss, which keeps gradients of fp16 inside its range: DeepSpeed's DynamicLossScaler, step for step.
#pragma once
#include <cstdint>

#include "base/types.hpp"

namespace tessera::kernels {

/// What a deck says of it. Scales are powers of two: what they multiply is the same number at another exponent.
struct LossScaleRules {
  bool on = false;
  bool fixed = false;           ///< it neither falls nor rises
  bool refills = false;         ///< a good step forgives all overflows before it (consecutive_hysteresis)
  float minimum = 1;            ///< it falls no further
  std::int64_t window = 1000;   ///< steps without an overflow before it doubles
  std::int64_t hysteresis = 2;  ///< overflows before it halves
};

struct LossScale {
  float value = 1;
  std::int64_t good_steps = 0;      ///< since the last overflow or growth
  std::int64_t overflows_left = 1;  ///< until it halves
};

/// After a step. False: it overflowed at a scale that cannot fall, as often as the rules allow.
TESSERA_BOTH inline bool update_loss_scale(LossScale& scale, const LossScaleRules& rules, bool overflow) {
  if (overflow) {
    scale.good_steps = 0;
    if (scale.overflows_left > 1) return --scale.overflows_left, true;
    if (rules.fixed || scale.value <= rules.minimum) return false;
    scale.value = scale.value / 2 > rules.minimum ? scale.value / 2 : rules.minimum;
    return true;
  }
  ++scale.good_steps;
  // A fixed scale never grows, so nothing else would ever refill what it has left.
  if (rules.refills || rules.fixed) scale.overflows_left = rules.hysteresis;
  if (scale.good_steps <= rules.window) return true;
  scale.good_steps = 1;  // the window is one step longer after an overflow than between two growths
  scale.overflows_left = rules.hysteresis;
  // Of two scales with finite gradients the larger one loses less, up to where fp32 ends.
  if (!rules.fixed && scale.value < 0x1p100f) scale.value *= 2;
  return true;
}

}  // namespace tessera::kernels
