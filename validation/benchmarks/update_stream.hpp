// The memory's limit for an optimizer's update: its streams in its order and proportion, with one operation a value.
#pragma once
#include "kernels/parallel.hpp"
#include "kernels/update/update.hpp"
#include "kernels/vector/vector.hpp"

namespace tessera::benchmarks {

/// Three fp32 streams that are rewritten, a gradient of any type that is read, and where there is one a bf16 copy that is written.
template <class Gradient, bool copy>
void update_stream(const kernels::Update& p, std::int64_t begin, std::int64_t end) {
  using namespace kernels;
  // Whole numbers of 64 bits are read as two floats each: what they mean costs the limit nothing.
  constexpr bool wide = sizeof(Gradient) == 8;
  using Read = std::conditional_t<wide, float, Gradient>;
  const auto* gradient = static_cast<const Read*>(p.grad);
  auto* out = static_cast<bf16*>(p.param);
  float *master = p.master, *m = static_cast<float*>(p.state[0]), *v = static_cast<float*>(p.state[1]);
  for_vectors(begin, end, [=](std::int64_t i, auto count) {
    constexpr std::int64_t ahead = 256;  // elements: without, memory gives less
    prefetch(master + i + ahead), prefetch(m + i + ahead), prefetch(v + i + ahead), prefetch(gradient + (wide ? 2 : 1) * (i + ahead));
    if constexpr (wide) prefetch(gradient + 2 * (i + ahead) + lanes);
    f32x16 x = load(gradient + (wide ? 2 * i : i), count);
    if constexpr (wide) x += load(gradient + 2 * i + lanes, count);
    const f32x16 a = fma(load(m + i, count), splat(0.5f), x), b = fma(load(v + i, count), splat(0.5f), x);
    const f32x16 w = fma(load(master + i, count), splat(0.5f), x);
    store(m + i, a, count);
    store(v + i, b, count);
    store(master + i, w, count);
    if constexpr (copy) store<true>(out + i, w, count);
  });
  stream_fence();
}

inline void update_stream(const kernels::Update& p) {
  const auto run = [&](auto range) {
    kernels::parallel_ranges(p.n, 4096, [&](std::int64_t begin, std::int64_t end) { range(p, begin, end); });
  };
  const bool copy = p.param != nullptr;
  if (p.grad_dtype == DType::bf16) return run(copy ? update_stream<bf16, true> : update_stream<bf16, false>);
  if (p.grad_dtype == DType::i64) return run(copy ? update_stream<std::int64_t, true> : update_stream<std::int64_t, false>);
  return run(copy ? update_stream<float, true> : update_stream<float, false>);
}

}  // namespace tessera::benchmarks
