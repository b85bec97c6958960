#include "kernels/quantize/quantize.hpp"

#include "kernels/parallel.hpp"
#include "kernels/quantize/code.hpp"
#include "kernels/vector/vector.hpp"

namespace tessera::kernels::host {
namespace {

constexpr std::int64_t block_grain = 64 * wire_block;

/// The low byte of each lane, and bytes as lanes. GCC makes a conversion of bytes a lane at a time.
TESSERA_INLINE void store_bytes(std::byte* to, const i32x16& x) {
#if defined(TESSERA_AVX512)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(std::bit_cast<__m512i>(x)));
#elif defined(TESSERA_AVX2)
  const __m256i low_bytes = _mm256_set1_epi64x(0x0c080400);
  unrolled<parts>([&](auto k) __attribute__((always_inline)) {
    const __m256i four = _mm256_shuffle_epi8(std::bit_cast<__m256i>(x.part[k]), low_bytes);  // in each half's first word
    const __m128i eight = _mm_unpacklo_epi32(_mm256_castsi256_si128(four), _mm256_extracti128_si256(four, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to + 8 * k), eight);
  });
#else
  for (int i = 0; i < lanes; ++i) to[i] = static_cast<std::byte>(x[i]);
#endif
}
TESSERA_INLINE i32x16 load_bytes(const std::byte* from) {
#if defined(TESSERA_AVX512)
  return std::bit_cast<i32x16>(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#else
  i32x16 x;
  unrolled<parts>([&](auto k) __attribute__((always_inline)) {
#if defined(TESSERA_AVX2)
    x.part[k] = std::bit_cast<i32x16::Part>(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from + 8 * k))));
#else
    for (int i = 0; i < i32x16::part_size; ++i) x.part[k][i] = static_cast<std::int8_t>(from[k * i32x16::part_size + i]);
#endif
  });
  return x;
#endif
}

/// The largest of what are magnitudes' bits.
TESSERA_INLINE std::uint32_t largest_of(const i32x16& most) {
#if defined(TESSERA_AVX512)
  return static_cast<std::uint32_t>(_mm512_reduce_max_epi32(std::bit_cast<__m512i>(most)));
#else
  std::int32_t largest = 0;
  for (int lane = 0; lane < lanes; ++lane) largest = std::max(largest, most[lane]);
  return static_cast<std::uint32_t>(largest);
#endif
}
TESSERA_INLINE void take_magnitude(i32x16& most, const f32x16& x) {
  const i32x16 bits = bits_as<i32x16>(x) & 0x7fffffff;
#if defined(TESSERA_AVX512)
  most = std::bit_cast<i32x16>(_mm512_max_epi32(std::bit_cast<__m512i>(bits), std::bit_cast<__m512i>(most)));
#else
  most = select(bits > most, bits, most);
#endif
}

TESSERA_INLINE i32x16 code_of(const f32x16& x, const f32x16& inverse) {
  return bits_as<i32x16>(fma(x, inverse, splat(code_shift))) - static_cast<std::int32_t>(code_shift_bits);
}

/// Stores code(i) for each vector of a block.
template <Wire wire, class Code>
TESSERA_INLINE void store_codes(std::byte* codes, Code&& code) {
  if constexpr (wire == Wire::int8_blocks) {
    for (std::int64_t i = 0; i < wire_block; i += lanes) store_bytes(codes + i, code(i));
  } else {
    for (std::int64_t i = 0; i < wire_block; i += 2 * lanes) {
      const i32x16 low = code(i), high = code(i + lanes);
      store_bytes(codes + i / 2, (low & 15) | (high << 4));
    }
  }
}

/// Of a block of NaN, or of none, all codes are zero.
template <Wire wire>
void clear_codes(std::byte* codes) {
  std::memset(codes, 0, static_cast<std::size_t>(wire_bytes(wire, wire_block)) - sizeof(float));
}
void store_scale(std::byte* block, float scale) { std::memcpy(block, &scale, sizeof scale); }
float scale_of(const std::byte* block) {
  float scale;
  std::memcpy(&scale, block, sizeof scale);
  return scale;
}

