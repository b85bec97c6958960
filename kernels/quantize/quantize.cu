// Bound by memory: a warp takes a block, in one pass. Of each 128 elements a thread has four neighbours, so that a warp reads and writes
// whole sectors; codes lie on four bytes, since scales stand between them. Bits are the host's. Not yet measured.
#include "kernels/cuda/reduce.hpp"
#include "kernels/cuda/vector.hpp"
#include "kernels/quantize/code.hpp"

namespace tessera::kernels::cuda {
namespace {

using namespace tessera::cuda;

constexpr int warps = block_threads / warp_lanes;
constexpr int in_thread = static_cast<int>(wire_block) / warp_lanes, groups = in_thread / 4;

/// The first of this lane's four elements of a group: of 128 with codes of 8 bits; with those of 4 bits a word has four of the lower
/// sixteen of 32, and the four beside them.
template <Wire wire>
__device__ int element(int lane, int group) {
  if (wire == Wire::int8_blocks) return 128 * group + 4 * lane;
  return lane / 4 * 32 + 16 * group + lane % 4 * 4;
}

/// The block of this warp; beyond the last where there is none.
__device__ std::int64_t block_of_warp() { return static_cast<std::int64_t>(blockIdx.x) * warps + threadIdx.x / warp_lanes; }
__device__ int lane_of_warp() { return static_cast<int>(threadIdx.x) % warp_lanes; }

template <Wire wire>
__device__ void store_codes(std::uint32_t* words, int lane, const std::uint32_t (&code)[groups][4]) {
  if constexpr (wire == Wire::int8_blocks) {
#pragma unroll
    for (int g = 0; g < groups; ++g) {
      std::uint32_t word = 0;
#pragma unroll
      for (int k = 0; k < 4; ++k) word |= (code[g][k] & 255u) << 8 * k;
      words[warp_lanes * g + lane] = word;
    }
  } else {
    std::uint32_t word = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) word |= (code[0][k] & 15u) << 8 * k | (code[1][k] & 15u) << (8 * k + 4);
    words[lane] = word;
  }
}

template <Wire wire>
__device__ void load_codes(float (&code)[groups][4], const std::uint32_t* words, int lane) {
#pragma unroll
  for (int g = 0; g < groups; ++g) {
    const std::uint32_t word = words[wire == Wire::int8_blocks ? warp_lanes * g + lane : lane];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int shift = wire == Wire::int8_blocks ? 24 - 8 * k : 28 - 8 * k - 4 * g;
      code[g][k] = static_cast<float>(static_cast<std::int32_t>(word << shift) >> (wire == Wire::int8_blocks ? 24 : 28));
    }
  }
}

/// Bits of the largest magnitude of a warp's values.
__device__ std::uint32_t largest_of_warp(const float (&value)[groups][4]) {
  std::uint32_t magnitude = 0;
#pragma unroll
  for (int g = 0; g < groups; ++g) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const std::uint32_t bits = __float_as_uint(value[g][k]) & 0x7fffffffu;
      magnitude = bits > magnitude ? bits : magnitude;
    }
  }
  return warp_max(magnitude);
}

/// Of a block of NaN all codes are zero.
__device__ std::uint32_t code_of(float value, const BlockScale& scale) {
  return scale.inverse == 0 ? 0 : __float_as_uint(fmaf(value, scale.inverse, code_shift)) - code_shift_bits;
}

template <Wire wire, class T>
__global__ void __launch_bounds__(block_threads) encode_kernel(std::byte* blocks, const T* x, std::int64_t n) {
  const std::int64_t block = block_of_warp(), first = block * wire_block;
  const int lane = lane_of_warp();
  if (first >= n) return;
  float value[groups][4];
#pragma unroll
  for (int g = 0; g < groups; ++g) load<std::true_type, 4>(value[g], x, first + element<wire>(lane, g), n);
  const BlockScale scale = block_scale(largest_of_warp(value), largest_code(wire));
  std::uint32_t code[groups][4];
#pragma unroll
  for (int g = 0; g < groups; ++g) {
#pragma unroll
    for (int k = 0; k < 4; ++k) code[g][k] = code_of(value[g][k], scale);
  }
  auto* words = reinterpret_cast<std::uint32_t*>(blocks + wire_bytes(wire, first));
  if (lane == 0) words[0] = __float_as_uint(scale.scale);
  store_codes<wire>(words + 1, lane, code);
}

/// Codes of the error lie as the wire's elements do: a word has four neighbours.
template <Wire wire>
__global__ void __launch_bounds__(block_threads) encode_with_error_kernel(EncodeWithError p) {
  const std::int64_t first = block_of_warp() * wire_block;
  const int lane = lane_of_warp();
  if (first >= p.n) return;
  auto* kept = reinterpret_cast<std::uint32_t*>(p.error + wire_bytes(Wire::int8_blocks, first));
  auto* words = reinterpret_cast<std::uint32_t*>(p.blocks + wire_bytes(wire, first));
  const float factor = error_factor(p), old = factor == 0 ? 0 : __uint_as_float(kept[0]) * factor;
  float error[groups][4], value[groups][4];
#pragma unroll
  for (int g = 0; g < groups; ++g) {
    load<std::true_type, 4>(value[g], p.x, first + element<wire>(lane, g), p.n);
    const std::uint32_t word = kept[1 + element<wire>(lane, g) / 4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const auto code = static_cast<float>(static_cast<std::int32_t>(word << (24 - 8 * k)) >> 24);
      error[g][k] = code * old;
      value[g][k] = fmaf(code, old, value[g][k]);
    }
  }
  const BlockScale scale = block_scale(largest_of_warp(value), largest_code(wire));
  std::uint32_t code[groups][4];
#pragma unroll
  for (int g = 0; g < groups; ++g) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      code[g][k] = code_of(value[g][k], scale);
      const float left = fmaf(static_cast<float>(static_cast<std::int32_t>(code[g][k])), -scale.scale, value[g][k]);
      error[g][k] = fmaf(p.beta, error[g][k], (1 - p.beta) * left);
    }
  }
  BlockScale next = error_scale(largest_of_warp(error));
  if (p.loss_scale) next.scale /= *p.loss_scale;
  __syncwarp();  // every lane has read the error's scale
  if (lane == 0) words[0] = __float_as_uint(scale.scale), kept[0] = __float_as_uint(next.scale);
  store_codes<wire>(words + 1, lane, code);
