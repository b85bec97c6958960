// Codes of 8 bits on the host, 64 at a time. Where registers of 64 bytes can be looked up by bytes (AVX-512 VBMI), tables stay in them: a
// gather of sixteen words takes longer than all the rest of an update.
#pragma once
#include "kernels/update/eight_bits.hpp"
#include "kernels/vector/vector.hpp"

namespace tessera::kernels::host::update_detail {

/// Numbers that are encoded or decoded at once.
constexpr int code_group = 64, group_vectors = code_group / lanes;

template <bool has_signs>
inline constexpr const EightBitMap& map_of = has_signs ? signed_eight_bits : unsigned_eight_bits;
template <bool has_signs>
inline constexpr const EightBitSearch& search_of = has_signs ? signed_search : unsigned_search;

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

/// encode_eight_bits of a group.
template <bool has_signs>
void encode_by_search(std::uint8_t* codes, const float* numbers, float scale) {
  constexpr const EightBitSearch& search = search_of<has_signs>;
  constexpr auto middle = static_cast<std::uint32_t>(map_of<has_signs>.zero);
  for (int i = 0; i < code_group; i += lanes) {
    const f32x16 ratio = scale == 0 ? splat(0) : load(numbers + i) / scale;
    const u32x16 bits = bits_as<u32x16>(ratio), magnitude = bits & 0x7fffffffu, bucket = magnitude >> 16;
    const auto below = bucket<EightBitSearch::first, above = bucket> EightBitSearch::last;
    const u32x16 row =
        gather(search.row.data(), select(below, u32x16(0), select(above, u32x16(EightBitSearch::last), bucket) - EightBitSearch::first));
    const u32x16 at = (row >> 17) + select((magnitude & 0xffffu) > (row & 0x1ffffu), u32x16(1), u32x16(0));
    const u32x16 code = select(below, u32x16(middle), at);
    const u32x16 mirrored = select(code > 254u, u32x16(0), u32x16(2 * middle) - code);
    store_codes(codes + i, select(bits > 0x7fffffffu, select(below, u32x16(middle), mirrored), code));
  }
}

#if defined(TESSERA_AVX512) && defined(__AVX512VBMI__)

/// 256 words as four tables of bytes.
struct alignas(64) BytePlanes {
  std::uint8_t plane[4][256] = {};
};
template <bool has_signs>
constexpr BytePlanes value_planes() {
  BytePlanes planes;
  for (std::size_t code = 0; code < 256; ++code)
    for (std::size_t p = 0; p < 4; ++p)
      planes.plane[p][code] = static_cast<std::uint8_t>(std::bit_cast<std::uint32_t>(map_of<has_signs>.value[code]) >> (8 * p));
  return planes;
}
/// Of the value k places above 0 the largest number that it stands for.
template <bool has_signs>
constexpr BytePlanes border_planes() {
  BytePlanes planes;
  for (std::size_t bucket = 0; bucket < search_of<has_signs>.row.size(); ++bucket) {
    const std::uint32_t row = search_of<has_signs>.row[bucket];
    if ((row & EightBitSearch::none) == EightBitSearch::none) continue;
    const std::uint32_t border = (EightBitSearch::first + static_cast<std::uint32_t>(bucket)) << 16 | (row & 0xffff);
    const std::size_t k = (row >> 17) - static_cast<std::uint32_t>(map_of<has_signs>.zero);
    for (std::size_t p = 0; p < 4; ++p) planes.plane[p][k] = static_cast<std::uint8_t>(border >> (8 * p));
  }
  return planes;
}

/// For numbers of one exponent: two lines through the cells of a decade, of which the lower counts. Where a decade ends inside the
/// exponent, they are both decades'. A line gives, in units of 2^-8 in the low bits of a float, the cell's number or one less: it is `less`
/// too low. Its word is the slope, and the last 16 bits of that are also those of the offset, so that one look-up gives both.
struct alignas(64) CellLines {
  static constexpr float in_low_bits = 0x1.8p15f;
  static constexpr double less = 0.47;  // between 0.2 and 0.75, but for how slopes are rounded
  std::uint32_t word[2][32] = {};       ///< by the exponent's last five bits
};
/// Through the middle of the decade, whose slope is the nearest with such last bits.
template <bool has_signs>
constexpr std::uint32_t cell_line(int decade) {
  double begin = 1e-7;
  for (int i = 0; i < decade; ++i) begin *= 10;
  const int cells = 1 << (has_signs ? decade : decade + 1), before = has_signs ? cells : cells - 1;
  const auto slope = std::bit_cast<std::uint32_t>(static_cast<float>(cells / (9 * begin)));
  std::uint32_t word = slope;
  for (int turn = 0; turn < 3; ++turn) {
    const double at_zero = before + cells / 2.0 - CellLines::less - static_cast<double>(std::bit_cast<float>(word)) * 5.5 * begin;
    const std::uint32_t offset = static_cast<std::uint32_t>(at_zero * 256) & 0xffff;
    word = ((slope - offset + 0x8000) & 0xffff0000u) | offset;
  }
  return word;
}
template <bool has_signs>
constexpr CellLines cell_lines() {
  CellLines lines;
  for (int exponent = 0; exponent < 32; ++exponent)
    for (int end = 0; end < 2; ++end) {
      double number = 1, decade = 1e-7;
      for (int e = exponent + end; e < 31; ++e) number /= 2;
      int i = 0;
      for (; i < 6 && decade * 10 < number * (end == 0 ? 1.0001 : 0.9999); ++i) decade *= 10;
      lines.word[end][exponent] = cell_line<has_signs>(i);
    }
  return lines;
}

template <bool has_signs>
inline constexpr BytePlanes values_of = value_planes<has_signs>();
template <bool has_signs>
inline constexpr BytePlanes borders_of = border_planes<has_signs>();
template <bool has_signs>
inline constexpr CellLines lines_of = cell_lines<has_signs>();

/// Words come out of bytes by unpacking inside each 16 bytes: there bytes 4 v to 4 v + 3 belong to vector v. Both ways.
TESSERA_INLINE __m512i change_order(__m512i bytes) {
  return _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), bytes);
}
/// Byte `byte` of each word of four vectors, in the order of change_order.
struct alignas(64) BytePlaces {
  std::uint8_t at[2][64] = {};
};
constexpr BytePlaces byte_places(int byte) {
  BytePlaces places;
  for (std::size_t i = 0; i < 64; ++i) {
    const std::size_t vector = i % 16 / 4, word = i / 16 * 4 + i % 4;
    places.at[vector / 2][i] = static_cast<std::uint8_t>(64 * (vector % 2) + 4 * word + static_cast<std::size_t>(byte));
  }
  return places;
}
template <int byte>
inline constexpr BytePlaces places_of = byte_places(byte);
template <int byte>
TESSERA_INLINE __m512i bytes_of(const __m512i (&words)[group_vectors]) {
  const __m512i low = _mm512_permutex2var_epi8(words[0], _mm512_load_si512(places_of<byte>.at[0]), words[1]);
  const __m512i high = _mm512_permutex2var_epi8(words[2], _mm512_load_si512(places_of<byte>.at[1]), words[3]);
  return _mm512_mask_blend_epi8(0xff00ff00ff00ff00u, low, high);
}
/// Whether words are negative.
TESSERA_INLINE __mmask64 signs_of(const __m512i (&words)[group_vectors]) { return _mm512_movepi8_mask(bytes_of<3>(words)); }

