// Bound by memory when rows leave the caches; a row's cosines and sines are read once and used for all of its heads.
#include "kernels/rope/rope.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/parallel.hpp"
#include "kernels/rope/rotation_host.hpp"

namespace tessera::kernels {
namespace host {
namespace {

// Hugging Face holds every intermediate value of a frequency in fp32, and a weight trained with those frequencies expects them: so each
// line rounds to fp32 where theirs does, and is exact in between.

/// The product of two floats is exact in fp64, so the conversion is the one rounding, and no compiler can fuse it into a sum.
float product(float a, float b) { return static_cast<float>(static_cast<double>(a) * static_cast<double>(b)); }

/// theta^(2i/D).
float turn(std::int64_t i, std::int64_t D, double theta) {
  const float exponent = static_cast<float>(2 * i) / static_cast<float>(D);
  return static_cast<float>(std::pow(theta, static_cast<double>(exponent)));
}

float llama3_frequency(float base, const RopeScaling& scaling) {
  const float factor = static_cast<float>(scaling.factor), context = static_cast<float>(scaling.original_context);
  const double low_wavelength = static_cast<double>(scaling.original_context) / scaling.low_freq_factor;
  const double high_wavelength = static_cast<double>(scaling.original_context) / scaling.high_freq_factor;
  const float wavelength = static_cast<float>(2 * std::numbers::pi) / base;
  if (wavelength < static_cast<float>(high_wavelength)) return base;
  if (wavelength > static_cast<float>(low_wavelength)) return base / factor;
  const float smooth = (context / wavelength - static_cast<float>(scaling.low_freq_factor)) /
                       static_cast<float>(scaling.high_freq_factor - scaling.low_freq_factor);
  return (1.0f - smooth) * base / factor + product(smooth, base);
}

/// The base for sequences that are longer than the original context: theta (factor T / context - (factor - 1))^(D / (D-2)).
float dynamic_base(std::int64_t D, double theta, const RopeScaling& scaling) {
  const auto context = static_cast<float>(scaling.original_context), factor = static_cast<float>(scaling.factor);
  const float longer = std::max(static_cast<float>(scaling.sequence), context);
  const float ratio = product(longer, factor) / context - static_cast<float>(scaling.factor - 1);
  const double power = static_cast<double>(D) / static_cast<double>(D - 2);
  return product(static_cast<float>(std::pow(static_cast<double>(ratio), power)), static_cast<float>(theta));
}

/// Of pairs below `low` a wave turns more than beta_fast times within the original context, of those above `high` less than beta_slow
/// times.
struct YarnRange {
  float low = 0, high = 0;
  YarnRange(std::int64_t D, double theta, const RopeScaling& scaling) {
    const auto pair_of = [&](double turns) {
      return static_cast<double>(D) * std::log(static_cast<double>(scaling.original_context) / (turns * 2 * std::numbers::pi)) /
             (2 * std::log(theta));
    };
    const double first = pair_of(scaling.beta_fast), last = pair_of(scaling.beta_slow);
    low = static_cast<float>(std::max(scaling.truncate ? std::floor(first) : first, 0.0));
    high = static_cast<float>(std::min(scaling.truncate ? std::ceil(last) : last, static_cast<double>(D - 1)));
    if (low == high) high += 0.001f;
  }
};

float yarn_frequency(std::int64_t i, std::int64_t D, double theta, const RopeScaling& scaling) {
  const float wave = turn(i, D, theta);
  const float plain = 1.0f / wave, slowed = 1.0f / product(static_cast<float>(scaling.factor), wave);
  const YarnRange range(D, theta, scaling);
  const float ramp = std::clamp((static_cast<float>(i) - range.low) / (range.high - range.low), 0.0f, 1.0f), kept = 1.0f - ramp;
  return product(slowed, 1.0f - kept) + product(plain, kept);
}

float frequency(std::int64_t i, std::int64_t D, double theta, const RopeScaling& scaling) {
  switch (scaling.method) {
    case RopeMethod::none:
      break;
    case RopeMethod::llama3:
      return llama3_frequency(1.0f / turn(i, D, theta), scaling);
    case RopeMethod::linear:
      return 1.0f / turn(i, D, theta) / static_cast<float>(scaling.factor);
    case RopeMethod::dynamic:
      if (scaling.sequence > scaling.original_context) return 1.0f / turn(i, D, static_cast<double>(dynamic_base(D, theta, scaling)));
      break;
    case RopeMethod::yarn:
      return yarn_frequency(i, D, theta, scaling);
    case RopeMethod::longrope: {
      const std::span<const double> factors = scaling.sequence > scaling.original_context ? scaling.long_factors : scaling.short_factors;
      return 1.0f / product(static_cast<float>(factors[static_cast<std::size_t>(i)]), turn(i, D, theta));
    }
  }
  return 1.0f / turn(i, D, theta);
}

float attention_factor(const RopeScaling& scaling) {
  if (scaling.method != RopeMethod::yarn && scaling.method != RopeMethod::longrope) return 1;
  if (scaling.attention_factor > 0) return static_cast<float>(scaling.attention_factor);
  if (scaling.method == RopeMethod::longrope && scaling.factor <= 1) return 1;
  if (scaling.method == RopeMethod::longrope)
    return static_cast<float>(std::sqrt(1 + std::log(scaling.factor) / std::log(static_cast<double>(scaling.original_context))));
  return static_cast<float>(0.1 * std::log(scaling.factor) + 1);
}

template <bool neighbours, class T>
void rotate_row(T* row, const float* table, Rope p) {
  std::int64_t half = turned_features(p) / 2;
  for_vectors(0, half, [&](std::int64_t i, auto n) {
    Rotation r = load_rotation(table + 2 * i, n);
    f32x16 sin = p.inverse ? -r.sin : r.sin;
    for (std::int64_t h = 0; h < p.heads; ++h) {
      if constexpr (neighbours) {
        T* pairs = row + h * p.D + 2 * i;
        Neighbours both = load_neighbours(pairs, n);
        rotate_pair(both.first, both.second, r.cos, sin);
        store_neighbours(pairs, both.first, both.second, n);
      } else {
        T *first = row + h * p.D + i, *second = first + half;
        f32x16 a = load(first, n), b = load(second, n);
        rotate_pair(a, b, r.cos, sin);
        store(first, a, n), store(second, b, n);
      }
    }
  });
}

}  // namespace

}  // namespace host

void rope_table(float* table, std::int64_t first, std::int64_t T, std::int64_t D, double theta, const RopeScaling& scaling) {
  std::int64_t half = D / 2;
  const float scale = host::attention_factor(scaling);
  parallel_ranges(half, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      float inv = host::frequency(i, D, theta, scaling);
      for (std::int64_t t = 0; t < T; ++t) {
        float angle = static_cast<float>(first + t) * inv;
        table[2 * (t * half + i)] = static_cast<float>(std::cos(static_cast<double>(angle))) * scale;
        table[2 * (t * half + i) + 1] = static_cast<float>(std::sin(static_cast<double>(angle))) * scale;
      }
    }
  });
}

void host::rope(const Context&, const Rope& p) {
  if (p.M == 0 || p.heads == 0) return;
  TESSERA_REQUIRE(can_turn(p) && p.T > 0 && p.stride >= p.heads * p.D, "rope: D {}, of which {}, T {}, heads {}, stride {}", p.D, p.rotated,
                  p.T, p.heads, p.stride);
  std::int64_t grain = std::max<std::int64_t>(1, 16384 / (p.heads * p.D));
  with_float_type(p.dtype, "rope", [&](auto type) {
    using T = decltype(type);
    T* x = static_cast<T*>(p.x);
    const auto rotate = p.neighbours ? rotate_row<true, T> : rotate_row<false, T>;
    const std::int64_t table_row = turned_features(p);
    parallel_ranges(p.M, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t m = begin; m < end; ++m) rotate(x + m * p.stride, p.table + position_of(m, p.T, p.document_starts) * table_row, p);
    });
  });
}

}  // namespace tessera::kernels
