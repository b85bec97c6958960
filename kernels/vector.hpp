// Vectors of 64 bytes, sixteen floats, from fp32 or bf16 memory: what every host kernel is written in. A vector is made of the target's own
// registers: one of AVX-512, two of AVX2, four of 16 bytes elsewhere (GCC's generic vectors), so that the compiler can keep it in
// registers. All give the same bits. Multiply-adds are written as fma and built with -ffp-contract=off, so that no compiler may choose to
// fuse or not, and a remainder of n elements runs the very expression of the whole vectors, on masked loads and stores.
#pragma once
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>

#include "base/check.hpp"
#include "base/types.hpp"
#include "kernels/arithmetic.hpp"

#ifndef TESSERA_GENERIC_VECTORS
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define TESSERA_AVX512 1
#elif defined(__AVX2__) && defined(__FMA__)
#define TESSERA_AVX2 1
#endif
#endif
#if defined(TESSERA_AVX512) || defined(TESSERA_AVX2)
// GCC 12 and 13 warn inside their own header about its deliberately undefined operands (GCC bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#endif

namespace tessera::kernels {

#if defined(TESSERA_AVX512)
inline constexpr int register_bytes = 64;
#elif defined(TESSERA_AVX2)
inline constexpr int register_bytes = 32;
#else
inline constexpr int register_bytes = 16;
#endif
/// Floats of a vector, registers of a vector.
inline constexpr int lanes = 16, parts = 64 / register_bytes;

/// Calls f with the constants 0 .. n-1. A loop would do, but whether arrays indexed by its counter stay in registers would depend on when
/// the compiler unrolls it.
template <int n, class F>
TESSERA_INLINE void unrolled(F&& f) {
  [&]<int... k>(std::integer_sequence<int, k...>) __attribute__((always_inline)) { (f(std::integral_constant<int, k>{}), ...); }
  (std::make_integer_sequence<int, n>{});
}

/// 64 bytes of Element. Operators work lane by lane; a scalar stands for a vector full of it. Comparisons give masks for select().
template <class Element>
struct Vector {
  static constexpr int size = 64 / static_cast<int>(sizeof(Element)), part_size = size / parts;
  typedef Element Part __attribute__((vector_size(register_bytes)));  // NOLINT: attributes need typedef
  Part part[parts];

