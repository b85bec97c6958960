// Bound by memory: a warp makes a word of 32 neighbours by a vote. Bits are the host's. Not yet measured.
#include "kernels/cuda/reduce.hpp"
#include "kernels/cuda/vector.hpp"
#include "kernels/signs/sign_code.hpp"

namespace tessera::kernels::cuda {
namespace {

using namespace tessera::cuda;

constexpr int warps = block_threads / warp_lanes, words_of_warp = 8, blocks_of_warp = 8;
static_assert(sign_word == warp_lanes);

__device__ float with_error(const float* x, const float* error, std::int64_t i) { return x ? x[i] + error[i] : error[i]; }

/// A block a warp, in the host's order; limbs are added by integer atomics.
__global__ void __launch_bounds__(block_threads) sum_sign_squares_kernel(SumSignSquares p) {
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes;
  const std::int64_t first = (static_cast<std::int64_t>(blockIdx.x) * warps + threadIdx.x / warp_lanes) * blocks_of_warp;
  double mine = 0;  // lane k keeps the sum of block first + k
#pragma unroll 2
  for (int k = 0; k < blocks_of_warp && (first + k) * sign_block < p.n; ++k) {
    double sum = 0;
#pragma unroll
    for (int j = 0; j < sign_block / warp_lanes; ++j) {
      const std::int64_t i = (first + k) * sign_block + j * warp_lanes + lane;
      const double v = i < p.n ? static_cast<double>(with_error(p.x, p.error, i)) : 0.0;
      sum = fma(v, v, sum);
    }
    sum = warp_sum(sum);
    if (lane == k) mine = sum;
  }
  FixedSum local;
  local.add(mine);  // what does not fit adds nothing
  __shared__ std::int64_t of_warp[warps][4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const std::int64_t limb = warp_sum(local.limb[i], blocks_of_warp);
    if (lane == 0) of_warp[threadIdx.x / warp_lanes][i] = limb;
  }
  __syncthreads();
  if (threadIdx.x >= 4) return;
  std::int64_t limb = 0;
  for (int w = 0; w < warps; ++w) limb += of_warp[w][threadIdx.x];
  static_assert(sizeof(unsigned long long) == sizeof(std::int64_t));
  atomicAdd(reinterpret_cast<unsigned long long*>(&p.sum->limb[threadIdx.x]), static_cast<unsigned long long>(limb));
}

/// f(word) for the words of this warp.
template <class F>
__device__ void for_words(std::int64_t words, F&& f) {
  const std::int64_t first = (static_cast<std::int64_t>(blockIdx.x) * warps + threadIdx.x / warp_lanes) * words_of_warp;
#pragma unroll 4
  for (int k = 0; k < words_of_warp; ++k)
    if (first + k < words) f(first + k);
}
unsigned grid_of(std::int64_t words) {
  const std::int64_t blocks = ceil_div(words, std::int64_t{warps} * words_of_warp);
  TESSERA_CUDA_REQUIRE(blocks < std::int64_t{1} << 31);
  return static_cast<unsigned>(blocks);
}

__global__ void __launch_bounds__(block_threads) pack_signs_kernel(PackSigns p) {
  __shared__ float shared_scale;
  if (threadIdx.x == 0) shared_scale = sign_scale(*p.sum, p.n);
  __syncthreads();
  const float scale = shared_scale;
  const std::int64_t part_words = p.part / sign_word;
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes;
  for_words(part_words * p.parts, [&](std::int64_t word) {
    const std::int64_t i = word * sign_word + lane, part = word / part_words, at = word - part * part_words;
    const float v = i < p.n ? with_error(p.x, p.error, i) : -1.0f;
    const bool up = !(v < 0);
    if (i < p.n) p.error[i] = v - (up ? scale : -scale);
    const unsigned signs = __ballot_sync(all_lanes, up);
    if (lane != 0) return;
    p.words[part * p.step + at] = signs;
    if (at == 0) p.scale[part * p.step] = scale;
  });
}

__device__ float value_of(std::uint32_t signs, int lane, float scale) { return signs >> lane & 1u ? scale : -scale; }

__global__ void __launch_bounds__(block_threads) sum_signs_kernel(SumSigns p) {
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes;
  const float share = 1.0f / static_cast<float>(p.members);
  for_words(ceil_div(p.n, sign_word), [&](std::int64_t word) {
    const std::int64_t i = word * sign_word + lane;
    if (i >= p.n) return;
    float sum = 0;
    for (int m = 0; m < p.members; ++m) sum += value_of(p.words[m * p.step + word], lane, p.scale[m * p.step] * share);
    p.error[i] = sum + p.error[i];
  });
}

__global__ void __launch_bounds__(block_threads) unpack_signs_kernel(UnpackSigns p) {
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes;
  const std::int64_t part_words = p.part / sign_word;
  for_words(ceil_div(p.n, sign_word), [&](std::int64_t word) {
    const std::int64_t i = word * sign_word + lane, part = word / part_words, at = word - part * part_words;
    if (i < p.n) p.x[i] = value_of(p.words[part * p.step + at], lane, p.scale[part * p.step]);
  });
}

}  // namespace

void sum_sign_squares(const Context& context, const SumSignSquares& p) {
  if (p.n == 0) return;
  const std::int64_t blocks = ceil_div(ceil_div(p.n, sign_block), std::int64_t{warps} * blocks_of_warp);
  TESSERA_CUDA_REQUIRE(blocks < std::int64_t{1} << 31);
  launch(stream_of(context), static_cast<unsigned>(blocks), block_threads, 0, sum_sign_squares_kernel, p);
}

void pack_signs(const Context& context, const PackSigns& p) {
  if (p.part == 0) return;
  launch(stream_of(context), grid_of(p.part / sign_word * p.parts), block_threads, 0, pack_signs_kernel, p);
}

void sum_signs(const Context& context, const SumSigns& p) {
  if (p.n == 0) return;
  launch(stream_of(context), grid_of(ceil_div(p.n, sign_word)), block_threads, 0, sum_signs_kernel, p);
}

void unpack_signs(const Context& context, const UnpackSigns& p) {
  if (p.n == 0) return;
  launch(stream_of(context), grid_of(ceil_div(p.n, sign_word)), block_threads, 0, unpack_signs_kernel, p);
}

}  // namespace tessera::kernels::cuda
