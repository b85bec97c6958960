// Bound by memory: forward reads one element and writes one, backward reads two and writes one, or two where it makes forward's output once
// more. (M,F) is a flat range. Not yet measured.
#include "kernels/activation/activation.hpp"

#include "kernels/activation/activation_sizes.hpp"
#include "kernels/activation/formulas.hpp"
#include "kernels/cuda/reduce.hpp"
#include "kernels/cuda/vector.hpp"
#include "kernels/swiglu/gates_cuda.hpp"

namespace tessera::kernels::cuda {
namespace {

using namespace tessera::cuda;
using activations::Factors;

/// xIELU's of a block, which two of its threads compute while the others' loads are under way. All threads of a block call it.
template <PlainActivation activation, class T>
__device__ Factors block_factors(const void* alphas) {
  if constexpr (activation == PlainActivation::xielu) {
    __shared__ float factor[2];
    if (threadIdx.x < 2)
      factor[threadIdx.x] = activations::factor_of(to_float(static_cast<const T*>(alphas)[threadIdx.x]), threadIdx.x == 0);
    __syncthreads();
    return {factor[0], factor[1]};
  }
  return {};
}

template <PlainActivation activation>
constexpr GateActivation gate_of = activation == PlainActivation::gelu ? GateActivation::gelu : GateActivation::gelu_tanh;

template <PlainActivation activation, class T>
__device__ float plain_value(float x, const Factors& factors) {
  if constexpr (activation == PlainActivation::xielu) {
    return activations::Xielu<float>(x).value(factors);
  } else if constexpr (activation == PlainActivation::relu_squared) {
    const float r = activations::rectified(x);
    return r * r;
  } else {
    return gates::activated<gate_of<activation>, T>(x, gates::exponential_of_gate<gate_of<activation>, T>(x));
  }
}

struct ValueAndSlope {
  float value, slope;
};
/// Of what is no xIELU. What is not used of it costs nothing.
template <PlainActivation activation, class T>
__device__ ValueAndSlope value_and_slope(float x) {
  if constexpr (activation == PlainActivation::relu_squared) {
    const float r = activations::rectified(x);
    return {r * r, r + r};
  } else {
    const float e = gates::exponential_of_gate<gate_of<activation>, T>(x);
    if constexpr (activation == PlainActivation::gelu) {
      const float below = gates::normal_below<T>(x, e);
      return {x * below, fmaf(x, e * gates::density_at_zero, below)};
    } else {
      const auto [s, complement] = gates::sigmoids<T>(x, e);
      return {gates::silu<T>(x, e), s * gates::growth<GateActivation::gelu_tanh>(x, complement)};
    }
  }
}

constexpr int forward_vectors = 2;

/// A thread writes what it alone has read, so out may be x.
template <PlainActivation activation, class T, class Whole>
__global__ void __launch_bounds__(block_threads) forward_kernel(ActivationForward p, std::int64_t n) {
  constexpr int N = vector_elements<T>;
  const Tile<N, forward_vectors> tile;
  Vector<T, N> x[forward_vectors];
#pragma unroll
  for (int u = 0; u < forward_vectors; ++u) x[u] = load<Whole, N>(static_cast<const T*>(p.x), tile.at(u), n);
  const Factors factors = block_factors<activation, T>(p.alphas);
#pragma unroll
  for (int u = 0; u < forward_vectors; ++u) {
    float value[N];
#pragma unroll
    for (int k = 0; k < N; ++k) value[k] = plain_value<activation, T>(to_float(x[u].value[k]), factors);
    store<Whole>(static_cast<T*>(p.out), tile.at(u), n, value);
  }
}

/// d_x may be d_out or x, and out d_out: a thread writes what it alone has read.
template <PlainActivation activation, class T, class Whole, bool again>
__global__ void __launch_bounds__(block_threads) backward_kernel(ActivationBackward p, std::int64_t n) {
  constexpr int N = vector_elements<T>;
  const std::int64_t i = Tile<N, 1>().first;
  float x[N], d[N];
  load<Whole>(x, static_cast<const T*>(p.x), i, n), load<Whole>(d, static_cast<const T*>(p.d_out), i, n);
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const ValueAndSlope at = value_and_slope<activation, T>(x[k]);
    d[k] *= at.slope, x[k] = at.value;
  }
  store<Whole>(static_cast<T*>(p.d_x), i, n, d);
  if constexpr (again) store<Whole>(static_cast<T*>(p.out), i, n, x);
}

/// The same of xIELU, a block of vectors at a time, and partial[block] = the sums of d_alphas' terms over it.
template <class T, class Whole, bool again>
__global__ void __launch_bounds__(block_threads)
    xielu_backward_kernel(ActivationBackward p, std::int64_t n, float2* partial, RowBlocks blocks) {
  constexpr int N = vector_elements<T>;
  const Factors factors = block_factors<PlainActivation::xielu, T>(p.alphas);
  const std::int64_t end = blocks.end(blockIdx.x);
  float positive = 0, negative = 0;
  for (std::int64_t v = blocks.begin(blockIdx.x) + threadIdx.x; v < end; v += block_threads) {
    const std::int64_t i = v * N;
    float x[N], d[N];
    load<Whole>(x, static_cast<const T*>(p.x), i, n), load<Whole>(d, static_cast<const T*>(p.d_out), i, n);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const activations::Xielu at(x[k]);
      positive = at.add_positive(d[k], positive), negative = at.add_negative(d[k], negative);
      d[k] *= at.slope(factors), x[k] = at.value(factors);
    }
    store<Whole>(static_cast<T*>(p.d_x), i, n, d);
    if constexpr (again) store<Whole>(static_cast<T*>(p.out), i, n, x);
  }
  positive = block_sum(positive), negative = block_sum(negative);
  if (threadIdx.x == 0) partial[blockIdx.x] = {positive, negative};
}

