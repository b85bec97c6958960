// An elementwise update on a GPU, in one pass: bound by memory, with the bits of update_host.hpp.
#pragma once
#include "kernels/cuda/vector.hpp"
#include "kernels/update/update.hpp"

namespace tessera::kernels::cuda {
namespace update_detail {

using namespace tessera::cuda;

/// Fixed point is rounded to fp32 as fixed_to_float does.
__device__ inline float gradient_of(float g) { return g; }
__device__ inline float gradient_of(bf16 g) { return to_float(g); }
__device__ inline float gradient_of(std::int64_t g) { return __ll2float_rn(g) * 0x1p-44f; }

template <class Grad>
inline constexpr int elements = sizeof(Grad) == 8 ? 2 : 4;  // of the fp32 operands sixteen bytes or eight
constexpr int unroll = 2;

template <class Rule, class Grad, class Param, class State, class Whole>
__global__ void __launch_bounds__(block_threads) update_kernel(Update p) {
  constexpr int N = elements<Grad>;
  const bool skip = p.scalars->skip;
  if (skip && !p.param) return;
  const Tile<N, unroll> tile;
  float w[unroll][N], state[unroll][most_update_states][N];
  Vector<Grad, N> grad[unroll];
#pragma unroll
  for (int u = 0; u < unroll; ++u) load<Whole>(w[u], p.master, tile.at(u), p.n);
  if (skip) {
    for (int u = 0; u < unroll; ++u) store<Whole>(static_cast<Param*>(p.param), tile.at(u), p.n, w[u]);
    return;
  }
#pragma unroll
  for (int u = 0; u < unroll; ++u) {
    const std::int64_t i = tile.at(u);
    grad[u] = load<Whole, N>(static_cast<const Grad*>(p.grad), i, p.n);
#pragma unroll
    for (int s = 0; s < Rule::states; ++s) load<Whole>(state[u][s], static_cast<const State*>(p.state[s]), i, p.n);
  }
  const Rule rule(*p.scalars, p);
#pragma unroll
  for (int u = 0; u < unroll; ++u) {
    const std::int64_t i = tile.at(u);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      float of_element[most_update_states];
#pragma unroll
      for (int s = 0; s < Rule::states; ++s) of_element[s] = state[u][s][k];
      const float g = gradient_of(grad[u].value[k]);
      rule(w[u][k], of_element, g);
#pragma unroll
      for (int s = 0; s < Rule::states; ++s) {
        if (sizeof(State) == 2 && p.stochastic) of_element[s] = stochastic_bf16(of_element[s], g, state_seed(*p.scalars, s));
        state[u][s][k] = of_element[s];
      }
    }
#pragma unroll
    for (int s = 0; s < Rule::states; ++s) store<Whole>(static_cast<State*>(p.state[s]), i, p.n, state[u][s]);
    store<Whole>(p.master, i, p.n, w[u]);
    if (p.param) store<Whole>(static_cast<Param*>(p.param), i, p.n, w[u]);
  }
}

template <class Rule, class Grad, class State>
void run(const Context& context, const Update& p) {
  constexpr int N = elements<Grad>;
  bool aligned = on_sixteen_bytes(p.master, p.param, p.grad);
  for (int s = 0; s < Rule::states; ++s) aligned = aligned && on_sixteen_bytes(p.state[s]);
  with_whole(aligned && whole_vectors(N, {p.n}), [&](auto whole) {
    with_half_type(p.param_dtype, [&](auto param) {
      launch(stream_of(context), Tile<N, unroll>::blocks(p.n), block_threads, 0,
             update_kernel<Rule, Grad, decltype(param), State, decltype(whole)>, p);
    });
  });
}

}  // namespace update_detail

template <class Rule>
void update_elements(const Context& context, const Update& p) {
  if (p.n == 0) return;
  tessera::cuda::with_sum_type(p.grad_dtype, [&](auto type) {
    if (p.state_type == StateType::f32 || Rule::states == 0) return update_detail::run<Rule, decltype(type), float>(context, p);
    TESSERA_CUDA_REQUIRE(p.state_type == StateType::bf16);
    if constexpr (Rule::states > 0) update_detail::run<Rule, decltype(type), bf16>(context, p);
  });
}

}  // namespace tessera::kernels::cuda
