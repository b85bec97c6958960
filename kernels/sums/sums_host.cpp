#include "kernels/sums/sums.hpp"

#include <atomic>

#include "kernels/parallel.hpp"
#include "kernels/vector/vector.hpp"

namespace tessera::kernels::host {
namespace {

TESSERA_INLINE f64x8 load8(const float* x) { return to_f64(x); }
TESSERA_INLINE f64x8 load8(const bf16* x) { return to_f64(x); }
TESSERA_INLINE f64x8 load8(const std::int64_t* x) { return to_f64(x) * 0x1p-44; }

/// Element i of a block goes to chain i % 32; each chain runs in order, and the chains are joined by halves.
template <class T>
double block_sum(const T* x) {
  f64x8 sum[4] = {};
  for (int i = 0; i < sum_block; i += 32) {
    // Two blocks ahead, over the gap in which a block's sum is joined.
    prefetch(x + i + 2 * sum_block);
    prefetch(x + i + 2 * sum_block + 16);
    unrolled<4>([&](auto k) {
      f64x8 v = load8(x + i + 8 * k);
      sum[k] = fma(v, v, sum[k]);
    });
  }
  return horizontal_sum((sum[0] + sum[2]) + (sum[1] + sum[3]));
}

/// The blocks' sums are fp64 in a fixed order; adding them is exact, so how they are split over threads, ranks and shards has no effect.
template <class T>
void run(const SumOfSquares& p) {
  const T* x = static_cast<const T*>(p.x);
  const double unscaled = p.scale ? 1 / (static_cast<double>(*p.scale) * static_cast<double>(*p.scale)) : 1;
  parallel_ranges(p.n / sum_block, 64, [&](std::int64_t begin, std::int64_t end) {
    FixedSum local;
    bool fits = true;
    for (std::int64_t b = begin; b < end; ++b) fits &= local.add(block_sum(x + b * sum_block) * unscaled);
    for (int i = 0; i < 4; ++i) std::atomic_ref<std::int64_t>(p.sum->limb[i]).fetch_add(local.limb[i], std::memory_order_relaxed);
    if (!fits) std::atomic_ref<std::int32_t>(*p.not_finite).store(1, std::memory_order_relaxed);
  });
}

}  // namespace

void sum_of_squares(const Context&, const SumOfSquares& p) {
  TESSERA_REQUIRE(p.n % sum_block == 0, "sum_of_squares takes whole blocks of {}, not {} elements", sum_block, p.n);
  with_sum_type(p.dtype, "sum_of_squares", [&](auto type) { run<decltype(type)>(p); });
}

std::size_t sum_of_squares_workspace_bytes(const SumOfSquares&) { return 0; }

}  // namespace tessera::kernels::host