  Vector() = default;
  // x - 0 is x for every x, which the compiler knows; x + 0 is not (x = -0) and would cost an addition.
  TESSERA_INLINE Vector(Element x) {  // NOLINT: implicit on purpose
    unrolled<parts>([&](auto k) __attribute__((always_inline)) { part[k] = x - Part{}; });
  }
  TESSERA_INLINE Element operator[](int lane) const { return part[lane / part_size][lane % part_size]; }
};

using f32x16 = Vector<float>;
using i32x16 = Vector<std::int32_t>;
using u32x16 = Vector<std::uint32_t>;
using f64x8 = Vector<double>;
using i64x8 = Vector<std::int64_t>;

/// The vector whose part k is f(part k of each v).
template <class Result, class F, class... V>
TESSERA_INLINE Result by_parts(F f, const V&... v) {
  Result r;
  unrolled<parts>([&](auto k) __attribute__((always_inline)) { r.part[k] = f(v.part[k]...); });
  return r;
}

template <class T>
inline constexpr bool is_vector = false;
template <class E>
inline constexpr bool is_vector<Vector<E>> = true;
template <class E>
using Mask = std::conditional_t<sizeof(E) == 4, i32x16, i64x8>;

#define TESSERA_VECTOR_OPERATOR(op, Result)                                          \
  template <class E>                                                                 \
  TESSERA_INLINE Result operator op(const Vector<E>& a, const Vector<E>& b) {        \
    return by_parts<Result>(                                                         \
        [](auto x, auto y) __attribute__((always_inline)) { return x op y; }, a, b); \
  }                                                                                  \
  template <class E>                                                                 \
  TESSERA_INLINE Result operator op(const Vector<E>& a, std::type_identity_t<E> b) { \
    return a op Vector<E>(b);                                                        \
  }                                                                                  \
  template <class E>                                                                 \
  TESSERA_INLINE Result operator op(std::type_identity_t<E> a, const Vector<E>& b) { \
    return Vector<E>(a) op b;                                                        \
  }
TESSERA_VECTOR_OPERATOR(+, Vector<E>)
TESSERA_VECTOR_OPERATOR(-, Vector<E>)
TESSERA_VECTOR_OPERATOR(*, Vector<E>)
TESSERA_VECTOR_OPERATOR(/, Vector<E>)
TESSERA_VECTOR_OPERATOR(&, Vector<E>)
TESSERA_VECTOR_OPERATOR(|, Vector<E>)
TESSERA_VECTOR_OPERATOR(^, Vector<E>)
TESSERA_VECTOR_OPERATOR(<, Mask<E>)
TESSERA_VECTOR_OPERATOR(>, Mask<E>)
TESSERA_VECTOR_OPERATOR(>=, Mask<E>)
TESSERA_VECTOR_OPERATOR(!=, Mask<E>)
#undef TESSERA_VECTOR_OPERATOR

template <class E>
TESSERA_INLINE Vector<E> operator<<(const Vector<E>& a, int count) {
  return by_parts<Vector<E>>(
      [=](auto x) __attribute__((always_inline)) { return x << count; }, a);
}
template <class E>
TESSERA_INLINE Vector<E> operator>>(const Vector<E>& a, int count) {
  return by_parts<Vector<E>>(
      [=](auto x) __attribute__((always_inline)) { return x >> count; }, a);
}
template <class E>
TESSERA_INLINE Vector<E> operator-(const Vector<E>& a) {
  return by_parts<Vector<E>>(
      [](auto x) __attribute__((always_inline)) { return -x; }, a);
}
template <class E>
TESSERA_INLINE Vector<E>& operator+=(Vector<E>& a, const Vector<E>& b) {
  return a = a + b;
}

/// a where the mask is set, else b.
template <class E>
TESSERA_INLINE Vector<E> select(const Mask<E>& mask, const Vector<E>& a, const Vector<E>& b) {
  return by_parts<Vector<E>>(
      [](auto m, auto x, auto y) __attribute__((always_inline)) { return m ? x : y; }, mask, a, b);
}

/// Lane l holds l.
TESSERA_INLINE i32x16 lane_indexes() {
  i32x16 r;
  unrolled<parts>([&](auto k) __attribute__((always_inline)) {
    [&]<int... i>(std::integer_sequence<int, i...>) __attribute__((always_inline)) {
      r.part[k] = i32x16::Part{(k * i32x16::part_size + i)...};
    }
    (std::make_integer_sequence<int, i32x16::part_size>{});
  });
  return r;
}

template <int first, class Part>
TESSERA_INLINE Part even_lanes(Part a, Part b) {
  return [&]<int... i>(std::integer_sequence<int, i...>) __attribute__((always_inline)) {
    return __builtin_shuffle(a, b, i32x16::Part{(first + 2 * i)...});
  }
  (std::make_integer_sequence<int, f32x16::part_size>{});
}
/// Lanes first, first + 2, ... of a, then those of b.
template <int first>
TESSERA_INLINE f32x16 every_other(const f32x16& a, const f32x16& b) {
  f32x16 r;
  unrolled<parts>([&](auto k) __attribute__((always_inline)) {
    const f32x16& from = 2 * k < parts ? a : b;
    constexpr int at = 2 * k % parts;
    if constexpr (parts == 1) {
      r.part[k] = even_lanes<first>(a.part[0], b.part[0]);
    } else {
      r.part[k] = even_lanes<first>(from.part[at], from.part[at + 1]);
    }
  });
  return r;
}

/// The same bits as another type, and the same values (fp32 to int32 truncates).
template <class To, class From>
TESSERA_INLINE To bits_as(const From& a) {
  return by_parts<To>(
      [](auto x) __attribute__((always_inline)) { return (typename To::Part)x; }, a);
}
template <class To, class From>
TESSERA_INLINE To convert(const From& a) {
  return by_parts<To>(
      [](auto x) __attribute__((always_inline)) { return __builtin_convertvector(x, typename To::Part); }, a);
}

/// The element count of a whole vector, known to the compiler; a remainder passes an int.
using Whole = std::integral_constant<int, lanes>;
template <class Count>
inline constexpr bool is_whole = std::is_same_v<Count, Whole>;

TESSERA_INLINE f32x16 splat(float x) { return x; }

/// a * b + c, rounded once.
TESSERA_INLINE f32x16 fma(const f32x16& a, const f32x16& b, const f32x16& c) {
  return by_parts<f32x16>(
      [](auto x, auto y, auto z) __attribute__((always_inline)) {
#if defined(TESSERA_AVX512)
        return static_cast<f32x16::Part>(_mm512_fmadd_ps(x, y, z));
#elif defined(TESSERA_AVX2)
        return static_cast<f32x16::Part>(_mm256_fmadd_ps(x, y, z));
#else
        for (int i = 0; i < f32x16::part_size; ++i) z[i] = std::fma(x[i], y[i], z[i]);
        return z;
#endif
      },
      a, b, c);
}
TESSERA_INLINE f64x8 fma(const f64x8& a, const f64x8& b, const f64x8& c) {
  return by_parts<f64x8>(
      [](auto x, auto y, auto z) __attribute__((always_inline)) {
#if defined(TESSERA_AVX512)
        return static_cast<f64x8::Part>(_mm512_fmadd_pd(x, y, z));
#elif defined(TESSERA_AVX2)
        return static_cast<f64x8::Part>(_mm256_fmadd_pd(x, y, z));
#else
        for (int i = 0; i < f64x8::part_size; ++i) z[i] = std::fma(x[i], y[i], z[i]);
        return z;
#endif
      },
      a, b, c);
}

/// a > b ? a : b and a < b ? a : b: b where either is NaN.
TESSERA_INLINE f32x16 max(const f32x16& a, const f32x16& b) {
#if defined(TESSERA_AVX512)
  return by_parts<f32x16>([](auto x, auto y) { return static_cast<f32x16::Part>(_mm512_max_ps(x, y)); }, a, b);
#elif defined(TESSERA_AVX2)
  return by_parts<f32x16>([](auto x, auto y) { return static_cast<f32x16::Part>(_mm256_max_ps(x, y)); }, a, b);
#else
  return select(a > b, a, b);
#endif
}
TESSERA_INLINE f32x16 min(const f32x16& a, const f32x16& b) {
#if defined(TESSERA_AVX512)
  return by_parts<f32x16>([](auto x, auto y) { return static_cast<f32x16::Part>(_mm512_min_ps(x, y)); }, a, b);
#elif defined(TESSERA_AVX2)
  return by_parts<f32x16>([](auto x, auto y) { return static_cast<f32x16::Part>(_mm256_min_ps(x, y)); }, a, b);
#else
  return select(a < b, a, b);
#endif
}

/// a where the sign bit of `sign` is set, else b.
TESSERA_INLINE f32x16 select_by_sign(const f32x16& sign, const f32x16& a, const f32x16& b) {
#ifdef TESSERA_AVX2
  return by_parts<f32x16>(
      [](auto s, auto x, auto y) __attribute__((always_inline)) { return static_cast<f32x16::Part>(_mm256_blendv_ps(y, x, s)); }, sign, a,
      b);
#else
  return select(bits_as<i32x16>(sign) < 0, a, b);
#endif
}

TESSERA_INLINE f32x16 sqrt(const f32x16& a) {
  return by_parts<f32x16>(
      [](auto x) __attribute__((always_inline)) {
#if defined(TESSERA_AVX512)
        return static_cast<f32x16::Part>(_mm512_sqrt_ps(x));
#elif defined(TESSERA_AVX2)
        return static_cast<f32x16::Part>(_mm256_sqrt_ps(x));
#else
        for (int i = 0; i < f32x16::part_size; ++i) x[i] = std::sqrt(x[i]);
        return x;
#endif
      },
      a);
}

template <>
struct Arithmetic<f32x16> {
  using Int = i32x16;
  using Unsigned = u32x16;
  TESSERA_INLINE static f32x16 splat(float x) { return kernels::splat(x); }
  TESSERA_INLINE static f32x16 fma(const f32x16& a, const f32x16& b, const f32x16& c) { return kernels::fma(a, b, c); }
  TESSERA_INLINE static f32x16 sqrt(const f32x16& x) { return kernels::sqrt(x); }
  TESSERA_INLINE static f32x16 at_least(const f32x16& low, const f32x16& x) { return kernels::max(low, x); }
  TESSERA_INLINE static f32x16 select(const i32x16& mask, const f32x16& a, const f32x16& b) { return kernels::select(mask, a, b); }
  TESSERA_INLINE static f32x16 to_float(const Int& x) { return convert<f32x16>(x); }
  TESSERA_INLINE static f32x16 to_float(const Unsigned& x) { return convert<f32x16>(x); }
  template <class To, class From>
  TESSERA_INLINE static To bits(const From& x) {
    return bits_as<To>(x);
  }
};

TESSERA_INLINE WideProduct<u32x16> multiply_wide(const u32x16& a, std::uint32_t b) {
  WideProduct<u32x16> r;
#if defined(TESSERA_AVX512)
  __m512i x = std::bit_cast<__m512i>(a), m = _mm512_set1_epi32(static_cast<int>(b));
  __m512i even = _mm512_mul_epu32(x, m), odd = _mm512_mul_epu32(_mm512_srli_epi64(x, 32), m);
  r.high = std::bit_cast<u32x16>(_mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd));
  r.low = std::bit_cast<u32x16>(_mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32)));
