// An update whose state is in 8 bits, on host threads, block by block: decoded, updated, and encoded by the new numbers' scale.
#pragma once
#include <algorithm>

#include "kernels/elementwise/elementwise.hpp"
#include "kernels/parallel.hpp"
#include "kernels/update/eight_bits.hpp"
#include "kernels/update/update_host.hpp"

namespace tessera::kernels::host {
namespace update_detail {

TESSERA_INLINE u32x16 load_codes(const std::uint8_t* p) {
#if defined(TESSERA_AVX512)
  return std::bit_cast<u32x16>(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#else
  std::uint32_t code[lanes];
  for (int i = 0; i < lanes; ++i) code[i] = p[i];
  u32x16 r;
  std::memcpy(&r, code, sizeof r);
  return r;
#endif
}
TESSERA_INLINE void store_codes(std::uint8_t* p, const u32x16& codes) {
#if defined(TESSERA_AVX512)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(std::bit_cast<__m512i>(codes)));
#else
  for (int i = 0; i < lanes; ++i) p[i] = static_cast<std::uint8_t>(codes[i]);
#endif
}
/// Words of a table, 4 bytes each.
template <class Word>
TESSERA_INLINE Vector<Word> gather(const Word* table, const u32x16& index) {
  Vector<Word> r;
#if defined(TESSERA_AVX512)
  r.part[0] = std::bit_cast<typename Vector<Word>::Part>(_mm512_i32gather_epi32(std::bit_cast<__m512i>(index), table, 4));
#elif defined(TESSERA_AVX2)
  unrolled<parts>([&](auto k) __attribute__((always_inline)) {
    r.part[k] = std::bit_cast<typename Vector<Word>::Part>(
        _mm256_i32gather_epi32(reinterpret_cast<const int*>(table), std::bit_cast<__m256i>(index.part[k]), 4));
  });
#else
  Word word[lanes];
  for (int i = 0; i < lanes; ++i) word[i] = table[index[i]];
  std::memcpy(&r, word, sizeof r);
#endif
  return r;
}

/// encode_eight_bits of sixteen numbers.
TESSERA_INLINE u32x16 encode(const EightBitSearch& search, int zero, const f32x16& x, float scale) {
  const f32x16 ratio = scale == 0 ? splat(0) : x / scale;
  const u32x16 bits = bits_as<u32x16>(ratio), magnitude = bits & 0x7fffffffu, bucket = magnitude >> 16;
  const auto below = bucket<EightBitSearch::first, above = bucket> EightBitSearch::last;
  const u32x16 row =
      gather(search.row.data(), select(below, u32x16(0), select(above, u32x16(EightBitSearch::last), bucket) - EightBitSearch::first));
  const u32x16 at = (row >> 17) + select((magnitude & 0xffffu) > (row & 0x1ffffu), u32x16(1), u32x16(0));
  const auto middle = static_cast<std::uint32_t>(zero);
  const u32x16 code = select(below, u32x16(middle), at);
  const u32x16 mirrored = select(code > 254u, u32x16(0), u32x16(2 * middle) - code);
  return select(bits > 0x7fffffffu, select(below, u32x16(middle), mirrored), code);
}

/// A state's blocks: which code they have.
struct BlockCode {
  const EightBitMap& map;
  const EightBitSearch& search;
};
/// Of state s: the first has signs, the second is a mean of squares.
TESSERA_INLINE BlockCode code_of(int s) {
  return s == 0 ? BlockCode{signed_eight_bits, signed_search} : BlockCode{unsigned_eight_bits, unsigned_search};
}

/// A whole block of weights and gradients, and of the copy if there is one.
template <class Rule, class Grad, class Param>
void update_block(const Rule& rule, float* master, const Grad* grad, Param* param, std::uint8_t* const* state) {
  constexpr int vectors = state_block / lanes;
  f32x16 kept[Rule::states][vectors], least[Rule::states], most[Rule::states];
  float scale[Rule::states];
  for (int s = 0; s < Rule::states; ++s) {
    std::memcpy(&scale[s], state[s] + state_block, sizeof(float));
    least[s] = most[s] = splat(0);
  }
  for (int v = 0; v < vectors; ++v) {
    const std::int64_t i = v * lanes;
    f32x16 w = load(master + i), of_element[most_update_states];
    unrolled<Rule::states>([&](auto s) __attribute__((always_inline)) {
      of_element[s] = gather(code_of(s).map.value.data(), load_codes(state[s] + i)) * scale[s] + splat(0);
    });
    rule(w, of_element, load_grad(grad + i, Whole{}));
    unrolled<Rule::states>([&](auto s) __attribute__((always_inline)) {
      kept[s][v] = of_element[s];
      least[s] = min(least[s], of_element[s]), most[s] = max(most[s], of_element[s]);
    });
    store(master + i, w);
    if (param) store(param + i, w);
  }
  unrolled<Rule::states>([&](auto s) __attribute__((always_inline)) {
    const BlockCode code = code_of(s);
    const float divisor = block_scale(-horizontal_max(-least[s]), horizontal_max(most[s]));
    std::memcpy(state[s] + state_block, &divisor, sizeof divisor);
    for (int v = 0; v < vectors; ++v) store_codes(state[s] + v * lanes, encode(code.search, code.map.zero, kept[s][v], divisor));
  });
}

template <class Rule, class Grad, class Param>
void update_blocks(const Update& p, const Rule& rule, std::int64_t block) {
  const std::int64_t at = block * state_block, count = std::min(state_block, p.n - at);
  std::uint8_t* state[most_update_states] = {};
  for (int s = 0; s < Rule::states; ++s) state[s] = static_cast<std::uint8_t*>(p.state[s]) + block * state_block_bytes;
  float* master = p.master + at;
  const Grad* grad = static_cast<const Grad*>(p.grad) + at;
  Param* param = p.param ? static_cast<Param*>(p.param) + at : nullptr;
  if (count == state_block) return update_block(rule, master, grad, param, state);
  // The last one's rest is no parameter: it passes through with zeros, and stays zero.
  float some[state_block] = {};
  Grad gradients[state_block] = {};
  Param copies[state_block];
  std::copy_n(master, count, some);
  std::copy_n(grad, count, gradients);
  update_block(rule, some, gradients, param ? copies : nullptr, state);
  std::copy_n(some, count, master);
  if (param) std::copy_n(copies, count, param);
}

}  // namespace update_detail

/// Its first element begins a block.
template <class Rule>
void update_in_blocks(const char* op, const Update& p) {
  if (p.n == 0) return;
  if (p.scalars->skip) return p.param ? host::cast({}, p.param, p.param_dtype, p.master, DType::f32, p.n) : void();
  const Rule rule(*p.scalars, p);
  with_sum_type(p.grad_dtype, op, [&](auto grad) {
    with_half_type(p.param_dtype, "the copy of an update", [&](auto param) {
      parallel_ranges((p.n + state_block - 1) / state_block, 16, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t block = begin; block < end; ++block)
          update_detail::update_blocks<Rule, decltype(grad), decltype(param)>(p, rule, block);
      });
    });
  });
}

}  // namespace tessera::kernels::host