/// One block: the partial sums by the derivatives of softplus.
template <class T>
__global__ void __launch_bounds__(block_threads) add_alpha_gradients(ActivationBackward p, const float2* partial, std::int64_t count) {
  double positive = 0, negative = 0;
  for (std::int64_t b = threadIdx.x; b < count; b += block_threads)
    positive += static_cast<double>(partial[b].x), negative += static_cast<double>(partial[b].y);
  positive = block_sum(positive), negative = block_sum(negative);
  if (threadIdx.x >= 2) return;
  const float alpha = to_float(static_cast<const T*>(p.alphas)[threadIdx.x]);
  p.d_alphas[threadIdx.x] += static_cast<float>(threadIdx.x == 0 ? positive : negative) * sigmoid(alpha);
}

template <class T, class W>
void xielu_backward(const Context& context, const ActivationBackward& p, std::int64_t n) {
  const RowBlocks blocks = activation_sizes::xielu_blocks(p);
  auto* partial = reinterpret_cast<float2*>(context.workspace.data());  // (blocks)
  auto* kernel = p.out ? xielu_backward_kernel<T, W, true> : xielu_backward_kernel<T, W, false>;
  launch(stream_of(context), static_cast<unsigned>(blocks.count), block_threads, 0, kernel, p, n, partial, blocks);
  launch(stream_of(context), 1, block_threads, 0, add_alpha_gradients<T>, p, partial, blocks.count);
}

}  // namespace

void activation_forward(const Context& context, const ActivationForward& p) {
  const std::int64_t n = p.M * p.F;
  if (n == 0) return;
  TESSERA_CUDA_REQUIRE((p.alphas != nullptr) == (p.activation == PlainActivation::xielu));
  with_float_type(p.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int N = vector_elements<T>;
    with_whole(on_sixteen_bytes(p.out, p.x) && whole_vectors(N, {n}), [&](auto whole) {
      activations::with_plain_activation(p.activation, [&](auto act) {
        launch(stream_of(context), Tile<N, forward_vectors>::blocks(n), block_threads, 0, forward_kernel<act.value, T, decltype(whole)>, p,
               n);
      });
    });
  });
}

void activation_backward(const Context& context, const ActivationBackward& p) {
  const std::int64_t n = p.M * p.F;
  if (n == 0) return;
  const bool xielu = p.activation == PlainActivation::xielu;
  TESSERA_CUDA_REQUIRE((p.alphas != nullptr) == xielu && (p.d_alphas != nullptr) == xielu);
  TESSERA_CUDA_REQUIRE(context.workspace.size() >= cuda::activation_backward_workspace_bytes(p));
  with_float_type(p.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int N = vector_elements<T>;
    with_whole(on_sixteen_bytes(p.d_x, p.d_out, p.x, p.out) && whole_vectors(N, {n}), [&](auto whole) {
      using W = decltype(whole);
      activations::with_plain_activation(p.activation, [&](auto act) {
        if constexpr (act.value == PlainActivation::xielu) {
          xielu_backward<T, W>(context, p, n);
        } else {
          auto* kernel = p.out ? backward_kernel<act.value, T, W, true> : backward_kernel<act.value, T, W, false>;
          launch(stream_of(context), Tile<N, 1>::blocks(n), block_threads, 0, kernel, p, n);
        }
      });
    });
  });
}

}  // namespace tessera::kernels::cuda