/// Words of a table of `size` by bytes in the order of change_order.
template <int size>
TESSERA_INLINE void look_up(__m512i (&words)[group_vectors], const BytePlanes& table, __m512i index) {
  __m512i bytes[4];
  const __mmask64 upper = size > 128 ? _mm512_movepi8_mask(index) : 0;
  unrolled<4>([&](auto p) __attribute__((always_inline)) {
    const std::uint8_t* plane = table.plane[p];
    bytes[p] = _mm512_permutex2var_epi8(_mm512_load_si512(plane), index, _mm512_load_si512(plane + 64));
    if constexpr (size > 128) {
      const __m512i others = _mm512_permutex2var_epi8(_mm512_load_si512(plane + 128), index, _mm512_load_si512(plane + 192));
      bytes[p] = _mm512_mask_blend_epi8(upper, bytes[p], others);
    }
  });
  const __m512i low[] = {_mm512_unpacklo_epi8(bytes[0], bytes[1]), _mm512_unpackhi_epi8(bytes[0], bytes[1])};
  const __m512i high[] = {_mm512_unpacklo_epi8(bytes[2], bytes[3]), _mm512_unpackhi_epi8(bytes[2], bytes[3])};
  unrolled<2>([&](auto h) __attribute__((always_inline)) {
    words[2 * h] = _mm512_unpacklo_epi16(low[h], high[h]);
    words[2 * h + 1] = _mm512_unpackhi_epi16(low[h], high[h]);
  });
}

/// A group on the way to its codes, in two stages: many short chains are faster than few long ones, which processors do not look far enough
/// ahead to overlap.
struct GroupCells {
  __m512i x[group_vectors];  ///< magnitudes
  __m512i cell;              ///< that lines give, in the order of change_order
  __mmask64 negative;
};

