// Vectors of 64 bytes, sixteen floats, from memory of fp32, bf16 or fp16: what every host kernel is written in. A vector is made of the
// target's own registers: one of AVX-512, two of AVX2, four of 16 bytes elsewhere (GCC's generic vectors), so that the compiler can keep it
// in registers. All give the same bits. Multiply-adds are written as fma and built with -ffp-contract=off, so that no compiler may choose
// to fuse or not, and a remainder of n elements runs the very expression of the whole vectors, on masked loads and stores.
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
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
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
#if defined(TESSERA_AVX512) || defined(TESSERA_AVX2)
#ifdef TESSERA_AVX512
  const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(a.part[0]), _mm512_extractf32x8_ps(a.part[0], 1));
#else
  const __m256 eight = _mm256_max_ps(a.part[0], a.part[1]);
#endif
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
#else
  float x[lanes];
  std::memcpy(x, &a, sizeof x);
  for (int width = lanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) x[i] = x[i] > x[i + width] ? x[i] : x[i + width];
  }
  return x[0];
#endif
}

}  // namespace tessera::kernels
