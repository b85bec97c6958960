// A stable radix sort, eight bits a pass. Tokens are cut into tiles; a pass counts the digits of each tile, turns the counts into the
// places where each tile's tokens of a digit begin, and moves the tokens there in their order. The batch is small (a few hundred
// kilobytes), so this is bound by the latency of nine launches for a vocabulary of 2^17. Not yet measured.
#include "kernels/embedding/sort.hpp"

#include <algorithm>
#include <bit>

#include "kernels/cuda/reduce.hpp"
#include "kernels/embedding/sort_sizes.hpp"

namespace tessera::kernels::cuda {
namespace {

using namespace tessera::cuda;
using namespace sort_sizes;

constexpr int scan_threads = 1024, sort_warps = sort_threads / warp_lanes;

__device__ int digit_of(std::int32_t token, int shift) { return token >> shift & (digits - 1); }

/// What the first pass reads, as ids of the slice; later ones read what it wrote.
struct Source {
  const std::int32_t* tokens;
  VocabularySlice slice;
  std::int64_t V;
  __device__ std::int32_t operator()(std::int64_t i) const {
    const std::int64_t row = tokens[i] - slice.first;
    const bool here = row >= 0 && row < V;
    require(here || !slice.whole);
    return static_cast<std::int32_t>(here ? row : V);
  }
};

/// counts (digits, tiles)
template <class Tokens>
__global__ void __launch_bounds__(sort_threads) count_kernel(std::int32_t* counts, Tokens tokens, std::int64_t M, int shift) {
  __shared__ int count[digits];
  count[threadIdx.x] = 0;
  __syncthreads();
  for (int round = 0; round < rounds; ++round) {
    const std::int64_t i = blockIdx.x * tile_tokens + round * sort_threads + threadIdx.x;
    if (i >= M) break;
    atomicAdd(&count[digit_of(tokens(i), shift)], 1);  // integers: the order does not matter
  }
  __syncthreads();
  counts[threadIdx.x * gridDim.x + blockIdx.x] = count[threadIdx.x];
}

/// counts[i] becomes the sum of those before it. One block: each thread has a run of them.
__global__ void __launch_bounds__(scan_threads) scan_kernel(std::int32_t* counts, std::int64_t n) {
  __shared__ int of_warp[warp_lanes];
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes, warp = static_cast<int>(threadIdx.x) / warp_lanes;
  const std::int64_t run = ceil_div(n, scan_threads), begin = std::min<std::int64_t>(n, run * threadIdx.x), end = std::min(n, begin + run);
  int sum = 0;
  for (std::int64_t i = begin; i < end; ++i) sum += counts[i];
  const auto sum_up_to_lane = [lane](int x) {
    for (int by = 1; by < warp_lanes; by *= 2) {
      const int below = __shfl_up_sync(all_lanes, x, static_cast<unsigned>(by));
      if (lane >= by) x += below;
    }
    return x;
  };
  const int up_to = sum_up_to_lane(sum);
  if (lane == warp_lanes - 1) of_warp[warp] = up_to;
  __syncthreads();
  const int warps_up_to = sum_up_to_lane(of_warp[lane]), warps_before = __shfl_sync(all_lanes, warps_up_to, warp > 0 ? warp - 1 : 0);
  int before = up_to - sum + (warp > 0 ? warps_before : 0);
  for (std::int64_t i = begin; i < end; ++i) {
    const int count = counts[i];
    counts[i] = before;
    before += count;
  }
}

struct Written {
  const std::int32_t* tokens;
  __device__ std::int32_t operator()(std::int64_t i) const { return tokens[i]; }
};

template <class Tokens>
struct Pass {
  Tokens tokens;
  const std::int32_t* order;  ///< null in the first pass, where it is 0, 1, ...
  std::int32_t *tokens_out, *order_out;
  const std::int32_t* starts;  ///< (digits, tiles)
  std::int64_t M;
  int shift;
};

/// A tile in rounds of a token a thread. Within a warp a token's place among those of its digit comes from the lanes below it; thread d
/// then says where each warp's tokens of digit d begin.
template <class Tokens>
__global__ void __launch_bounds__(sort_threads) scatter_kernel(Pass<Tokens> p) {
  __shared__ int start[sort_warps][digits];
  const int t = static_cast<int>(threadIdx.x), lane = t % warp_lanes, warp = t / warp_lanes;
  int next = p.starts[t * static_cast<std::int64_t>(gridDim.x) + blockIdx.x];
  for (int round = 0; round < rounds; ++round) {
    const std::int64_t i = blockIdx.x * tile_tokens + round * sort_threads + t;
    const bool there = i < p.M;
    const std::int32_t token = there ? p.tokens(i) : 0;
    const int digit = there ? digit_of(token, p.shift) : digits;
    for (int w = 0; w < sort_warps; ++w) start[w][t] = 0;
    __syncthreads();
    const unsigned peers = __match_any_sync(all_lanes, digit);
    const int below = __popc(peers & ((1u << lane) - 1));
    if (there && below == 0) start[warp][digit] = __popc(peers);
    __syncthreads();
    for (int w = 0; w < sort_warps; ++w) {
      const int count = start[w][t];
      start[w][t] = next;
      next += count;
    }
    __syncthreads();
    if (there) {
      const int place = start[warp][digit] + below;
      p.tokens_out[place] = token;
      p.order_out[place] = p.order ? p.order[i] : static_cast<std::int32_t>(i);
    }
    __syncthreads();  // before the next round clears the counts
  }
}

}  // namespace

SortedTokens sort_tokens(cudaStream_t stream, void* workspace, const UnsortedTokens& p) {
  const std::int64_t M = p.M, V = p.V;
  TESSERA_CUDA_REQUIRE(M > 0 && M < std::int64_t{1} << 31 && V > 0 && V < std::int64_t{1} << 31);
  auto* memory = static_cast<std::int32_t*>(workspace);
  std::int32_t *counts = memory + 4 * M, *out[2][2] = {{memory, memory + M}, {memory + 2 * M, memory + 3 * M}};
  const auto tiles = static_cast<unsigned>(tiles_of(M));
  SortedTokens sorted{};
  const auto pass = [&](auto tokens, int shift, int to) {
    using Tokens = decltype(tokens);
    launch(stream, tiles, sort_threads, 0, count_kernel<Tokens>, counts, tokens, M, shift);
    launch(stream, 1, scan_threads, 0, scan_kernel, counts, std::int64_t{digits} * tiles);
    launch(stream, tiles, sort_threads, 0, scatter_kernel<Tokens>,
           Pass<Tokens>{tokens, sorted.order, out[to][0], out[to][1], counts, M, shift});
    sorted = {out[to][0], out[to][1]};
  };
  pass(Source{p.tokens, p.slice, V}, 0, 0);
  const int bits = std::bit_width(static_cast<std::uint64_t>(p.slice.whole ? V - 1 : V));
  for (int shift = digit_bits, to = 1; shift < bits; shift += digit_bits, to ^= 1) pass(Written{sorted.tokens}, shift, to);
  return sorted;
}

}  // namespace tessera::kernels::cuda