#elif defined(TESSERA_AVX2)
  unrolled<parts>([&](auto k) __attribute__((always_inline)) {
    __m256i x = std::bit_cast<__m256i>(a.part[k]), m = _mm256_set1_epi32(static_cast<int>(b));
    __m256i even = _mm256_mul_epu32(x, m), odd = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), m);
    r.high.part[k] = std::bit_cast<u32x16::Part>(_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa));
    r.low.part[k] = std::bit_cast<u32x16::Part>(_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa));
  });
#else
  unrolled<parts>([&](auto k) {
    for (int i = 0; i < u32x16::part_size; ++i) {
      auto product = multiply_wide(a.part[k][i], b);
      r.high.part[k][i] = product.high;
      r.low.part[k][i] = product.low;
    }
  });
#endif
  return r;
}

/// Sum of the lanes as a tree: halves are added until one lane is left.
TESSERA_INLINE float horizontal_sum(const f32x16& a) {
#if defined(TESSERA_AVX512)
  return _mm512_reduce_add_ps(a.part[0]);
#elif defined(TESSERA_AVX2)
  __m256 eight = _mm256_add_ps(a.part[0], a.part[1]);
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
#else
  float x[lanes];
  std::memcpy(x, &a, sizeof x);
  for (int width = lanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) x[i] += x[i + width];
  }
  return x[0];
