// An optimizer's update of a flat range of parameters: what every update's kernel is handed. An elementwise one is a rule, in the words of
// kernels/arithmetic.hpp: one element, or sixteen, from gradient and old values to new ones. update_host.hpp and update_cuda.hpp pass it
// over memory once, so a rule has the same bits on every backend.
#pragma once
#include "kernels/arithmetic.hpp"
#include "kernels/context.hpp"
#include "kernels/fixed/fixed_sum.hpp"
#include "kernels/update/lines.hpp"
#include "kernels/update/scalars.hpp"
#include "kernels/update/state_type.hpp"
#include "kernels/update/stochastic.hpp"

namespace tessera::kernels {

/// Numbers that the optimizers of this program keep of a parameter, at most, beside its master weight.
inline constexpr int most_update_states = 2;
/// Sums of a tensor, at most.
inline constexpr int most_update_sums = 2;

/// What chance draws from for state s in this update.
TESSERA_BOTH inline std::uint32_t state_seed(const UpdateScalars& scalars, int s) {
  return (scalars.number * 4 + static_cast<std::uint32_t>(s)) * 0x85ebca6bu;
}

/// With scalars->skip the copy alone is made. n may be any number; elements are independent and their bits do not depend on where in the
/// range they lie.
struct Update {
  float* master = nullptr;
  void* state[most_update_states] = {};   ///< what the optimizer keeps, in the order in which its text names it
  StateType state_type = StateType::f32;  ///< of those: f32 or bf16; kernels of blocks know theirs
  bool stochastic = false;                ///< state in bf16 is rounded by chance, not to the nearest
  void* param = nullptr;                  ///< copy to write, or null when the master is the compute copy
  DType param_dtype = DType::bf16;        ///< of the copy: bf16 or f16
  const void* grad = nullptr;             ///< fp32, bf16, or fixed-point int64 (value * 2^-44)
  DType grad_dtype = DType::f32;
  std::int64_t n = 0;
  float rate_scale = 1;  ///< of the learning rate
  float weight_decay = 0;
  const UpdateScalars* scalars = nullptr;
  FixedSum* sums = nullptr;  ///< of the tensor, over all its elements on all ranks: a kernel adds to them, or a later one reads them
  std::int64_t tensor_elements = 0;  ///< of the whole tensor
  Lines lines = {};                  ///< where the update touches such
};

/// What a rule does that not all do. It is called with weight, states and gradient of an element, and those that sum also with room for
/// numbers whose squares join Update::sums.
struct UpdateRule {
  static constexpr bool reads_gradient = true, changes_master = true, changes_state = true;
  static constexpr bool reads_sums = false;  ///< its constructor does
  static constexpr int sums = 0;
};

}  // namespace tessera::kernels
