// The step's values as the inner loop of AdamW uses them: the same code, and so the same bits, for every backend.
#pragma once
#include <cmath>

#include "kernels/adamw/adamw.hpp"

namespace tessera::kernels {

struct AdamwCoefficients {
  float grad_scale, beta1, rest1, beta2, rest2, step, root_scale, eps, keep;

  TESSERA_BOTH AdamwCoefficients(const UpdateScalars& s, float rate_scale, float weight_decay)
      : grad_scale(s.grad_scale),
        beta1(s.beta1),
        rest1(1.0f - s.beta1),
        beta2(s.beta2),
        rest2(1.0f - s.beta2),
        step(s.learning_rate * rate_scale / s.bias_correction1),
        root_scale(static_cast<float>(1.0 / ::sqrt(static_cast<double>(s.bias_correction2)))),
        eps(s.eps),
        keep(static_cast<float>(1.0 - static_cast<double>(s.learning_rate * rate_scale) * static_cast<double>(weight_decay))) {}
};

}  // namespace tessera::kernels