#pragma unroll
  for (int g = 0; g < groups; ++g) {
    std::uint32_t word = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) word |= (code_of(error[g][k], next) & 255u) << 8 * k;
    kept[1 + element<wire>(lane, g) / 4] = word;
  }
}

template <Wire wire, class T>
__global__ void __launch_bounds__(block_threads) decode_kernel(T* x, const std::byte* blocks, std::int64_t n) {
  const std::int64_t first = block_of_warp() * wire_block;
  const int lane = lane_of_warp();
  if (first >= n) return;
  const auto* words = reinterpret_cast<const std::uint32_t*>(blocks + wire_bytes(wire, first));
  const float scale = __uint_as_float(words[0]);
  float code[groups][4];
  load_codes<wire>(code, words + 1, lane);
#pragma unroll
  for (int g = 0; g < groups; ++g) {
#pragma unroll
    for (int k = 0; k < 4; ++k) code[g][k] *= scale;
    store<std::true_type>(x, first + element<wire>(lane, g), n, code[g]);
  }
}

template <Wire wire>
__global__ void __launch_bounds__(block_threads) sum_kernel(SumBlocks p) {
  const std::int64_t first = block_of_warp() * wire_block;
  const int lane = lane_of_warp();
  if (first >= p.n) return;
  float sum[groups][4] = {};
  if (p.accumulate) {
#pragma unroll
    for (int g = 0; g < groups; ++g) load<std::true_type, 4>(sum[g], p.sum, first + element<wire>(lane, g), p.n);
  }
  for (int m = 0; m < p.members; ++m) {
    const auto* words = reinterpret_cast<const std::uint32_t*>(p.blocks + m * wire_bytes(wire, p.n) + wire_bytes(wire, first));
    const float scale = __uint_as_float(words[0]);
    float code[groups][4];
    load_codes<wire>(code, words + 1, lane);
#pragma unroll
    for (int g = 0; g < groups; ++g) {
#pragma unroll
      for (int k = 0; k < 4; ++k) sum[g][k] = fmaf(code[g][k], scale, sum[g][k]);
    }
  }
#pragma unroll
  for (int g = 0; g < groups; ++g) store<std::true_type>(p.sum, first + element<wire>(lane, g), p.n, sum[g]);
}

template <class F>
void with_wire(Wire wire, F&& f) {
  TESSERA_CUDA_REQUIRE(wire != Wire::plain);
  if (wire == Wire::int8_blocks)
    f(std::integral_constant<Wire, Wire::int8_blocks>{});
  else
    f(std::integral_constant<Wire, Wire::int4_blocks>{});
}

unsigned grid_of(std::int64_t n, const void* x) {
  TESSERA_CUDA_REQUIRE(n % wire_block == 0 && on_sixteen_bytes(x) && n / wire_block < std::int64_t{1} << 31);
  return static_cast<unsigned>(ceil_div(n / wire_block, warps));
}

}  // namespace

void encode_blocks(const Context& context, const EncodeBlocks& p) {
  if (p.n == 0) return;
  with_wire(p.wire, [&](auto wire) {
    with_float_type(p.dtype, [&](auto type) {
      using T = decltype(type);
      launch(stream_of(context), grid_of(p.n, p.x), block_threads, 0, encode_kernel<decltype(wire)::value, T>, p.blocks,
             static_cast<const T*>(p.x), p.n);
    });
  });
}

void encode_with_error(const Context& context, const EncodeWithError& p) {
  if (p.n == 0) return;
  with_wire(p.wire, [&](auto wire) {
    launch(stream_of(context), grid_of(p.n, p.x), block_threads, 0, encode_with_error_kernel<decltype(wire)::value>, p);
  });
}

void decode_blocks(const Context& context, const DecodeBlocks& p) {
  if (p.n == 0) return;
  with_wire(p.wire, [&](auto wire) {
    with_float_type(p.dtype, [&](auto type) {
      using T = decltype(type);
      launch(stream_of(context), grid_of(p.n, p.x), block_threads, 0, decode_kernel<decltype(wire)::value, T>, static_cast<T*>(p.x),
             p.blocks, p.n);
    });
  });
}

void sum_blocks(const Context& context, const SumBlocks& p) {
  if (p.n == 0) return;
  with_wire(p.wire,
            [&](auto wire) { launch(stream_of(context), grid_of(p.n, p.sum), block_threads, 0, sum_kernel<decltype(wire)::value>, p); });
}

}  // namespace tessera::kernels::cuda
