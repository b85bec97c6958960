#include "kernels/quantize/quantize.hpp"

#include "kernels/parallel.hpp"
#include "kernels/quantize/code.hpp"
#include "kernels/vector/vector.hpp"

namespace tessera::kernels::host {
namespace {

constexpr std::int64_t block_grain = 64 * wire_block;

/// The low byte of each lane, and bytes as lanes.
TESSERA_INLINE void store_bytes(std::byte* to, const i32x16& x) {
  typedef std::int8_t Bytes __attribute__((vector_size(i32x16::part_size)));  // NOLINT: attributes need typedef
  unrolled<parts>([&](auto k) __attribute__((always_inline)) {
    const auto bytes = __builtin_convertvector(x.part[k], Bytes);
    std::memcpy(to + k * i32x16::part_size, &bytes, sizeof bytes);
  });
}
TESSERA_INLINE i32x16 load_bytes(const std::byte* from) {
  typedef std::int8_t Bytes __attribute__((vector_size(i32x16::part_size)));  // NOLINT: attributes need typedef
  i32x16 x;
  unrolled<parts>([&](auto k) __attribute__((always_inline)) {
    Bytes bytes;
    std::memcpy(&bytes, from + k * i32x16::part_size, sizeof bytes);
    x.part[k] = __builtin_convertvector(bytes, i32x16::Part);
  });
  return x;
}

template <class T>
std::uint32_t largest_magnitude(const T* x) {
  i32x16 most(0);
  for (std::int64_t i = 0; i < wire_block; i += lanes) {
    const i32x16 bits = bits_as<i32x16>(load(x + i)) & 0x7fffffff;
    most = select(bits > most, bits, most);
  }
  std::int32_t largest = 0;
  for (int lane = 0; lane < lanes; ++lane) largest = std::max(largest, most[lane]);
  return static_cast<std::uint32_t>(largest);
}

template <class T>
TESSERA_INLINE i32x16 codes_of(const T* x, const f32x16& inverse) {
  return bits_as<i32x16>(fma(load(x), inverse, splat(code_shift))) - static_cast<std::int32_t>(code_shift_bits);
}

/// Of a block of NaN all codes are zero: NaN * 0 would be no code.
template <Wire wire, class T>
void encode_block(std::byte* to, const T* x) {
  const BlockScale scale = block_scale(largest_magnitude(x), largest_code(wire));
  std::memcpy(to, &scale.scale, sizeof scale.scale);
  std::byte* codes = to + sizeof scale.scale;
  if (scale.inverse == 0) {
    std::memset(codes, 0, static_cast<std::size_t>(wire_bytes(wire, wire_block)) - sizeof scale.scale);
    return;
  }
  const f32x16 inverse = splat(scale.inverse);
  if constexpr (wire == Wire::int8_blocks) {
    for (std::int64_t i = 0; i < wire_block; i += lanes) store_bytes(codes + i, codes_of(x + i, inverse));
  } else {
    for (std::int64_t i = 0; i < wire_block; i += 2 * lanes)
      store_bytes(codes + i / 2, (codes_of(x + i, inverse) & 15) | (codes_of(x + i + lanes, inverse) << 4));
  }
}

/// Calls take(i, codes as floats) for each vector of a block.
template <Wire wire, class Take>
TESSERA_INLINE void for_codes(const std::byte* codes, Take&& take) {
  if constexpr (wire == Wire::int8_blocks) {
    for (std::int64_t i = 0; i < wire_block; i += lanes) take(i, convert<f32x16>(load_bytes(codes + i)));
  } else {
    for (std::int64_t i = 0; i < wire_block; i += 2 * lanes) {
      const i32x16 pairs = load_bytes(codes + i / 2);
      take(i, convert<f32x16>((pairs << 28) >> 28));
      take(i + lanes, convert<f32x16>(pairs >> 4));
    }
  }
}

float scale_of(const std::byte* block) {
  float scale;
  std::memcpy(&scale, block, sizeof scale);
  return scale;
}

template <Wire wire, class T>
void decode_block(T* x, const std::byte* block) {
  const f32x16 scale = splat(scale_of(block));
  for_codes<wire>(
      block + sizeof(float), [&](std::int64_t i, const f32x16& codes) __attribute__((always_inline)) { store(x + i, codes * scale); });
}

template <Wire wire>
void sum_block(const SumBlocks& p, std::int64_t at) {
  float sum[wire_block] = {};
  if (p.accumulate) std::memcpy(sum, p.sum + at, sizeof sum);
  const std::byte* block = p.blocks + wire_bytes(wire, at);
  for (int m = 0; m < p.members; ++m, block += wire_bytes(wire, p.n)) {
    const f32x16 scale = splat(scale_of(block));
    for_codes<wire>(
        block + sizeof(float), [&](std::int64_t i, const f32x16& codes)
                                   __attribute__((always_inline)) { store(sum + i, fma(codes, scale, load(sum + i))); });
  }
  std::memcpy(p.sum + at, sum, sizeof sum);
}

template <class F>
void with_wire(Wire wire, F&& f) {
  if (wire == Wire::int8_blocks) return f(std::integral_constant<Wire, Wire::int8_blocks>{});
  TESSERA_REQUIRE(wire == Wire::int4_blocks, "wire {}", static_cast<int>(wire));
  f(std::integral_constant<Wire, Wire::int4_blocks>{});
}

template <class F>
void for_blocks(std::int64_t n, F&& f) {
  TESSERA_REQUIRE(n % wire_block == 0, "{} elements are no whole blocks", n);
  parallel_ranges(n, block_grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t at = begin; at < end; at += wire_block) f(at);
  });
}

}  // namespace

void encode_blocks(const Context&, const EncodeBlocks& p) {
  with_wire(p.wire, [&](auto wire) {
    with_float_type(p.dtype, "encode_blocks", [&](auto type) {
      const auto* x = static_cast<const decltype(type)*>(p.x);
      for_blocks(p.n, [&](std::int64_t at) { encode_block<wire()>(p.blocks + wire_bytes(wire, at), x + at); });
    });
  });
}

void decode_blocks(const Context&, const DecodeBlocks& p) {
  with_wire(p.wire, [&](auto wire) {
    with_float_type(p.dtype, "decode_blocks", [&](auto type) {
      auto* x = static_cast<decltype(type)*>(p.x);
      for_blocks(p.n, [&](std::int64_t at) { decode_block<wire()>(x + at, p.blocks + wire_bytes(wire, at)); });
    });
  });
}

void sum_blocks(const Context&, const SumBlocks& p) {
  with_wire(p.wire, [&](auto wire) { for_blocks(p.n, [&](std::int64_t at) { sum_block<wire()>(p, at); }); });
}

}  // namespace tessera::kernels::host
