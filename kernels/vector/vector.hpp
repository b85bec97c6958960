// Vectors of sixteen floats and the loops over rows that host kernels are made of.
#pragma once
#include "kernels/vector/memory.hpp"

namespace tessera::kernels {

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

/// Calls f with a float, a bf16 or an f16 value: the element type that dtype names.
template <class F>
void with_float_type(DType dtype, const char* op, F&& f) {
  switch (dtype) {
    case DType::f32:
      return f(float{});
    case DType::bf16:
      return f(bf16{});
    case DType::f16:
      return f(f16{});
    case DType::i64:
    case DType::u16:
    case DType::u32:
    case DType::e4m3:
    case DType::e5m2:
      break;
  }
  fail(ExitCode::internal, "{}: the host kernel takes fp32, bf16 or fp16, not {}", op, name_of(dtype));
}
/// The same of the two types of 16 bits.
template <class F>
void with_half_type(DType dtype, const char* op, F&& f) {
  switch (dtype) {
    case DType::bf16:
      return f(bf16{});
    case DType::f16:
      return f(f16{});
    case DType::f32:
    case DType::i64:
    case DType::u16:
    case DType::u32:
    case DType::e4m3:
    case DType::e5m2:
      break;
  }
  fail(ExitCode::internal, "{}: the host kernel takes bf16 or fp16, not {}", op, name_of(dtype));
}
/// The same of the types of a step's sums of gradients: fp32, bf16, fixed point.
template <class F>
void with_sum_type(DType dtype, const char* op, F&& f) {
  switch (dtype) {
    case DType::f32:
      return f(float{});
    case DType::bf16:
      return f(bf16{});
    case DType::i64:
      return f(std::int64_t{});
    case DType::f16:
    case DType::u16:
    case DType::u32:
    case DType::e4m3:
    case DType::e5m2:
      break;
  }
  fail(ExitCode::internal, "{} takes fp32, bf16 or int64 gradients, not {}", op, name_of(dtype));
}

}  // namespace tessera::kernels
