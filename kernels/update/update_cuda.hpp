// An elementwise update on a GPU, in one pass: bound by memory, with the bits of update_host.hpp.
#pragma once
#include <new>

#include "kernels/cuda/reduce.hpp"
#include "kernels/cuda/vector.hpp"
#include "kernels/update/exact_squares.hpp"
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

/// What reads sums works longer on them than on a thread's elements, so one thread does it for its block.
template <class Rule>
__device__ Rule rule_of(const Update& p) {
  if constexpr (Rule::reads_sums) {
    alignas(Rule) __shared__ unsigned char room[sizeof(Rule)];
    if (threadIdx.x == 0) new (room) Rule(*p.scalars, p);
    __syncthreads();
    return *reinterpret_cast<const Rule*>(room);
  } else {
    return Rule(*p.scalars, p);
  }
}

/// Squares of `count` numbers of each thread join a sum of the tensor; all threads of a block call it, and a warp has squares_at_once of
/// them at most. `some` is room for it in shared memory.
template <int count>
__device__ void add_squares(FixedSum& sum, const float (&x)[count], std::int64_t (*some)[4]) {
  static_assert(count * warp_lanes <= squares_at_once);
  double high = 0, low = 0;
  FixedSum mine;
#pragma unroll
  for (const float v : x) {
    const double square = static_cast<double>(v) * static_cast<double>(v);
    if (square < large_square) {
      const SplitSquare<double> split = split_square(square);
      high += split.high, low += split.low;
    } else {
      mine.add(square);
    }
  }
  high = warp_sum(high), low = warp_sum(low);
  const unsigned lane = threadIdx.x % warp_lanes;
  if (lane == 0) mine.add(high), mine.add(low);
  __syncthreads();  // an earlier call's limbs have been read
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const std::int64_t limb = warp_sum(mine.limb[i]);
    if (lane == 0) some[threadIdx.x / warp_lanes][i] = limb;
  }
  __syncthreads();
  if (threadIdx.x >= 4) return;
  std::int64_t limb = 0;
  for (unsigned w = 0; w < blockDim.x / warp_lanes; ++w) limb += some[w][threadIdx.x];
  static_assert(sizeof(unsigned long long) == sizeof(std::int64_t));
  atomicAdd(reinterpret_cast<unsigned long long*>(&sum.limb[threadIdx.x]), static_cast<unsigned long long>(limb));
}

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
    if constexpr (Rule::reads_gradient) grad[u] = load<Whole, N>(static_cast<const Grad*>(p.grad), i, p.n);
#pragma unroll
    for (int s = 0; s < Rule::states; ++s) load<Whole>(state[u][s], static_cast<const State*>(p.state[s]), i, p.n);
  }
  const Rule rule = rule_of<Rule>(p);
  [[maybe_unused]] float summed[Rule::sums > 0 ? Rule::sums : 1][unroll * N];
#pragma unroll
  for (int u = 0; u < unroll; ++u) {
    const std::int64_t i = tile.at(u);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      float of_element[most_update_states];
#pragma unroll
      for (int s = 0; s < Rule::states; ++s) of_element[s] = state[u][s][k];
      float g = 0;
      if constexpr (Rule::reads_gradient) g = gradient_of(grad[u].value[k]);
      if constexpr (Rule::sums > 0) {
        float squared[Rule::sums];
        rule(w[u][k], of_element, g, squared);
#pragma unroll
        for (int s = 0; s < Rule::sums; ++s) summed[s][u * N + k] = i + k < p.n ? squared[s] : 0;
      } else {
        rule(w[u][k], of_element, g);
      }
#pragma unroll
      for (int s = 0; s < Rule::states; ++s) {
        if (sizeof(State) == 2 && p.stochastic) of_element[s] = stochastic_bf16(of_element[s], g, state_seed(*p.scalars, s));
        state[u][s][k] = of_element[s];
      }
    }
    if constexpr (Rule::changes_state) {
#pragma unroll
      for (int s = 0; s < Rule::states; ++s) store<Whole>(static_cast<State*>(p.state[s]), i, p.n, state[u][s]);
    }
    if constexpr (Rule::changes_master) store<Whole>(p.master, i, p.n, w[u]);
    if (p.param) store<Whole>(static_cast<Param*>(p.param), i, p.n, w[u]);
  }
  if constexpr (Rule::sums > 0) {
    __shared__ std::int64_t some[block_threads / warp_lanes][4];
#pragma unroll
    for (int s = 0; s < Rule::sums; ++s) add_squares(p.sums[s], summed[s], some);
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
