// An update whose state is in 8 bits, on a GPU: a warp takes a block at a time, its codes and weights four to a thread, with the bits of
// blocks_host.hpp.
#pragma once
#include "kernels/cuda/reduce.hpp"
#include "kernels/update/eight_bits.hpp"
#include "kernels/update/update_cuda.hpp"

namespace tessera::kernels::cuda {
namespace update_detail {

/// Tables of both codes; of state s the values and the rows of the search stand at [s].
struct EightBitTables {
  EightBitMap map[2];
  EightBitSearch search[2];
};
__device__ const EightBitTables eight_bit_tables = {{signed_eight_bits, unsigned_eight_bits}, {signed_search, unsigned_search}};

constexpr int warps = block_threads / 32, of_thread = 4, rounds = state_block / (32 * of_thread);

template <class Rule, class Grad, class Param, class Whole>
__global__ void __launch_bounds__(block_threads) update_blocks_kernel(Update p) {
  // Looked up by codes, which differ from thread to thread: from shared memory. The search's rows come through the cache.
  __shared__ float value[Rule::states][256];
  for (int i = threadIdx.x; i < 256 * Rule::states; i += block_threads)
    value[i / 256][i % 256] = eight_bit_tables.map[i / 256].value[i % 256];
  __syncthreads();
  const bool skip = p.scalars->skip;
  if (skip && !p.param) return;
  const Rule rule(*p.scalars, p);
  const int lane = threadIdx.x % 32;
  const std::int64_t blocks = (p.n + state_block - 1) / state_block;
  for (std::int64_t block = static_cast<std::int64_t>(blockIdx.x) * warps + threadIdx.x / 32; block < blocks;
       block += static_cast<std::int64_t>(gridDim.x) * warps) {
    float kept[Rule::states][rounds][of_thread], least[Rule::states], most[Rule::states];
#pragma unroll
    for (int s = 0; s < Rule::states; ++s) least[s] = most[s] = 0;
#pragma unroll
    for (int r = 0; r < rounds; ++r) {
      const int at = (r * 32 + lane) * of_thread;
      const std::int64_t i = block * state_block + at;
      float w[of_thread];
      load<Whole>(w, p.master, i, p.n);
      if (!skip) {
        const Vector<Grad, of_thread> grad = load<Whole, of_thread>(static_cast<const Grad*>(p.grad), i, p.n);
        Vector<std::uint8_t, of_thread> codes[Rule::states];
        float scale[Rule::states];
#pragma unroll
        for (int s = 0; s < Rule::states; ++s) {
          const std::uint8_t* state = static_cast<const std::uint8_t*>(p.state[s]) + block * state_block_bytes;
          codes[s] = load<std::true_type, of_thread>(state, at, state_block);
          scale[s] = *reinterpret_cast<const float*>(state + state_block);
        }
#pragma unroll
        for (int k = 0; k < of_thread; ++k) {
          float of_element[most_update_states];
#pragma unroll
          for (int s = 0; s < Rule::states; ++s) of_element[s] = decode_eight_bits(value[s], codes[s].value[k], scale[s]);
          rule(w[k], of_element, i + k < p.n ? gradient_of(grad.value[k]) : 0.0f);
#pragma unroll
          for (int s = 0; s < Rule::states; ++s) {
            kept[s][r][k] = of_element[s];
            least[s] = fminf(least[s], of_element[s]), most[s] = fmaxf(most[s], of_element[s]);
          }
        }
        store<Whole>(p.master, i, p.n, w);
      }
      if (p.param) store<Whole>(static_cast<Param*>(p.param), i, p.n, w);
    }
    if (skip) continue;
#pragma unroll
    for (int s = 0; s < Rule::states; ++s) {
      const float scale = block_scale(-warp_max(-least[s]), warp_max(most[s]));
      std::uint8_t* state = static_cast<std::uint8_t*>(p.state[s]) + block * state_block_bytes;
      __syncwarp();  // all have read the scale
      if (lane == 0) *reinterpret_cast<float*>(state + state_block) = scale;
#pragma unroll
      for (int r = 0; r < rounds; ++r) {
        Vector<std::uint8_t, of_thread> codes;
#pragma unroll
        for (int k = 0; k < of_thread; ++k)
          codes.value[k] = static_cast<std::uint8_t>(
              encode_eight_bits(eight_bit_tables.search[s].row.data(), eight_bit_tables.map[s].zero, kept[s][r][k], scale));
        store<std::true_type>(state, (r * 32 + lane) * of_thread, state_block, codes);
      }
    }
  }
}

}  // namespace update_detail

/// Its first element begins a block.
template <class Rule>
void update_in_blocks(const Context& context, const Update& p) {
  using namespace update_detail;
  if (p.n == 0) return;
  const std::int64_t blocks = tessera::ceil_div((p.n + state_block - 1) / state_block, std::int64_t{warps});
  tessera::cuda::with_sum_type(p.grad_dtype, [&](auto grad) {
    tessera::cuda::with_half_type(p.param_dtype, [&](auto param) {
      with_whole(on_sixteen_bytes(p.master, p.param, p.grad) && whole_vectors(of_thread, {p.n}), [&](auto whole) {
        launch(stream_of(context), static_cast<unsigned>(std::min<std::int64_t>(blocks, 1 << 16)), block_threads, 0,
               update_blocks_kernel<Rule, decltype(grad), decltype(param), decltype(whole)>, p);
      });
    });
  });
}

}  // namespace tessera::kernels::cuda
