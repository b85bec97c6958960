// What the gradients of a step's pairs are multiplied by, from the counts of the whole step.
#pragma once
#include "kernels/preference/preference.hpp"
#include "kernels/step/step.hpp"

namespace tessera::kernels {

/// The step's weight is its number of pairs, which gradients are divided by elsewhere: so all are times the pairs.
TESSERA_BOTH inline PreferenceScale scale_of_preferences(const StepScalars& scalars) {
  const auto chosen = static_cast<double>(scalars.chosen_targets);
  return {.pair = 1, .completion = chosen > 0 ? scalars.weight.value() / chosen : 0, .text = 0};
}
TESSERA_OP(preference_scale, (const Context& context, PreferenceScale* scale, const StepScalars* scalars), (context, scale, scalars))

}  // namespace tessera::kernels