template <bool has_signs>
TESSERA_INLINE void find_cells(GroupCells& to, const float* numbers, float over_scale) {
  const __m512 inverse = _mm512_set1_ps(over_scale), least = _mm512_set1_ps(0x1p-31f);
  const __m512i in_low_bits = _mm512_castps_si512(_mm512_set1_ps(CellLines::in_low_bits));
  __m512i ratio[group_vectors], cell[group_vectors];
  unrolled<group_vectors>([&](auto v) __attribute__((always_inline)) {
    const __m512 signed_ratio = _mm512_mul_ps(_mm512_loadu_ps(numbers + v * lanes), inverse);
    ratio[v] = _mm512_castps_si512(signed_ratio);
    constexpr int larger_magnitude = 0b1011;  // without its sign
    const __m512 x = _mm512_range_ps(signed_ratio, least, larger_magnitude);
    to.x[v] = _mm512_castps_si512(x);
    const __m512i exponent = _mm512_srli_epi32(to.x[v], 23);
    const auto line = [&](int end) __attribute__((always_inline)) {
      const std::uint32_t* table = lines_of<has_signs>.word[end];
      const __m512i word = _mm512_permutex2var_epi32(_mm512_load_si512(table), exponent, _mm512_load_si512(table + 16));
      constexpr int and_or = 0xea;  // of 0xf0, 0xcc and 0xaa
      const __m512i offset = _mm512_ternarylogic_epi32(word, _mm512_set1_epi32(0xffff), in_low_bits, and_or);
      return _mm512_fmadd_ps(x, _mm512_castsi512_ps(word), _mm512_castsi512_ps(offset));
    };
    cell[v] = _mm512_castps_si512(_mm512_min_ps(line(0), line(1)));
  });
  to.cell = bytes_of<1>(cell);
  if constexpr (has_signs) to.negative = signs_of(ratio);
}

template <bool has_signs>
TESSERA_INLINE void encode_cells(std::uint8_t* codes, const GroupCells& from, const float* numbers, float scale) {
  // The product with the inverse is at most 2 units of the last place from the quotient that counts.
  constexpr int around = 3;
  __m512i border[group_vectors], below[group_vectors], near[group_vectors], code = from.cell;
  look_up<has_signs ? 128 : 256>(border, borders_of<has_signs>, code);
  unrolled<group_vectors>([&](auto v) __attribute__((always_inline)) {
    below[v] = _mm512_sub_epi32(border[v], from.x[v]);
    near[v] = _mm512_add_epi32(below[v], _mm512_set1_epi32(around));
  });
  const __m512i nearest = _mm512_min_epu32(_mm512_min_epu32(near[0], near[1]), _mm512_min_epu32(near[2], near[3]));
  if (__builtin_expect(_mm512_cmple_epu32_mask(nearest, _mm512_set1_epi32(2 * around)) != 0, 0))
    return encode_by_search<has_signs>(codes, numbers, scale);
  code = _mm512_mask_sub_epi8(code, signs_of(below), code, _mm512_set1_epi8(-1));
  if constexpr (has_signs) {
    const __m512i zero = _mm512_set1_epi8(static_cast<char>(signed_eight_bits.zero));
    code = _mm512_mask_min_epu8(code, from.negative, code, zero);
    code = _mm512_mask_sub_epi8(_mm512_add_epi8(code, zero), from.negative, zero, code);
  }
  _mm512_storeu_si512(codes, change_order(code));
}
#endif

/// A group's numbers: values of codes times a scale.
template <bool has_signs>
TESSERA_INLINE void decode_group(float* numbers, const std::uint8_t* codes, float scale) {
  const auto keep = [&](int v, const f32x16& value) __attribute__((always_inline)) {
    store(numbers + v * lanes, value * scale + splat(0));
  };
#if defined(TESSERA_AVX512) && defined(__AVX512VBMI__)
  __m512i values[group_vectors];
  look_up<256>(values, values_of<has_signs>, change_order(_mm512_loadu_si512(codes)));
  unrolled<group_vectors>([&](auto v) __attribute__((always_inline)) {
    f32x16 value;
    value.part[0] = _mm512_castsi512_ps(values[v]);
    keep(v, value);
  });
#else
  for (int v = 0; v < group_vectors; ++v) keep(v, gather(map_of<has_signs>.value.data(), load_codes(codes + v * lanes)));
#endif
}

/// A block's codes.
template <bool has_signs>
TESSERA_INLINE void encode_block(std::uint8_t* codes, const float* numbers, float scale) {
  constexpr int groups = state_block / code_group;
#if defined(TESSERA_AVX512) && defined(__AVX512VBMI__)
  if (__builtin_expect(std::abs(scale) > 0x1p-125f && std::abs(scale) < 0x1p125f, 1)) {
    GroupCells cells[groups];
    for (int g = 0; g < groups; ++g) find_cells<has_signs>(cells[g], numbers + g * code_group, 1 / scale);
    for (int g = 0; g < groups; ++g) encode_cells<has_signs>(codes + g * code_group, cells[g], numbers + g * code_group, scale);
    return;
  }
#endif
  for (int g = 0; g < groups; ++g) encode_by_search<has_signs>(codes + g * code_group, numbers + g * code_group, scale);
}

}  // namespace tessera::kernels::host::update_detail