#endif
}
TESSERA_INLINE double horizontal_sum(const f64x8& a) {
  double x[8];
  std::memcpy(x, &a, sizeof x);
  return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
}
TESSERA_INLINE float horizontal_max(const f32x16& a) {
  float x[lanes];
  std::memcpy(x, &a, sizeof x);
  for (int width = lanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) x[i] = x[i] > x[i + width] ? x[i] : x[i + width];
  }
  return x[0];
}

#if defined(TESSERA_AVX512)
TESSERA_INLINE __mmask16 first_lanes(std::int64_t count) { return static_cast<__mmask16>((1u << count) - 1u); }
#elif defined(TESSERA_AVX2)
alignas(64) inline constexpr std::int32_t lane_switches[2 * lanes] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
/// Part k of the mask of the first `count` lanes.
TESSERA_INLINE __m256i first_lanes(std::int64_t count, int k) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(lane_switches + lanes - count + 8 * k));
}
#endif

/// `count` elements from memory as fp32; lanes beyond are 0.
template <class Count = Whole>
TESSERA_INLINE f32x16 load(const float* p, Count count = {}) {
  f32x16 r;
#if defined(TESSERA_AVX512)
  r.part[0] = is_whole<Count> ? _mm512_loadu_ps(p) : _mm512_maskz_loadu_ps(first_lanes(count), p);
#else
  if constexpr (is_whole<Count>) {
    // A register at a time: GCC would copy 64 bytes in pieces of its own choice, through the stack.
    unrolled<parts>([&](auto k) __attribute__((always_inline)) { std::memcpy(&r.part[k], p + k * f32x16::part_size, sizeof r.part[k]); });
  } else {
#ifdef TESSERA_AVX2
    unrolled<parts>([&](auto k) __attribute__((always_inline)) { r.part[k] = _mm256_maskload_ps(p + 8 * k, first_lanes(count, k)); });
#else
    r = {};
    std::memcpy(&r, p, static_cast<std::size_t>(count) * sizeof(float));
#endif
  }
#endif
  return r;
}
template <class Count = Whole>
TESSERA_INLINE f32x16 load(const bf16* p, Count count = {}) {
#ifdef TESSERA_AVX512
  __m256i half;
  if constexpr (is_whole<Count>) {
    half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  } else {
    half = _mm256_maskz_loadu_epi16(first_lanes(count), p);
  }
  f32x16 r;
  r.part[0] = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  return r;
#else
  bf16 part[lanes];
  if constexpr (!is_whole<Count>) {
    std::memset(static_cast<void*>(part), 0, sizeof part);
    std::memcpy(static_cast<void*>(part), p, static_cast<std::size_t>(count) * sizeof(bf16));
    p = part;
  }
  f32x16 r;
  unrolled<parts>([&](auto k) __attribute__((always_inline)) {
#ifdef TESSERA_AVX2
    __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8 * k));
    r.part[k] = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
#else
    for (int i = 0; i < f32x16::part_size; ++i) r.part[k][i] = static_cast<float>(p[k * f32x16::part_size + i]);
#endif
  });
  return r;
