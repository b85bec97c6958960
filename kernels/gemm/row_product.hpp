// The product of one row and a matrix whose rows follow each other, y(N) = x(K) w(N,K)^T: what a token that is decoded asks of a weight.
// Bound by memory: w is read once, as it lies there, and widened in registers; bf16 is multiplied in pairs.
#pragma once
#include <type_traits>

#include "kernels/gemm/gemm.hpp"
#include "kernels/vector/pairs.hpp"
#include "kernels/vector/vector.hpp"

namespace tessera::kernels::row_product {

/// Whether a product is that of a row. A function of the shape alone, so that plans and runs agree.
inline bool applies(const Gemm& g) { return g.M == 1 && !g.a_transposed && g.b_transposed && !g.b_packed && !g.fp8; }

/// Rows of w whose sums are made and finished together.
inline constexpr std::int64_t columns = 32;

/// What x and a row of w are read as: numbers of T, or pairs of bf16 where K is even.
template <class T, class E>
struct Elements {
  static constexpr std::int64_t of_lane = std::is_same_v<E, Pair> ? 2 : 1, of_vector = of_lane * lanes;
  /// sum + the products of `count` lanes from element k on.
  template <class Count>
  static TESSERA_INLINE f32x16 add(const f32x16& sum, const T* w, const T* x, Count count) {
    if constexpr (std::is_same_v<E, Pair>)
      return dot_pairs(load_pairs(w, count), load_pairs(x, count), sum);
    else
      return fma(load(w, count), load(x, count), sum);
  }
};

/// x (K) times a row of w, in an order that is the same on all targets and threads.
template <class E, class T>
TESSERA_INLINE float multiply_one(const T* x, const T* w, std::int64_t K) {
  using Of = Elements<T, E>;
  // So far ahead that memory answers in time, over the ends of rows and of pages, where the hardware's own prefetch stops.
  constexpr std::int64_t ahead = 4096 / sizeof(T), line = 64 / sizeof(T), step = 4 * Of::of_vector;
  f32x16 sum[4] = {};
  std::int64_t k = 0;
  for (; k + step <= K; k += step) {
    for (std::int64_t i = 0; i < step; i += line) prefetch(w + k + i + ahead);
    unrolled<4>([&](auto c) { sum[c] = Of::add(sum[c], w + k + c * Of::of_vector, x + k + c * Of::of_vector, Whole{}); });
  }
  for_vectors(0, (K - k) / Of::of_lane,
              [&](std::int64_t i, auto n) { sum[0] = Of::add(sum[0], w + k + i * Of::of_lane, x + k + i * Of::of_lane, n); });
  return horizontal_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

/// sums[i] = x (K) times row i of w (count, K).
template <class T>
void multiply(float* sums, const T* x, const T* w, std::int64_t count, std::int64_t K) {
  if constexpr (std::is_same_v<T, bf16>) {
    if (K % 2 == 0) {
      for (std::int64_t i = 0; i < count; ++i) sums[i] = multiply_one<Pair>(x, w + i * K, K);
      return;
    }
  }
  for (std::int64_t i = 0; i < count; ++i) sums[i] = multiply_one<T>(x, w + i * K, K);
}

}  // namespace tessera::kernels::row_product
