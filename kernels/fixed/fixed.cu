// Bound by memory: fixed_accumulate moves 20 bytes an element, fixed_add 24, fixed_to_float 12, fixed_to_bf16 10. Bits are the host's. Not
// yet measured.
#include "kernels/fixed/fixed.hpp"

#include <limits>

#include "kernels/cuda/vector.hpp"

namespace tessera::kernels::cuda {
namespace {

using namespace tessera::cuda;

constexpr int N = vector_elements<std::int64_t>, unroll = 4;

/// sum + x as two's complement: wraps instead of being undefined; the flag is up by then.
__device__ std::int64_t wrapping_add(std::int64_t sum, std::int64_t x) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(sum) + static_cast<std::uint64_t>(x));
}

__device__ void raise(std::int32_t* faults, std::int32_t bits) {
  if (bits) atomicOr(faults, bits);
}

template <class Whole>
__global__ void __launch_bounds__(block_threads) accumulate_kernel(FixedAccumulate p) {
  const Tile<N, unroll> tile;
  Vector<std::int64_t, N> s[unroll];
  Vector<float, N> add[unroll];
  std::int32_t faults = 0;
#pragma unroll
  for (int u = 0; u < unroll; ++u) s[u] = load<Whole, N>(p.sum, tile.at(u), p.n), add[u] = load<Whole, N>(p.x, tile.at(u), p.n);
  const double factor = p.scale ? 0x1p44 / static_cast<double>(*p.scale) : 0x1p44;
#pragma unroll
  for (int u = 0; u < unroll; ++u) {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const double value = static_cast<double>(add[u].value[k]) * factor;
      const bool finite = fabs(value) <= std::numeric_limits<double>::max(), fits = fabs(value) < 0x1p62;  // false for NaN
      std::int64_t& total = s[u].value[k];
      total = wrapping_add(total, fits ? __double2ll_rn(value) : 0);
      if (!finite)
        faults |= fixed_not_finite;
      else if (!fits || total >= p.limit || total <= -p.limit)
        faults |= fixed_out_of_range;
    }
    store<Whole>(p.sum, tile.at(u), p.n, s[u]);
  }
  raise(p.faults, faults);
}

template <class Whole>
__global__ void __launch_bounds__(block_threads)
    add_kernel(std::int64_t* sum, const std::int64_t* x, std::int64_t n, std::int32_t* faults) {
  const Tile<N, unroll> tile;
  Vector<std::int64_t, N> s[unroll], add[unroll];
  bool bad = false;
#pragma unroll
  for (int u = 0; u < unroll; ++u) s[u] = load<Whole, N>(sum, tile.at(u), n), add[u] = load<Whole, N>(x, tile.at(u), n);
#pragma unroll
  for (int u = 0; u < unroll; ++u) {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const std::int64_t a = s[u].value[k], b = add[u].value[k], total = wrapping_add(a, b);
      bad |= ((a ^ total) & (b ^ total)) < 0 || total >= fixed_limit || total <= -fixed_limit;
      s[u].value[k] = total;
    }
    store<Whole>(sum, tile.at(u), n, s[u]);
  }
  raise(faults, bad ? fixed_out_of_range : 0);
}

template <class Whole, class Out>
__global__ void __launch_bounds__(block_threads) round_kernel(Out* out, const std::int64_t* sum, std::int64_t n) {
  const Tile<N, unroll> tile;
  Vector<std::int64_t, N> s[unroll];
#pragma unroll
  for (int u = 0; u < unroll; ++u) s[u] = load<Whole, N>(sum, tile.at(u), n);
#pragma unroll
  for (int u = 0; u < unroll; ++u) {
    float value[N];
#pragma unroll
    for (int k = 0; k < N; ++k) value[k] = __ll2float_rn(s[u].value[k]) * 0x1p-44f;
    store<Whole>(out, tile.at(u), n, value);
  }
}

template <class Out>
void round_sums(const Context& context, Out* out, const std::int64_t* sum, std::int64_t n) {
  if (n == 0) return;
  with_whole(on_sixteen_bytes(out, sum) && whole_vectors(N, {n}), [&](auto whole) {
    launch(stream_of(context), Tile<N, unroll>::blocks(n), block_threads, 0, round_kernel<decltype(whole), Out>, out, sum, n);
  });
}

}  // namespace

void fixed_accumulate(const Context& context, const FixedAccumulate& p) {
  if (p.n == 0) return;
  with_whole(on_sixteen_bytes(p.sum, p.x) && whole_vectors(N, {p.n}), [&](auto whole) {
    launch(stream_of(context), Tile<N, unroll>::blocks(p.n), block_threads, 0, accumulate_kernel<decltype(whole)>, p);
  });
}

void fixed_add(const Context& context, std::int64_t* sum, const std::int64_t* x, std::int64_t n, std::int32_t* faults) {
  if (n == 0) return;
  with_whole(on_sixteen_bytes(sum, x) && whole_vectors(N, {n}), [&](auto whole) {
    launch(stream_of(context), Tile<N, unroll>::blocks(n), block_threads, 0, add_kernel<decltype(whole)>, sum, x, n, faults);
  });
}

void fixed_to_float(const Context& context, float* out, const std::int64_t* sum, std::int64_t n) { round_sums(context, out, sum, n); }
void fixed_to_bf16(const Context& context, bf16* out, const std::int64_t* sum, std::int64_t n) { round_sums(context, out, sum, n); }

}  // namespace tessera::kernels::cuda