#endif
}

/// Eight whole numbers as fp64, each rounded once.
TESSERA_INLINE f64x8 to_f64(const std::int64_t* p) {
  f64x8 r;
#if defined(TESSERA_AVX512)
  r.part[0] = _mm512_cvtepi64_pd(_mm512_loadu_si512(p));
#elif defined(TESSERA_AVX2)
  // x + 1.5 * 2^52 as a double has x in its low bits, for |x| < 2^51.
  __m256i x[2], beyond = _mm256_setzero_si256();
  unrolled<2>([&](auto k) __attribute__((always_inline)) {
    x[k] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 4 * k));
    beyond = _mm256_or_si256(beyond, _mm256_add_epi64(x[k], _mm256_set1_epi64x(std::int64_t{1} << 51)));
  });
  if (__builtin_expect(_mm256_testz_si256(beyond, _mm256_set1_epi64x(-(std::int64_t{1} << 52))), 1)) {
    unrolled<2>([&](auto k) __attribute__((always_inline)) {
      __m256i shifted = _mm256_add_epi64(x[k], _mm256_castpd_si256(_mm256_set1_pd(0x1.8p52)));
      r.part[k] = _mm256_sub_pd(_mm256_castsi256_pd(shifted), _mm256_set1_pd(0x1.8p52));
    });
  } else {
    for (int i = 0; i < 8; ++i) r.part[i / 4][i % 4] = static_cast<double>(p[i]);
  }
