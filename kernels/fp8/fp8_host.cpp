// Codes that are not transposed are made along rows; others, and square blocks, in tiles of 128 x 128 that stay in the first-level cache.
// What shares a scale beyond those has its largest magnitude found in a pass before; a maximum is exact in any order.
#include "kernels/fp8/fp8.hpp"

#include <atomic>
#include <cmath>
#include <cstring>

#include "base/check.hpp"
#include "kernels/fp8/scale.hpp"
#include "kernels/parallel.hpp"
#include "kernels/vector/float8.hpp"

namespace tessera::kernels::host {
namespace {

constexpr std::int64_t tile = fp8_block;

/// Magnitudes as bits, whose order is that of the values, with NaN above all.
template <class T, class Count>
TESSERA_INLINE i32x16 magnitude_bits(const T* x, Count count) {
  return bits_as<i32x16>(load(x, count)) & 0x7fffffff;
}
TESSERA_INLINE i32x16 larger(const i32x16& a, const i32x16& b) {
#ifdef TESSERA_AVX512
  i32x16 most;  // one instruction, where a comparison and a selection would wait for each other
  most.part[0] = std::bit_cast<i32x16::Part>(_mm512_max_epi32(std::bit_cast<__m512i>(a.part[0]), std::bit_cast<__m512i>(b.part[0])));
  return most;
#else
  return select(a > b, a, b);
#endif
}
float larger(float a, float b) { return std::bit_cast<std::int32_t>(a) > std::bit_cast<std::int32_t>(b) ? a : b; }
std::int32_t largest_lane(const i32x16& x) {
#ifdef TESSERA_AVX512
  return _mm512_reduce_max_epi32(std::bit_cast<__m512i>(x.part[0]));
#else
  std::int32_t largest = 0;
  for (int lane = 0; lane < lanes; ++lane) largest = std::max(largest, x[lane]);
  return largest;
#endif
}
/// Of `n` elements that follow each other.
template <class T>
float largest_magnitude(const T* x, std::int64_t n) {
  i32x16 most(0);
  for_vectors(0, n, [&](std::int64_t i, auto count) { most = larger(most, magnitude_bits(x + i, count)); });
  return std::bit_cast<float>(largest_lane(most));
}
/// largest (columns) of each column of x, a tile wide at most.
template <class T>
void column_magnitudes(float* largest, const T* x, std::int64_t rows, std::int64_t columns, std::int64_t step) {
  std::fill_n(largest, columns, 0.f);
  for (std::int64_t i = 0; i < rows; ++i)
    for_vectors(0, columns, [&](std::int64_t j, auto count) {
      const i32x16 most = larger(bits_as<i32x16>(load(largest + j, count)), magnitude_bits(x + i * step + j, count));
      store(largest + j, bits_as<f32x16>(most), count);
    });
}

typedef std::uint8_t Bytes16 __attribute__((vector_size(16)));  // NOLINT: attributes need typedef

/// out (16,16) bytes of in, transposed: four times the bytes of the upper rows come between those of the lower ones.
TESSERA_INLINE void transpose_16x16(std::uint8_t* out, std::int64_t out_step, const std::uint8_t* in, std::int64_t in_step) {
  Bytes16 row[16], next[16];
  unrolled<16>([&](auto i) __attribute__((always_inline)) { std::memcpy(&row[i], in + i * in_step, 16); });
  unrolled<4>([&](auto) __attribute__((always_inline)) {
    unrolled<8>([&](auto i) __attribute__((always_inline)) {
      next[2 * i] = __builtin_shuffle(row[i], row[i + 8], Bytes16{0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23});
      next[2 * i + 1] = __builtin_shuffle(row[i], row[i + 8], Bytes16{8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31});
    });
    unrolled<16>([&](auto i) __attribute__((always_inline)) { row[i] = next[i]; });
  });
  unrolled<16>([&](auto i) __attribute__((always_inline)) { std::memcpy(out + i * out_step, &row[i], 16); });
}

template <class T, class F>
class Quantizer {
 public:
  explicit Quantizer(const Fp8Quantize& p)
      : p_(p), x_(static_cast<const T*>(p.x)), down_(ceil_div(p.rows, tile)), across_(ceil_div(p.columns, tile)) {}

