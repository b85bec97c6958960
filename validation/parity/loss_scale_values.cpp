// The scale of the loss over steps: loss_scale_values POWER WINDOW HYSTERESIS CONSECUTIVE MINIMUM reads a 0 or 1 a step, whether it
// overflowed, and prints a line a step: the scale after it, and whether the run goes on.
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "kernels/step/loss_scale.hpp"

int main(int, char** arguments) {
  const auto number = [&](int i) { return std::atol(arguments[i]); };
  tessera::kernels::LossScale scale{.value = std::ldexp(1.0f, static_cast<int>(number(1))), .good_steps = 0, .overflows_left = number(3)};
  const tessera::kernels::LossScaleRules rules{.on = true,
                                               .refills = number(4) != 0,
                                               .minimum = static_cast<float>(std::atof(arguments[5])),
                                               .window = number(2),
                                               .hysteresis = number(3)};
  for (int step = std::getchar(); step == '0' || step == '1'; step = std::getchar()) {
    const bool goes_on = tessera::kernels::update_loss_scale(scale, rules, step == '1');
    std::printf("%a %d\n", static_cast<double>(scale.value), goes_on ? 1 : 0);
  }
}