#else
  for (int i = 0; i < 8; ++i) r.part[i / f64x8::part_size][i % f64x8::part_size] = static_cast<double>(p[i]);
#endif
  return r;
}
TESSERA_INLINE f64x8 to_f64(const float* p) {
  f64x8 r;
#if defined(TESSERA_AVX512)
  r.part[0] = _mm512_cvtps_pd(_mm256_loadu_ps(p));
#elif defined(TESSERA_AVX2)
  for (int k = 0; k < 2; ++k) r.part[k] = _mm256_cvtps_pd(_mm_loadu_ps(p + 4 * k));
#else
  for (int i = 0; i < 8; ++i) r.part[i / f64x8::part_size][i % f64x8::part_size] = static_cast<double>(p[i]);
#endif
  return r;
}

/// Whole numbers as fp32, each rounded once.
template <class Count = Whole>
TESSERA_INLINE f32x16 load(const std::int64_t* p, Count count = {}) {
  std::int64_t part[lanes] = {};
  if constexpr (!is_whole<Count>) {
    std::memcpy(part, p, static_cast<std::size_t>(count) * sizeof(std::int64_t));
    p = part;
  }
  f32x16 r;
#if defined(TESSERA_AVX512)
  __m256 low = _mm512_cvtepi64_ps(_mm512_loadu_si512(p)), high = _mm512_cvtepi64_ps(_mm512_loadu_si512(p + 8));
  r.part[0] = _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
#else
#if defined(TESSERA_AVX2)
  // Below 2^53 fp64 is exact, so the step to fp32 is the one that rounds.
  __m256i beyond = _mm256_setzero_si256();
  for (int k = 0; k < 4; ++k) {
    __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 4 * k));
    beyond = _mm256_or_si256(beyond, _mm256_add_epi64(x, _mm256_set1_epi64x(std::int64_t{1} << 51)));
  }
  if (__builtin_expect(_mm256_testz_si256(beyond, _mm256_set1_epi64x(-(std::int64_t{1} << 52))), 1)) {
    unrolled<2>([&](auto k) __attribute__((always_inline)) {
      f64x8 x = to_f64(p + 8 * k);
      r.part[k] = _mm256_set_m128(_mm256_cvtpd_ps(x.part[1]), _mm256_cvtpd_ps(x.part[0]));
    });
    return r;
  }
#endif
  for (int i = 0; i < lanes; ++i) r.part[i / f32x16::part_size][i % f32x16::part_size] = static_cast<float>(p[i]);
#endif
  return r;
}

/// fp32 to the upper halves of words, rounded to nearest even; NaN stays NaN.
TESSERA_INLINE u32x16 round_to_bf16(const f32x16& x) {
  u32x16 u = bits_as<u32x16>(x), rounded = u + 0x7fffu + ((u >> 16) & 1u);
#ifdef TESSERA_AVX2
  // One comparison finds a NaN of either part: so rare that a branch costs less than two selections.
  if (__builtin_expect(_mm256_movemask_ps(_mm256_cmp_ps(x.part[0], x.part[1], _CMP_UNORD_Q)) == 0, 1)) return rounded;
#endif
  return select(x != x, u | 0x400000u, rounded);
}

#if defined(TESSERA_AVX512) || defined(TESSERA_AVX2)
/// Sixteen bf16.
template <bool Stream, class Count>
TESSERA_INLINE void store_bits(bf16* p, __m256i bits, Count count) {
  if constexpr (!is_whole<Count>) {
#ifdef TESSERA_AVX512
    _mm256_mask_storeu_epi16(p, first_lanes(count), bits);
#else
    std::memcpy(static_cast<void*>(p), &bits, static_cast<std::size_t>(count) * sizeof(bf16));
#endif
  } else if constexpr (Stream) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(p), bits);
  } else {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), bits);
  }
}
#endif

