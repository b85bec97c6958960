// An update whose state is in 8 bits, on host threads, block by block: decoded, updated, and encoded by the new numbers' scale.
#pragma once
#include <algorithm>

#include "kernels/elementwise/elementwise.hpp"
#include "kernels/parallel.hpp"
#include "kernels/update/eight_bits_host.hpp"
#include "kernels/update/update_host.hpp"

namespace tessera::kernels::host {
namespace update_detail {

/// Of an update's states the first has signs, the second is a mean of squares.
constexpr bool has_signs(int state) { return state == 0; }

/// Blocks whose new states are all there before the first is encoded: the next block's arithmetic goes on while a block's scale is found.
constexpr std::int64_t blocks_at_once = 4;

/// What a block's states have become.
template <int states>
struct NewStates {
  alignas(64) float number[states][state_block];
  float scale[states];
};

/// A whole block of weights and gradients, and of the copy if there is one.
template <class Rule, class Grad, class Param>
TESSERA_INLINE void update_block(NewStates<Rule::states>& become, const Rule& rule, float* master, const Grad* grad, Param* param,
                                 std::uint8_t* const* state) {
  f32x16 least[Rule::states], most[Rule::states];
  float scale[Rule::states];
  for (int s = 0; s < Rule::states; ++s) {
    std::memcpy(&scale[s], state[s] + state_block, sizeof(float));
    least[s] = most[s] = splat(0);
  }
  unrolled<Rule::states>([&](auto s) __attribute__((always_inline)) {
    for (std::int64_t first = 0; first < state_block; first += code_group)
      decode_group<has_signs(s)>(become.number[s] + first, state[s] + first, scale[s]);
  });
  for (std::int64_t i = 0; i < state_block; i += lanes) {
    prefetch(master + i + ahead);
    prefetch(grad + i + ahead);
    f32x16 w = load(master + i), of_element[most_update_states];
    unrolled<Rule::states>([&](auto s) __attribute__((always_inline)) { of_element[s] = load(become.number[s] + i); });
    rule(w, of_element, load_grad(grad + i, Whole{}));
    unrolled<Rule::states>([&](auto s) __attribute__((always_inline)) {
      store(become.number[s] + i, of_element[s]);
      if constexpr (has_signs(s)) least[s] = min(least[s], of_element[s]);
      most[s] = max(most[s], of_element[s]);
    });
    store(master + i, w);
    if (param) store(param + i, w);
  }
  unrolled<Rule::states>([&](auto s) __attribute__((always_inline)) {
    become.scale[s] = block_scale(has_signs(s) ? -horizontal_max(-least[s]) : 0, horizontal_max(most[s]));
  });
}

template <int states>
TESSERA_INLINE void encode_states(std::uint8_t* const* state, const NewStates<states>& from) {
  unrolled<states>([&](auto s) __attribute__((always_inline)) {
    std::memcpy(state[s] + state_block, &from.scale[s], sizeof(float));
    encode_block<has_signs(s)>(state[s], from.number[s], from.scale[s]);
  });
}

template <class Rule, class Grad, class Param>
void update_blocks(const Update& p, const Rule rule, std::int64_t begin, std::int64_t end) {  // by value: does not alias the stores
  NewStates<Rule::states> become[blocks_at_once];
  std::uint8_t* state[blocks_at_once][most_update_states] = {};
  for (; begin < end; begin += blocks_at_once) {
    const std::int64_t some = std::min(blocks_at_once, end - begin);
    for (std::int64_t k = 0; k < some; ++k) {
      const std::int64_t block = begin + k, at = block * state_block, count = std::min(state_block, p.n - at);
      for (int s = 0; s < Rule::states; ++s) state[k][s] = static_cast<std::uint8_t*>(p.state[s]) + block * state_block_bytes;
      float* master = p.master + at;
      const Grad* grad = static_cast<const Grad*>(p.grad) + at;
      Param* param = p.param ? static_cast<Param*>(p.param) + at : nullptr;
      if (count == state_block) {
        update_block(become[k], rule, master, grad, param, state[k]);
        continue;
      }
      // The last one's rest is no parameter: it passes through with zeros, and stays zero.
      float weights[state_block] = {};
      Grad gradients[state_block] = {};
      Param copies[state_block];
      std::copy_n(master, count, weights);
      std::copy_n(grad, count, gradients);
      update_block(become[k], rule, weights, gradients, param ? copies : nullptr, state[k]);
      std::copy_n(weights, count, master);
      if (param) std::copy_n(copies, count, param);
    }
    for (std::int64_t k = 0; k < some; ++k) encode_states(state[k], become[k]);
  }
}

}  // namespace update_detail

/// Its first element begins a block.
template <class Rule>
void update_in_blocks(const char* op, const Update& p) {
  if (p.n == 0) return;
  if (p.scalars->skip) return p.param ? host::cast({}, p.param, p.param_dtype, p.master, DType::f32, p.n) : void();
  const Rule rule(*p.scalars, p);
  with_sum_type(p.grad_dtype, op, [&](auto grad) {
    with_half_type(p.param_dtype, "the copy of an update", [&](auto param) {
      parallel_ranges((p.n + state_block - 1) / state_block, 16, [&](std::int64_t begin, std::int64_t end) {
        update_detail::update_blocks<Rule, decltype(grad), decltype(param)>(p, rule, begin, end);
      });
    });
  });
}

}  // namespace tessera::kernels::host