/// One stream of small blocks is fetched too late without.
constexpr std::int64_t ahead = 4 * wire_block;

template <Wire wire, class T>
void encode_block(std::byte* to, const T* x) {
  i32x16 most(0);
  for (std::int64_t i = 0; i < wire_block; i += lanes) prefetch(x + i + ahead), take_magnitude(most, load(x + i));
  const BlockScale scale = block_scale(largest_of(most), largest_code(wire));
  store_scale(to, scale.scale);
  if (scale.inverse == 0) return clear_codes<wire>(to + sizeof(float));
  const f32x16 inverse = splat(scale.inverse);
  store_codes<wire>(
      to + sizeof(float), [&](std::int64_t i) __attribute__((always_inline)) { return code_of(load(x + i), inverse); });
}

/// Calls take(i, codes as floats) for both vectors of a group of 32 codes, and for each vector of a block.
template <Wire wire, class Take>
TESSERA_INLINE void for_codes_of_group(const std::byte* codes, Take&& take) {
  if constexpr (wire == Wire::int8_blocks) {
    take(0, convert<f32x16>(load_bytes(codes))), take(lanes, convert<f32x16>(load_bytes(codes + lanes)));
  } else {
    const i32x16 pairs = load_bytes(codes);
    take(0, convert<f32x16>((pairs << 28) >> 28)), take(lanes, convert<f32x16>(pairs >> 4));
  }
}
template <Wire wire, class Take>
TESSERA_INLINE void for_codes(const std::byte* codes, Take&& take) {
  for (std::int64_t i = 0; i < wire_block; i += 2 * lanes)
    for_codes_of_group<wire>(
        codes + i * code_bits(wire) / 8, [&](std::int64_t j, const f32x16& code) __attribute__((always_inline)) { take(i + j, code); });
}

/// `factor`: error_factor of p.
template <Wire wire>
void encode_block_with_error(const EncodeWithError& p, std::int64_t at, float factor) {
  alignas(64) float error[wire_block], value[wire_block];
  std::byte *const to = p.blocks + wire_bytes(wire, at), *const kept = p.error + wire_bytes(Wire::int8_blocks, at);
  const f32x16 old = splat(factor == 0 ? 0 : scale_of(kept) * factor);
  i32x16 most(0);
  for_codes<Wire::int8_blocks>(
      kept + sizeof(float), [&](std::int64_t i, const f32x16& codes) __attribute__((always_inline)) {
        prefetch(p.x + at + i + ahead);
        const f32x16 x = fma(codes, old, load(p.x + at + i));
        store(error + i, codes * old), store(value + i, x);
        take_magnitude(most, x);
      });
  const BlockScale scale = block_scale(largest_of(most), largest_code(wire));
  store_scale(to, scale.scale);
  if (scale.scale != scale.scale) {
    store_scale(kept, 0);
    return clear_codes<wire>(to + sizeof(float)), clear_codes<Wire::int8_blocks>(kept + sizeof(float));
  }
  const f32x16 inverse = splat(scale.inverse), minus_scale = splat(-scale.scale), beta = splat(p.beta), rest = splat(1 - p.beta);
  most = i32x16(0);
  store_codes<wire>(
      to + sizeof(float), [&](std::int64_t i) __attribute__((always_inline)) {
        const f32x16 x = load(value + i);
        const i32x16 code = code_of(x, inverse);
        const f32x16 left = fma(beta, load(error + i), rest * fma(convert<f32x16>(code), minus_scale, x));
        store(error + i, left);
        take_magnitude(most, left);
        return code;
      });
  const BlockScale next = error_scale(largest_of(most));
  store_scale(kept, p.loss_scale ? next.scale / *p.loss_scale : next.scale);
  const f32x16 next_inverse = splat(next.inverse);
  store_codes<Wire::int8_blocks>(
      kept + sizeof(float), [&](std::int64_t i) __attribute__((always_inline)) { return code_of(load(error + i), next_inverse); });
}