/// Stores bf16(float) of each of the first `count` lanes, with the same bits on every target. Stream = true writes around the caches: p
/// must lie on a whole vector.
template <bool Stream = false, class Count = Whole>
TESSERA_INLINE void store(bf16* p, const f32x16& x, Count count = {}) {
#if defined(TESSERA_AVX512)
  __m256i bits;
#ifdef __AVX512BF16__
  // VCVTNEPS2BF16 flushes subnormals: those are so rare that a branch to the integer form costs less than running it always.
  constexpr int subnormal = 0x20;
  if (__builtin_expect(_mm512_fpclass_ps_mask(x.part[0], subnormal) == 0, 1)) {
    bits = std::bit_cast<__m256i>(_mm512_cvtneps_pbh(x.part[0]));
  } else
#endif
    bits = _mm512_cvtepi32_epi16(std::bit_cast<__m512i>(round_to_bf16(x) >> 16));
  store_bits<Stream>(p, bits, count);
#elif defined(TESSERA_AVX2)
  u32x16 rounded = round_to_bf16(x) >> 16;
  __m256i packed = _mm256_packus_epi32(std::bit_cast<__m256i>(rounded.part[0]), std::bit_cast<__m256i>(rounded.part[1]));
  store_bits<Stream>(p, _mm256_permute4x64_epi64(packed, 0xd8), count);
#else
  for (int i = 0; i < count; ++i) p[i] = bf16(x[i]);
#endif
}
template <bool Stream = false, class Count = Whole>
TESSERA_INLINE void store(float* p, const f32x16& x, Count count = {}) {
#if defined(TESSERA_AVX512)
  if constexpr (!is_whole<Count>) {
    _mm512_mask_storeu_ps(p, first_lanes(count), x.part[0]);
  } else if constexpr (Stream) {
    _mm512_stream_ps(p, x.part[0]);
  } else {
    _mm512_storeu_ps(p, x.part[0]);
  }
#elif defined(TESSERA_AVX2)
  unrolled<parts>([&](auto k) __attribute__((always_inline)) {
    if constexpr (!is_whole<Count>) {
      _mm256_maskstore_ps(p + 8 * k, first_lanes(count, k), x.part[k]);
    } else if constexpr (Stream) {
      _mm256_stream_ps(p + 8 * k, x.part[k]);
    } else {
      _mm256_storeu_ps(p + 8 * k, x.part[k]);
    }
  });
#else
  if constexpr (is_whole<Count>) {
    unrolled<parts>([&](auto k) { std::memcpy(p + k * f32x16::part_size, &x.part[k], sizeof x.part[k]); });
  } else {
    std::memcpy(p, &x, static_cast<std::size_t>(count) * sizeof(float));
  }
#endif
}

// Work that is the same for each lane need not keep lanes in order. On AVX2 taking bf16 apart in order costs the shuffle units more than
// the work itself, while even elements are one shift away from fp32 and odd ones one mask. So load_any and store_any hold T in an order of
// their own, in which all operands of one T agree, and in_order brings a vector of them, such as a sum, into the order of memory.

/// `count` elements in the order of T; lanes of elements beyond are 0.
template <class Count = Whole>
TESSERA_INLINE f32x16 load_any(const float* p, Count count = {}) {
  return load(p, count);
}
template <class Count = Whole>
TESSERA_INLINE f32x16 load_any(const bf16* p, Count count = {}) {
#ifdef TESSERA_AVX2
  __m256i pairs;
  if constexpr (is_whole<Count>) {
    pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  } else {
    pairs = _mm256_setzero_si256();
    std::memcpy(&pairs, p, static_cast<std::size_t>(count) * sizeof(bf16));
  }
  f32x16 r;
  r.part[0] = _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
  r.part[1] = _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
  return r;
#else
  return load(p, count);
#endif
}

