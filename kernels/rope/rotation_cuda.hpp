// Rows of rope_table on a GPU.
#pragma once
#include "kernels/cuda/vector.hpp"
#include "kernels/rope/rotation.hpp"

namespace tessera::kernels::cuda {

/// Cosines and sines of N pairs, in turn.
template <int N>
struct Rotation {
  float pair[2 * N];
};
/// Of the pairs i .. i + N - 1 of a token's row of the table, which has `half` pairs; those from `half` on are 0.
template <class Whole, int N>
__device__ Rotation<N> load_rotation(const float* row, std::int64_t i, std::int64_t half) {
  Rotation<N> r;
#pragma unroll
  for (int k = 0; k < 2 * N; k += 4) {
    float part[4];
    tessera::cuda::load<Whole>(part, row, 2 * i + k, 2 * half);
#pragma unroll
    for (int e = 0; e < 4; ++e) r.pair[k + e] = part[e];
  }
  return r;
}
/// a and b: the first and the second features of N pairs.
template <int N>
__device__ void rotate_pairs(float (&a)[N], float (&b)[N], const Rotation<N>& r, bool inverse) {
#pragma unroll
  for (int k = 0; k < N; ++k) rotate_pair(a[k], b[k], r.pair[2 * k], inverse ? -r.pair[2 * k + 1] : r.pair[2 * k + 1]);
}

/// Which features of a head make a pair.
enum class Pairing : std::uint8_t {
  halves,     ///< all are turned, in pairs (i, i + D/2)
  part,       ///< the first R are turned, in pairs (i, i + R/2); pairs of the others come behind those, (i, i + (D-R)/2) of what is left
  neighbours  ///< (2i, 2i+1), of which those of the first R features are turned
};
/// The D/2 pairs of a head of D features, of which the first R are turned. Whole vectors of N pairs lie on one side of R.
template <Pairing pairing>
struct HeadPairs {
  std::int64_t half, turning;  ///< pairs: D/2, and R/2

  __device__ std::int64_t first(std::int64_t i) const {
    return pairing == Pairing::neighbours ? 2 * i : pairing == Pairing::part && i >= turning ? i + turning : i;
  }
  __device__ std::int64_t second(std::int64_t i) const {
    return pairing == Pairing::neighbours ? 2 * i + 1 : i + (pairing == Pairing::part && i < turning ? turning : half);
  }
  /// Of the n pairs that are loaded, all or none, those that are turned.
  __device__ std::int64_t turned(std::int64_t n) const { return pairing == Pairing::halves || n == 0 ? n : turning; }

  /// The features of the pairs i .. i + N - 1; those from pair n on are 0.
  template <class Whole, int N, class T>
  __device__ void load(tessera::cuda::Vector<T, N>& a, tessera::cuda::Vector<T, N>& b, const T* head, std::int64_t i,
                       std::int64_t n) const {
    if constexpr (pairing == Pairing::neighbours) {
      const auto both = tessera::cuda::load<Whole, 2 * N>(head, 2 * i, 2 * n);
#pragma unroll
      for (int k = 0; k < N; ++k) a.value[k] = both.value[2 * k], b.value[k] = both.value[2 * k + 1];
    } else if constexpr (pairing == Pairing::halves || Whole::value) {
      a = tessera::cuda::load<Whole, N>(head + (first(i) - i), i, n), b = tessera::cuda::load<Whole, N>(head + (second(i) - i), i, n);
    } else {
#pragma unroll
      for (int k = 0; k < N; ++k) {
        a.value[k] = i + k < n ? head[first(i + k)] : T{};
        b.value[k] = i + k < n ? head[second(i + k)] : T{};
      }
    }
  }
  /// The same as fp32. Halves are loaded and converted one after the other, since the order takes or saves registers.
  template <class Whole, int N, class T>
  __device__ void load(float (&a)[N], float (&b)[N], const T* head, std::int64_t i, std::int64_t n) const {
    if constexpr (pairing == Pairing::halves) {
      tessera::cuda::load<Whole>(a, head, i, n), tessera::cuda::load<Whole>(b, head + half, i, n);
    } else {
      tessera::cuda::Vector<T, N> x, y;
      load<Whole>(x, y, head, i, n);
#pragma unroll
      for (int k = 0; k < N; ++k) a[k] = tessera::cuda::to_float(x.value[k]), b[k] = tessera::cuda::to_float(y.value[k]);
    }
  }
  template <class Whole, int N, class T>
  __device__ void store(T* head, std::int64_t i, std::int64_t n, const tessera::cuda::Vector<T, N>& a,
                        const tessera::cuda::Vector<T, N>& b) const {
    if constexpr (pairing == Pairing::neighbours) {
      tessera::cuda::Vector<T, 2 * N> both;
#pragma unroll
      for (int k = 0; k < N; ++k) both.value[2 * k] = a.value[k], both.value[2 * k + 1] = b.value[k];
      tessera::cuda::store<Whole>(head, 2 * i, 2 * n, both);
    } else if constexpr (pairing == Pairing::halves || Whole::value) {
      tessera::cuda::store<Whole>(head + (first(i) - i), i, n, a), tessera::cuda::store<Whole>(head + (second(i) - i), i, n, b);
    } else {
#pragma unroll
      for (int k = 0; k < N; ++k) {
        if (i + k < n) head[first(i + k)] = a.value[k], head[second(i + k)] = b.value[k];
      }
    }
  }
  template <class Whole, int N, class T>
  __device__ void store(T* head, std::int64_t i, std::int64_t n, const float (&a)[N], const float (&b)[N]) const {
    if constexpr (pairing == Pairing::halves)
      tessera::cuda::store<Whole>(head, i, n, a), tessera::cuda::store<Whole>(head + half, i, n, b);
    else
      store<Whole, N, T>(head, i, n, tessera::cuda::Converter<T, N>::of(a), tessera::cuda::Converter<T, N>::of(b));
  }

  /// Turns those of the pairs from i on that are turned.
  template <int N>
  __device__ void rotate(float (&a)[N], float (&b)[N], const Rotation<N>& r, std::int64_t i, bool inverse) const {
    if constexpr (pairing == Pairing::halves) {
      rotate_pairs(a, b, r, inverse);
    } else {
#pragma unroll
      for (int k = 0; k < N; ++k) {
        if (i + k < turning) rotate_pair(a[k], b[k], r.pair[2 * k], inverse ? -r.pair[2 * k + 1] : r.pair[2 * k + 1]);
      }
    }
  }
};

/// Calls f with the pairing of an op as a constant, and with the op, whose `rotated` is said.
template <class P, class F>
void with_pairing(P p, F&& f) {
  p.rotated = turned_features(p);
  if (p.neighbours)
    f(std::integral_constant<Pairing, Pairing::neighbours>{}, p);
  else if (p.rotated < p.D)
    f(std::integral_constant<Pairing, Pairing::part>{}, p);
  else
    f(std::integral_constant<Pairing, Pairing::halves>{}, p);
}

}  // namespace tessera::kernels::cuda
