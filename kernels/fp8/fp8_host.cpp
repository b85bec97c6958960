// A matrix is passed over in tiles of 128 x 128, which stay in the first-level cache; what shares a scale over more than a tile has its
// largest magnitude found in a pass before. Threads have tiles or columns of their own; a maximum is exact in any order.
#include "kernels/fp8/fp8.hpp"

#include <atomic>
#include <cstring>
#include <limits>

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
TESSERA_INLINE i32x16 larger(const i32x16& a, const i32x16& b) { return select(a > b, a, b); }
float larger(float a, float b) { return std::bit_cast<std::int32_t>(a) > std::bit_cast<std::int32_t>(b) ? a : b; }
/// Of `n` elements that follow each other.
template <class T>
float largest_magnitude(const T* x, std::int64_t n) {
  i32x16 most(0);
  for_vectors(0, n, [&](std::int64_t i, auto count) { most = larger(most, magnitude_bits(x + i, count)); });
  std::int32_t largest = 0;
  for (int lane = 0; lane < lanes; ++lane) largest = std::max(largest, most[lane]);
  return std::bit_cast<float>(largest);
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

/// What the elements of a tile are multiplied by: a number for each row, or one for each column.
struct Multipliers {
  float of[tile];
  bool by_columns = false;
};

/// out (8,8) bytes of in, transposed: each step swaps halves of the halves before.
TESSERA_INLINE void transpose_8x8(std::uint8_t* out, std::int64_t out_step, const std::uint8_t* in, std::int64_t in_step) {
  std::uint64_t row[8];
  for (int i = 0; i < 8; ++i) std::memcpy(&row[i], in + i * in_step, 8);
  const auto swap = [&](int i, int j, int bits, std::uint64_t low) __attribute__((always_inline)) {
    const std::uint64_t moved = (row[i] >> bits ^ row[j]) & low;
    row[j] ^= moved, row[i] ^= moved << bits;
  };
  for (int i = 0; i < 4; ++i) swap(i, i + 4, 32, 0x00000000ffffffffu);
  for (int i : {0, 1, 4, 5}) swap(i, i + 2, 16, 0x0000ffff0000ffffu);
  for (int i : {0, 2, 4, 6}) swap(i, i + 1, 8, 0x00ff00ff00ff00ffu);
  for (int i = 0; i < 8; ++i) std::memcpy(out + i * out_step, &row[i], 8);
}

template <class T, class F>
class Quantizer {
 public:
  explicit Quantizer(const Fp8Quantize& p)
      : p_(p), x_(static_cast<const T*>(p.x)), down_(ceil_div(p.rows, tile)), across_(ceil_div(p.columns, tile)) {}

  void run() const {
    const bool whole_columns = p_.scaling == Fp8Scaling::rows && p_.transposed;
    if (p_.scaling == Fp8Scaling::tensor) find_magnitude();
    if (whole_columns) find_column_magnitudes();
    if (p_.transposed)  // a thread writes whole rows of codes
      parallel_ranges(across_, 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t j = begin; j < end; ++j)
          for (std::int64_t i = 0; i < down_; ++i) encode_tile(i, j);
      });
    else
      parallel_ranges(down_, 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          if (p_.scaling == Fp8Scaling::rows) find_row_magnitudes(i);
          for (std::int64_t j = 0; j < across_; ++j) encode_tile(i, j);
        }
      });
    // Until now these were multipliers.
    if (!is_blocks(p_.scaling)) {
      const std::int64_t count = fp8_scales(p_.scaling, p_.transposed ? p_.columns : p_.rows, 0);
      for (std::int64_t i = 0; i < count; ++i) p_.scales[i] = 1.f / p_.scales[i];
    }
  }

 private:
  const T* at(std::int64_t row, std::int64_t column) const { return x_ + row * p_.columns + column; }
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
  void find_row_magnitudes(std::int64_t band) const {
    for (std::int64_t i = band * tile; i < std::min(p_.rows, (band + 1) * tile); ++i)
      p_.scales[i] = scale_of(largest_magnitude(at(i, 0), p_.columns)).multiplier;
  }
  void find_column_magnitudes() const {
    parallel_ranges(across_, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t first = begin * tile; first < std::min(end * tile, p_.columns); first += tile) {
        float largest[tile];
        const std::int64_t columns = std::min(tile, p_.columns - first);
        column_magnitudes(largest, at(0, first), p_.rows, columns, p_.columns);
        for (std::int64_t j = 0; j < columns; ++j) p_.scales[first + j] = scale_of(largest[j]).multiplier;
      }
    });
  }

  /// Those of a tile, and of blocks their scales.
  void find_multipliers(Multipliers& m, std::int64_t i, std::int64_t j, std::int64_t rows, std::int64_t columns) const {
    const T* x = at(i * tile, j * tile);
    m.by_columns = p_.transposed && (p_.scaling == Fp8Scaling::rows || p_.scaling == Fp8Scaling::row_blocks);
    float largest[tile];
    switch (p_.scaling) {
      case Fp8Scaling::tensor:
        return std::fill_n(m.of, tile, *p_.scales), void();
      case Fp8Scaling::rows:
        return std::copy_n(p_.scales + (m.by_columns ? j : i) * tile, m.by_columns ? columns : rows, m.of), void();
      case Fp8Scaling::row_blocks: {
        if (m.by_columns)
          column_magnitudes(largest, x, rows, columns, p_.columns);
        else
          for (std::int64_t r = 0; r < rows; ++r) largest[r] = largest_magnitude(x + r * p_.columns, columns);
        for (std::int64_t n = 0; n < (m.by_columns ? columns : rows); ++n) {
          const Fp8Scale scale = scale_of(largest[n]);
          m.of[n] = scale.multiplier;
          p_.scales[m.by_columns ? (j * tile + n) * down_ + i : (i * tile + n) * across_ + j] = scale.scale;
        }
        return;
      }
      case Fp8Scaling::square_blocks: {
        float most = 0;
        for (std::int64_t r = 0; r < rows; ++r) most = larger(most, largest_magnitude(x + r * p_.columns, columns));
        const Fp8Scale scale = scale_of(most);
        std::fill_n(m.of, tile, scale.multiplier);
        p_.scales[p_.transposed ? j * down_ + i : i * across_ + j] = scale.scale;
      }
    }
  }

  void encode_tile(std::int64_t i, std::int64_t j) const {
    const std::int64_t rows = std::min(tile, p_.rows - i * tile), columns = std::min(tile, p_.columns - j * tile);
    Multipliers m;
    find_multipliers(m, i, j, rows, columns);
    alignas(64) std::uint8_t kept[tile * tile];
    std::uint8_t* to = p_.transposed ? kept : p_.codes + i * tile * p_.columns + j * tile;
    const std::int64_t step = p_.transposed ? tile : p_.columns;
    const T* x = at(i * tile, j * tile);
    for (std::int64_t r = 0; r < rows; ++r)
      for_vectors(0, columns, [&](std::int64_t c, auto count) {
        const f32x16 by = m.by_columns ? load(m.of + c) : splat(m.of[r]);
        store_bytes(to + r * step + c, round_to_float8<F>(load(x + r * p_.columns + c, count) * by), count);
      });
    if (p_.transposed) put_transposed(p_.codes + j * tile * p_.rows + i * tile, kept, rows, columns);
  }

  void put_transposed(std::uint8_t* codes, const std::uint8_t* kept, std::int64_t rows, std::int64_t columns) const {
    const std::int64_t whole_rows = rows / 8 * 8, whole_columns = columns / 8 * 8;
    for (std::int64_t c = 0; c < whole_columns; c += 8)
      for (std::int64_t r = 0; r < whole_rows; r += 8) transpose_8x8(codes + c * p_.rows + r, p_.rows, kept + r * tile + c, tile);
    for (std::int64_t c = 0; c < columns; ++c)
      for (std::int64_t r = c < whole_columns ? whole_rows : 0; r < rows; ++r) codes[c * p_.rows + r] = kept[r * tile + c];
  }

  const Fp8Quantize& p_;
  const T* x_;
  std::int64_t down_, across_;  ///< tiles
};

}  // namespace

void fp8_quantize(const Context&, const Fp8Quantize& p) {
  with_float_type(p.dtype, "fp8_quantize", [&](auto type) {
    with_float8_type(p.type, "fp8_quantize", [&](auto code) { Quantizer<decltype(type), decltype(code)>(p).run(); });
  });
}

}  // namespace tessera::kernels::host
