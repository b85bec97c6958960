// Bound by memory: 16 bytes read (14 with bf16 gradients, 20 with fixed-point ones) and 12 or 14 written a parameter, in one pass. Not yet
// measured.
#include "kernels/adamw/adamw.hpp"

#include "kernels/adamw/coefficients.hpp"
#include "kernels/cuda/vector.hpp"

namespace tessera::kernels::cuda {
namespace {

using namespace tessera::cuda;

/// Fixed point is rounded to fp32 as fixed_to_float does.
__device__ float gradient_of(float g) { return g; }
__device__ float gradient_of(bf16 g) { return to_float(g); }
__device__ float gradient_of(std::int64_t g) { return __ll2float_rn(g) * 0x1p-44f; }

/// The host's operations in the host's order.
template <class Grad, int N>
__device__ void update(float (&w)[N], float (&m)[N], float (&v)[N], const Vector<Grad, N>& grad, const AdamwCoefficients& c) {
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const float g = gradient_of(grad.value[k]) * c.grad_scale;
    m[k] = fmaf(c.beta1, m[k], c.rest1 * g);
    v[k] = fmaf(c.beta2, v[k], c.rest2 * g * g);
    const float change = m[k] * c.step / fmaf(sqrtf(v[k]), c.root_scale, c.eps);
    w[k] = fmaf(w[k], c.keep, -change);
  }
}

template <class Grad>
inline constexpr int elements = sizeof(Grad) == 8 ? 2 : 4;  // of the fp32 operands sixteen bytes or eight
constexpr int unroll = 2;

template <class Grad, class Param, class Whole>
__global__ void __launch_bounds__(block_threads) adamw_kernel(Adamw p) {
  constexpr int N = elements<Grad>;
  if (p.scalars->skip) return;
  const Tile<N, unroll> tile;
  float w[unroll][N], m[unroll][N], v[unroll][N];
  Vector<Grad, N> grad[unroll];
#pragma unroll
  for (int u = 0; u < unroll; ++u) {
    const std::int64_t i = tile.at(u);
    grad[u] = load<Whole, N>(static_cast<const Grad*>(p.grad), i, p.n);
    load<Whole>(w[u], p.master, i, p.n), load<Whole>(m[u], p.m, i, p.n), load<Whole>(v[u], p.v, i, p.n);
  }
  const AdamwCoefficients c(*p.scalars, p.rate_scale, p.weight_decay);
#pragma unroll
  for (int u = 0; u < unroll; ++u) {
    const std::int64_t i = tile.at(u);
    update(w[u], m[u], v[u], grad[u], c);
    store<Whole>(p.m, i, p.n, m[u]), store<Whole>(p.v, i, p.n, v[u]), store<Whole>(p.master, i, p.n, w[u]);
    if (p.param) store<Whole>(static_cast<Param*>(p.param), i, p.n, w[u]);
  }
}

template <class Grad>
void run(const Context& context, const Adamw& p) {
  constexpr int N = elements<Grad>;
  with_whole(on_sixteen_bytes(p.master, p.m, p.v, p.param, p.grad) && whole_vectors(N, {p.n}), [&](auto whole) {
    with_half_type(p.param_dtype, [&](auto param) {
      launch(stream_of(context), Tile<N, unroll>::blocks(p.n), block_threads, 0, adamw_kernel<Grad, decltype(param), decltype(whole)>, p);
    });
  });
}

}  // namespace

void adamw(const Context& context, const Adamw& p) {
  if (p.n == 0) return;
  with_sum_type(p.grad_dtype, [&](auto type) { run<decltype(type)>(context, p); });
}

}  // namespace tessera::kernels::cuda
