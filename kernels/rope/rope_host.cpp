// Bound by memory when rows leave the caches; a row's cosines and sines are read once and used for all of its heads.
#include "kernels/rope/rope.hpp"

#include <algorithm>
#include <numbers>

#include "kernels/parallel.hpp"
#include "kernels/rope/rotation_host.hpp"

namespace tessera::kernels {
namespace host {
namespace {

/// theta^(-2i/D) with the scaling of Llama 3.1. Hugging Face holds every intermediate value of this in fp32, and a weight trained with
/// those frequencies expects them: so each line rounds to fp32 where theirs does, and is exact in between.
float frequency(std::int64_t i, std::int64_t D, double theta, const RopeScaling& scaling) {
  float exponent = static_cast<float>(2 * i) / static_cast<float>(D);
  float base = 1.0f / static_cast<float>(std::pow(theta, static_cast<double>(exponent)));
  if (scaling.factor == 0) return base;
  float factor = static_cast<float>(scaling.factor), context = static_cast<float>(scaling.original_context);
  double low_wavelength = static_cast<double>(scaling.original_context) / scaling.low_freq_factor;
  double high_wavelength = static_cast<double>(scaling.original_context) / scaling.high_freq_factor;
  float wavelength = static_cast<float>(2 * std::numbers::pi) / base;
  if (wavelength < static_cast<float>(high_wavelength)) return base;
  if (wavelength > static_cast<float>(low_wavelength)) return base / factor;
  float smooth = (context / wavelength - static_cast<float>(scaling.low_freq_factor)) /
                 static_cast<float>(scaling.high_freq_factor - scaling.low_freq_factor);
  // The product of two floats is exact in fp64, so the conversion is the one rounding, and no compiler can fuse it into the sum.
  float plain_part = static_cast<float>(static_cast<double>(smooth) * static_cast<double>(base));
  return (1.0f - smooth) * base / factor + plain_part;
}

template <class T>
void rotate_row(T* row, const float* table, Rope p) {
  std::int64_t half = p.D / 2;
  for_vectors(0, half, [&](std::int64_t i, auto n) {
    Rotation r = load_rotation(table + 2 * i, n);
    f32x16 sin = p.inverse ? -r.sin : r.sin;
    for (std::int64_t h = 0; h < p.heads; ++h) {
      T *first = row + h * p.D + i, *second = first + half;
      f32x16 a = load(first, n), b = load(second, n);
      rotate_pair(a, b, r.cos, sin);
      store(first, a, n), store(second, b, n);
    }
  });
}

}  // namespace

}  // namespace host

void rope_table(float* table, std::int64_t first, std::int64_t T, std::int64_t D, double theta, const RopeScaling& scaling) {
  std::int64_t half = D / 2;
  parallel_ranges(half, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      float inv = host::frequency(i, D, theta, scaling);
      for (std::int64_t t = 0; t < T; ++t) {
        float angle = static_cast<float>(first + t) * inv;
        table[2 * (t * half + i)] = static_cast<float>(std::cos(static_cast<double>(angle)));
        table[2 * (t * half + i) + 1] = static_cast<float>(std::sin(static_cast<double>(angle)));
      }
    }
  });
}

void host::rope(const Context&, const Rope& p) {
  if (p.M == 0 || p.heads == 0) return;
  TESSERA_REQUIRE(p.D % 2 == 0 && p.T > 0 && p.stride >= p.heads * p.D, "rope: D {}, T {}, heads {}, stride {}", p.D, p.T, p.heads,
                  p.stride);
  std::int64_t grain = std::max<std::int64_t>(1, 16384 / (p.heads * p.D));
  with_float_type(p.dtype, "rope", [&](auto type) {
    using T = decltype(type);
    T* x = static_cast<T*>(p.x);
    parallel_ranges(p.M, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t m = begin; m < end; ++m) rotate_row(x + m * p.stride, p.table + m % p.T * p.D, p);
    });
  });
}

}  // namespace tessera::kernels