  void run() const {
    if (delayed())
      *p_.scales = *p_.delayed.multiplier;
    else if (p_.scaling == Fp8Scaling::tensor)
      find_magnitude();
    if (p_.scaling == Fp8Scaling::rows && p_.transposed) find_column_magnitudes();
    if (p_.transposed || p_.scaling == Fp8Scaling::square_blocks)
      parallel_ranges(down_ * across_, 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t n = begin; n < end; ++n) encode_tile(n / across_, n % across_);
      });
    else  // along the rows, as memory is read fastest
      parallel_ranges(p_.rows, ceil_div(std::int64_t{1} << 14, p_.columns), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) encode_row(i);
      });
    // Until now these were multipliers.
    if (!is_blocks(p_.scaling)) {
      const std::int64_t count = fp8_scales(p_.scaling, p_.transposed ? p_.columns : p_.rows, 0);
      for (std::int64_t i = 0; i < count; ++i) p_.scales[i] = 1.f / p_.scales[i];
    }
  }

 private:
  const T* at(std::int64_t row, std::int64_t column) const { return x_ + row * p_.columns + column; }
  bool delayed() const { return p_.delayed.multiplier != nullptr; }
  Fp8Scale scale_of(float magnitude) const { return fp8_scale(magnitude, F::largest(), is_blocks(p_.scaling)); }

  void find_magnitude() const {
    std::atomic<float> largest{0};
    parallel_ranges(p_.rows * p_.columns, 1 << 14, [&](std::int64_t begin, std::int64_t end) {
      const float mine = largest_magnitude(x_ + begin, end - begin);
      for (float known = largest; !largest.compare_exchange_weak(known, larger(mine, known));) {
      }
    });
    *p_.scales = scale_of(largest).multiplier;
  }
  void find_column_magnitudes() const {
    constexpr std::int64_t stripe = 4 * tile;
    parallel_ranges(p_.columns, stripe, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t first = begin; first < end; first += stripe) {
        float largest[stripe];
        const std::int64_t columns = std::min(stripe, end - first);
        column_magnitudes(largest, at(0, first), p_.rows, columns, p_.columns);
        for (std::int64_t j = 0; j < columns; ++j) p_.scales[first + j] = scale_of(largest[j]).multiplier;
      }
    });
  }

  void encode_row(std::int64_t i) const {
    std::uint8_t* codes = p_.codes + i * p_.columns;
    if (p_.scaling == Fp8Scaling::row_blocks) {
      for (std::int64_t j = 0; j < across_; ++j) {
        const std::int64_t first = j * tile, columns = std::min(tile, p_.columns - first);
        const Fp8Scale scale = scale_of(largest_magnitude(at(i, first), columns));
        p_.scales[i * across_ + j] = scale.scale;
        encode(codes + first, at(i, first), columns, scale.multiplier);
      }
      return;
    }
    if (p_.scaling == Fp8Scaling::rows) p_.scales[i] = scale_of(largest_magnitude(at(i, 0), p_.columns)).multiplier;
    encode(codes, at(i, 0), p_.columns, p_.scales[p_.scaling == Fp8Scaling::rows ? i : 0]);
  }

  /// Multipliers of a tile's columns where codes are transposed, and of blocks their scales.
  void find_multipliers(float* by, std::int64_t i, std::int64_t j, std::int64_t rows, std::int64_t columns) const {
    const T* x = at(i * tile, j * tile);
    switch (p_.scaling) {
      case Fp8Scaling::tensor:
        return std::fill_n(by, tile, *p_.scales), void();
      case Fp8Scaling::rows:
        return std::copy_n(p_.scales + j * tile, columns, by), void();
      case Fp8Scaling::row_blocks: {
        float largest[tile];
        column_magnitudes(largest, x, rows, columns, p_.columns);
        for (std::int64_t n = 0; n < columns; ++n) {
          const Fp8Scale scale = scale_of(largest[n]);
          by[n] = scale.multiplier;
          p_.scales[(j * tile + n) * down_ + i] = scale.scale;
        }
        return;
      }
      case Fp8Scaling::square_blocks: {
        float most = 0;
        for (std::int64_t r = 0; r < rows; ++r) most = larger(most, largest_magnitude(x + r * p_.columns, columns));
        const Fp8Scale scale = scale_of(most);
        std::fill_n(by, tile, scale.multiplier);
        p_.scales[p_.transposed ? j * down_ + i : i * across_ + j] = scale.scale;
      }
    }
  }

  void encode_tile(std::int64_t i, std::int64_t j) const {
    const std::int64_t rows = std::min(tile, p_.rows - i * tile), columns = std::min(tile, p_.columns - j * tile);
    float by[tile];
    find_multipliers(by, i, j, rows, columns);
    alignas(64) std::uint8_t kept[tile * tile];
    std::uint8_t* to = p_.transposed ? kept : p_.codes + i * tile * p_.columns + j * tile;
    const std::int64_t step = p_.transposed ? tile : p_.columns;
    const T* x = at(i * tile, j * tile);
    const bool alike = p_.scaling == Fp8Scaling::tensor || p_.scaling == Fp8Scaling::square_blocks;
    for (std::int64_t r = 0; r < rows; ++r)
      alike ? encode(to + r * step, x + r * p_.columns, columns, by[0]) : encode_by_columns(to + r * step, x + r * p_.columns, columns, by);
    if (p_.transposed) put_transposed(p_.codes + j * tile * p_.rows + i * tile, kept, rows, columns);
  }

  /// By a multiplier that is not of these elements.
  void encode_delayed(std::uint8_t* codes, const T* x, std::int64_t n, float by) const {
    const i32x16 infinite(0x7f800000), beyond(std::bit_cast<std::int32_t>(F::largest()));
    i32x16 most(0);
    for_vectors(0, n, [&](std::int64_t i, auto count) {
      const f32x16 value = load(x + i, count), scaled = value * splat(by);
      const i32x16 magnitude = bits_as<i32x16>(value) & 0x7fffffff, bits = bits_as<i32x16>(scaled), far = bits & 0x7fffffff;
      most = larger(most, select(magnitude < infinite, magnitude, i32x16(0)));
      const i32x16 code = round_to_float8<F>(bits_as<f32x16>(select(far > beyond, beyond, far) | (bits - far)));
      store_bytes(codes + i, select(magnitude < infinite, code, i32x16(F::nan)), count);
    });
    if (p_.delayed.largest) join(*p_.delayed.largest, std::bit_cast<float>(largest_lane(most)));
  }
  static void join(float& largest, float mine) {
    const std::atomic_ref<float> all(largest);
    for (float known = all; known < mine && !all.compare_exchange_weak(known, mine);) {
    }
  }

  /// A multiplier is NaN where it is that of an element which is not finite; with others no code saturates.
  void encode(std::uint8_t* codes, const T* x, std::int64_t n, float by) const {
    if (delayed()) return encode_delayed(codes, x, n, by);
    if (std::isnan(by)) {
      std::memset(codes, F::nan, static_cast<std::size_t>(n));
      return;
    }
    for_vectors(0, n,
                [&](std::int64_t i, auto count) { store_bytes(codes + i, round_to_float8<F>(load(x + i, count) * splat(by)), count); });
  }
  static void encode_by_columns(std::uint8_t* codes, const T* x, std::int64_t n, const float* by) {
    for_vectors(0, n, [&](std::int64_t i, auto count) {
      const f32x16 multiplier = load(by + i);
      const i32x16 code = round_to_float8<F>(load(x + i, count) * multiplier);
      store_bytes(codes + i, select(multiplier != multiplier, i32x16(F::nan), code), count);
    });
  }

  void put_transposed(std::uint8_t* codes, const std::uint8_t* kept, std::int64_t rows, std::int64_t columns) const {
    const std::int64_t whole_rows = rows / 16 * 16, whole_columns = columns / 16 * 16;
    for (std::int64_t c = 0; c < whole_columns; c += 16)
      for (std::int64_t r = 0; r < whole_rows; r += 16) transpose_16x16(codes + c * p_.rows + r, p_.rows, kept + r * tile + c, tile);
    for (std::int64_t c = 0; c < columns; ++c)
      for (std::int64_t r = c < whole_columns ? whole_rows : 0; r < rows; ++r) codes[c * p_.rows + r] = kept[r * tile + c];
  }

  const Fp8Quantize& p_;
  const T* x_;
  std::int64_t down_, across_;  ///< tiles
};

}  // namespace

void fp8_quantize(const Context&, const Fp8Quantize& p) {
  TESSERA_REQUIRE(!p.delayed.multiplier || p.scaling == Fp8Scaling::tensor, "delayed scales are of whole tensors");
  with_float_type(p.dtype, "fp8_quantize", [&](auto type) {
    with_float8_type(p.type, "fp8_quantize", [&](auto code) { Quantizer<decltype(type), decltype(code)>(p).run(); });
  });
}

}  // namespace tessera::kernels::host
