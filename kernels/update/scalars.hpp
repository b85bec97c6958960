// The values of one step that every optimizer's update reads. They lie in memory that tasks write and read, so a step never branches on the
// host.
#pragma once
#include <cstdint>

namespace tessera::kernels {

struct UpdateScalars {
  float learning_rate = 0, beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f;
  float bias_correction1 = 1, bias_correction2 = 1;  ///< 1 - beta^step
  float grad_scale = 1;                              ///< clip factor, over the scale of gradients that carry one
  std::int32_t skip = 0;                             ///< 1: leave weights and state as they are
  float momentum = 0;                                ///< of SGD
  float least_trust = 0.01f, most_trust = 10;        ///< bounds of LAMB's ratio of norms
  float square_scale = 1;     ///< a power of two; times it the sum of squares of all gradients is between 2^9 and 2^10
  float update_clipping = 1;  ///< of Adafactor: root of the mean square of an update, at most
  std::uint32_t number = 0;   ///< of the update, for what is drawn by chance
};

}  // namespace tessera::kernels