template <Wire wire, bool stream, class T>
void decode_block(T* x, const std::byte* block) {
  const f32x16 scale = splat(scale_of(block));
  for_codes<wire>(
      block + sizeof(float), [&](std::int64_t i, const f32x16& codes)
                                 __attribute__((always_inline)) { store<stream>(x + i, codes * scale); });
}

template <Wire wire, bool accumulate, bool stream>
void sum_of_block(const SumBlocks& p, std::int64_t at) {
  constexpr std::int64_t group = 2 * lanes, group_bytes = group * code_bits(wire) / 8;
  const std::int64_t member_bytes = wire_bytes(wire, p.n);
  const std::byte* const first = p.blocks + wire_bytes(wire, at);
  for (std::int64_t g = 0; g < wire_block / group; ++g) {
    float* const to = p.sum + at + g * group;
    f32x16 sum[2] = {splat(0), splat(0)};
    if constexpr (accumulate) sum[0] = load(to), sum[1] = load(to + lanes);
    const std::byte* block = first;
    for (int m = 0; m < p.members; ++m, block += member_bytes) {
      const f32x16 scale = splat(scale_of(block));
      const std::byte* codes = block + sizeof(float) + g * group_bytes;
      for_codes_of_group<wire>(
          codes, [&](std::int64_t i, const f32x16& code)
                     __attribute__((always_inline)) { sum[i / lanes] = fma(code, scale, sum[i / lanes]); });
    }
    store<stream>(to, sum[0]), store<stream>(to + lanes, sum[1]);
  }
}

template <class F>
void with_wire(Wire wire, F&& f) {
  if (wire == Wire::int8_blocks) return f(std::integral_constant<Wire, Wire::int8_blocks>{});
  TESSERA_REQUIRE(wire == Wire::int4_blocks, "wire {}", static_cast<int>(wire));
  f(std::integral_constant<Wire, Wire::int4_blocks>{});
}

/// f(whether what is only written goes around the caches).
template <class T, class F>
void with_streaming(const T* out, std::int64_t n, F&& f) {
  constexpr auto size = static_cast<std::int64_t>(sizeof(T));
  if (worth_streaming(out, n * size, wire_block * size)) return f(std::true_type{});
  f(std::false_type{});
}

template <class F>
void for_blocks(std::int64_t n, F&& f) {
  TESSERA_REQUIRE(n % wire_block == 0, "{} elements are no whole blocks", n);
  parallel_ranges(n, block_grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t at = begin; at < end; at += wire_block) f(at);
    stream_fence();
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

void encode_with_error(const Context&, const EncodeWithError& p) {
  const float factor = error_factor(p);
  with_wire(p.wire, [&](auto wire) { for_blocks(p.n, [&](std::int64_t at) { encode_block_with_error<wire()>(p, at, factor); }); });
}

void decode_blocks(const Context&, const DecodeBlocks& p) {
  with_wire(p.wire, [&](auto wire) {
    with_float_type(p.dtype, "decode_blocks", [&](auto type) {
      auto* x = static_cast<decltype(type)*>(p.x);
      with_streaming(x, p.n, [&](auto stream) {
        for_blocks(p.n, [&](std::int64_t at) { decode_block<wire(), stream()>(x + at, p.blocks + wire_bytes(wire, at)); });
      });
    });
  });
}

void sum_blocks(const Context&, const SumBlocks& p) {
  with_wire(p.wire, [&](auto wire) {
    if (p.accumulate) return for_blocks(p.n, [&](std::int64_t at) { sum_of_block<wire(), true, false>(p, at); });
    with_streaming(p.sum, p.n,
                   [&](auto stream) { for_blocks(p.n, [&](std::int64_t at) { sum_of_block<wire(), false, stream()>(p, at); }); });
  });
}

}  // namespace tessera::kernels::host