/// The order of memory from that of T.
template <class T>
TESSERA_INLINE f32x16 in_order(const f32x16& x) {
#ifdef TESSERA_AVX2
  if constexpr (std::is_same_v<T, bf16>) {
    __m256 low = _mm256_unpacklo_ps(x.part[0], x.part[1]), high = _mm256_unpackhi_ps(x.part[0], x.part[1]);
    f32x16 r;
    r.part[0] = _mm256_permute2f128_ps(low, high, 0x20);
    r.part[1] = _mm256_permute2f128_ps(low, high, 0x31);
    return r;
  }
#endif
  return x;
}

/// Writes the first `count` elements of a vector in the order of T.
template <bool Stream = false, class Count = Whole>
TESSERA_INLINE void store_any(float* p, const f32x16& x, Count count = {}) {
  store<Stream>(p, x, count);
}
template <bool Stream = false, class Count = Whole>
TESSERA_INLINE void store_any(bf16* p, const f32x16& x, Count count = {}) {
#ifdef TESSERA_AVX2
  u32x16 rounded = round_to_bf16(x);
  __m256i even = _mm256_srli_epi32(std::bit_cast<__m256i>(rounded.part[0]), 16);
  store_bits<Stream>(p, _mm256_blend_epi16(even, std::bit_cast<__m256i>(rounded.part[1]), 0xaa), count);
#else
  store<Stream>(p, x, count);
#endif
}

/// Asks for the line of p. One a vector: rows that follow each other are asked for a row ahead, which keeps memory busy while this row is
/// being computed, and across the pages at which the hardware's own prefetch stops.
TESSERA_INLINE void prefetch(const void* p) { __builtin_prefetch(p); }

/// Streaming stores are weakly ordered: a piece that used them ends with this.
TESSERA_INLINE void stream_fence() {
#if defined(TESSERA_AVX512) || defined(TESSERA_AVX2)
  _mm_sfence();
#endif
}

/// Whether an output is so large that it leaves the caches before anyone reads it, and lies so that whole vectors are aligned in every
/// row: then streaming stores save the read of each line that a plain store begins with.
inline bool worth_streaming(const void* out, std::int64_t total_bytes, std::int64_t row_bytes) {
#if defined(TESSERA_AVX512) || defined(TESSERA_AVX2)
  constexpr std::int64_t beyond_caches = 32 << 20;
  return total_bytes >= beyond_caches && row_bytes % 64 == 0 && reinterpret_cast<std::uintptr_t>(out) % 64 == 0;
#else
  static_cast<void>(out), static_cast<void>(total_bytes), static_cast<void>(row_bytes);
  return false;
#endif
}

/// f(i, count) for begin, begin + 16, ... below end: whole vectors, then the remainder.
template <class F>
TESSERA_INLINE void for_vectors(std::int64_t begin, std::int64_t end, F&& f) {
  std::int64_t i = begin;
  for (; i + lanes <= end; i += lanes) f(i, Whole{});
  if (i < end) f(i, static_cast<int>(end - i));
}

/// Sum over [0, n) in a fixed order: f(i, count, sum) adds the terms at i to the vector sum, whose lanes are in the order of T. Four chains
/// hide the latency of the additions.
template <class T = float, class F>
TESSERA_INLINE float fold(std::int64_t n, F&& f) {
  f32x16 a{}, b{}, c{}, d{};
  std::int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    f(i, Whole{}, a);
    f(i + lanes, Whole{}, b);
    f(i + 2 * lanes, Whole{}, c);
    f(i + 3 * lanes, Whole{}, d);
  }
  for_vectors(i, n, [&](std::int64_t j, auto count) { f(j, count, a); });
  return horizontal_sum(in_order<T>((a + b) + (c + d)));
}

/// Calls f with a float or a bf16 value: the element type that dtype names.
template <class F>
void with_float_type(DType dtype, const char* op, F&& f) {
  switch (dtype) {
    case DType::f32:
      return f(float{});
    case DType::bf16:
      return f(bf16{});
    default:
      fail(ExitCode::internal, "{}: the host kernel takes fp32 or bf16, not {}", op, name_of(dtype));
  }
}

}  // namespace tessera::kernels
