// What a run in fp16 says of the scale of its loss.
#pragma once
#include <string>

#include "deck/deck.hpp"
#include "kernels/step/step.hpp"

namespace tessera {

/// A step that was skipped, or after which the scale is another; else "". `next`: the scale after it.
std::string describe_loss_scale(std::int64_t step, const kernels::StepReport& report, float next);

/// What to do where gradients overflow at a scale that cannot fall.
std::string lowest_scale_advice(const LossScaleKeys& keys, float scale);

}  // namespace tessera
