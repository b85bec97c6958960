// Bound by memory: 16 bytes read (14 with bf16 gradients, 20 with fixed-point ones) and 12 or 14 written a parameter, in one pass. The
// lines of master, m and v are in cache when they are written, so plain stores cost nothing extra; the compute copy is only written, so it
// streams when it is large.
#include "kernels/adamw/adamw.hpp"

#include "kernels/adamw/coefficients.hpp"
#include "kernels/elementwise/elementwise.hpp"
#include "kernels/parallel.hpp"
#include "kernels/vector/vector.hpp"

namespace tessera::kernels::host {
namespace {

/// The step's values in every lane.
struct Coefficients {
  f32x16 grad_scale, beta1, rest1, beta2, rest2, step, root_scale, eps, keep;

  explicit Coefficients(const AdamwCoefficients& c)
      : grad_scale(splat(c.grad_scale)),
        beta1(splat(c.beta1)),
        rest1(splat(c.rest1)),
        beta2(splat(c.beta2)),
        rest2(splat(c.rest2)),
        step(splat(c.step)),
        root_scale(splat(c.root_scale)),
        eps(splat(c.eps)),
        keep(splat(c.keep)) {}
};

/// Sixteen gradients; fixed point is rounded to fp32 as fixed_to_float does.
template <class Count>
TESSERA_INLINE f32x16 load_grad(const float* p, Count n) {
  return load(p, n);
}
template <class Count>
TESSERA_INLINE f32x16 load_grad(const bf16* p, Count n) {
  return load(p, n);
}
template <class Count>
TESSERA_INLINE f32x16 load_grad(const std::int64_t* p, Count n) {
  return load(p, n) * 0x1p-44f;
}

/// Elements by which memory is asked ahead: the hardware's own prefetch stops at pages, and follows four streams less well than one.
constexpr std::int64_t ahead = 256;

template <class Grad>
TESSERA_INLINE void prefetch_streams(const Adamw& p, const Grad* grad, std::int64_t i) {
  prefetch(p.master + i + ahead), prefetch(p.m + i + ahead), prefetch(p.v + i + ahead), prefetch(grad + i + ahead);
  if constexpr (sizeof(Grad) == 8) prefetch(grad + i + ahead + lanes / 2);
}

enum class Copy { none, cached, streamed };

template <class Grad, class Param, Copy copy>
void update(Adamw p, Coefficients c, std::int64_t begin, std::int64_t end) {  // by value: known not to alias the stores
  const Grad* grad = static_cast<const Grad*>(p.grad);
  Param* param = static_cast<Param*>(p.param);
  for_vectors(begin, end, [&](std::int64_t i, auto n) {
    prefetch_streams(p, grad, i);
    f32x16 g = load_grad(grad + i, n) * c.grad_scale;
    f32x16 m = fma(c.beta1, load(p.m + i, n), c.rest1 * g);
    f32x16 v = fma(c.beta2, load(p.v + i, n), c.rest2 * g * g);
    f32x16 change = m * c.step / fma(sqrt(v), c.root_scale, c.eps);
    f32x16 w = fma(load(p.master + i, n), c.keep, -change);
    store(p.m + i, m, n);
    store(p.v + i, v, n);
    store(p.master + i, w, n);
    if constexpr (copy != Copy::none) store<copy == Copy::streamed>(param + i, w, n);
  });
  if constexpr (copy == Copy::streamed) stream_fence();
}

template <class Grad>
void run(const Adamw& p) {
  Coefficients c(AdamwCoefficients(*p.scalars, p.rate_scale, p.weight_decay));
  // What else the call touches, at least 12 bytes read and 12 written a parameter, leaves no copy in the caches to whoever takes it up.
  bool stream = p.param && worth_streaming(p.param, p.n * 12, 64);
  with_half_type(p.param_dtype, "adamw", [&](auto type) {
    using T = decltype(type);
    auto* range = stream ? update<Grad, T, Copy::streamed> : update<Grad, T, Copy::cached>;
    if (!p.param) range = update<Grad, bf16, Copy::none>;
    parallel_ranges(p.n, 4096, [&](std::int64_t begin, std::int64_t end) { range(p, c, begin, end); });
  });
}

}  // namespace

void adamw(const Context& context, const Adamw& p) {
  if (p.n == 0) return;
  // The copy may be on its way to kernels, in memory that it shares with others.
  if (p.scalars->skip) return p.param ? host::cast(context, p.param, p.param_dtype, p.master, DType::f32, p.n) : void();
  with_sum_type(p.grad_dtype, "adamw", [&](auto type) { run<decltype(type)>(p); });
}

}  // namespace tessera::kernels::host
