// Bound by memory. A block has 256 columns of 32 rows: a thread goes down a column, so neighbours read neighbours, and what is kept of a
// column is read once. Sums of lines are integers, added by atomics in any order.
#include "kernels/adafactor/adafactor.hpp"

#include <bit>

#include "kernels/update/update_cuda.hpp"

namespace tessera::kernels::cuda {
namespace {

using namespace tessera::cuda;
using namespace update_detail;

constexpr int tile_rows = 32, rows_at_once = 8;

/// What a block has of an update's elements: rows of the box from `row` on, one column a thread.
struct ColumnTile {
  std::int64_t row, column, first;  // of the box; the update's first element of the tile's row

  __device__ explicit ColumnTile(const Lines& lines)
      : row(lines.first / lines.width + static_cast<std::int64_t>(blockIdx.y) * tile_rows),
        column(static_cast<std::int64_t>(blockIdx.x) * block_threads + threadIdx.x),
        first(row * lines.width + column - lines.first) {}
  /// The element k rows down, or -1 where it is none of the update's.
  __device__ std::int64_t at(const Update& p, int k) const {
    const std::int64_t i = first + k * p.lines.width;
    return column < p.lines.width && i >= 0 && i < p.n ? i : -1;
  }
};
dim3 tiles_of(const Update& p) {
  const std::int64_t rows = (p.lines.first + p.n - 1) / p.lines.width - p.lines.first / p.lines.width + 1;
  return {static_cast<unsigned>(ceil_div(p.lines.width, std::int64_t{block_threads})),
          static_cast<unsigned>(ceil_div(rows, std::int64_t{tile_rows}))};
}

__device__ void add_word(std::int64_t* word, double value, double unit) {
  static_assert(sizeof(unsigned long long) == sizeof(std::int64_t));
  const auto units = static_cast<std::int64_t>(value * unit);
  if (units != 0) atomicAdd(reinterpret_cast<unsigned long long*>(word), static_cast<unsigned long long>(units));
}
__device__ void add_words(std::int64_t* words, double high, double low) {
  add_word(words, high, 0x1p40);
  add_word(words + 1, low, 0x1p80);
}

template <class Grad>
__global__ void __launch_bounds__(block_threads) squares_kernel(Update p) {
  if (p.scalars->skip) return;
  const ColumnTile tile(p.lines);
  const float grad_scale = p.scalars->grad_scale;
  const double square_scale = static_cast<double>(p.scalars->square_scale);
  double high = 0, low = 0;
  for (int k = 0; k < tile_rows; ++k) {
    const std::int64_t i = tile.at(p, k);
    const double x = i < 0 ? 0.0 : static_cast<double>(gradient_of(static_cast<const Grad*>(p.grad)[i]) * grad_scale);
    const SplitSquare<double> square = split_square(x * x * square_scale);
    high += square.high, low += square.low;
    const double row_high = warp_sum(square.high), row_low = warp_sum(square.low);
    if (threadIdx.x % warp_lanes == 0) add_words(p.lines.sums + words_of_line * (p.lines.row + tile.row + k), row_high, row_low);
  }
  if (tile.column < p.lines.width) add_words(p.lines.sums + words_of_line * (p.lines.rows + p.lines.column + tile.column), high, low);
}

/// One block, a thread a chain of the mean.
__global__ void __launch_bounds__(block_threads) lines_kernel(Update p) {
  if (p.scalars->skip) return;
  const Lines& lines = p.lines;
  const float beta2 = p.scalars->beta2;
  const double square_scale = static_cast<double>(p.scalars->square_scale);
  std::int64_t* columns = lines.sums + words_of_line * lines.rows;
  static_assert(adafactor_detail::chains == block_threads);
  __shared__ double chains[block_threads];
  double chain = 0;
  for (std::int64_t r = threadIdx.x; r < lines.rows; r += block_threads) {
    const double mean = adafactor_detail::mean_square(lines.sums + words_of_line * r, square_scale, lines.columns);
    chain += static_cast<double>(lines.of_rows[r] = adafactor_detail::moved(lines.of_rows[r], beta2, mean));
  }
  chains[threadIdx.x] = chain;
  for (std::int64_t c = threadIdx.x; c < lines.columns; c += block_threads) {
    const double mean = adafactor_detail::mean_square(columns + words_of_line * c, square_scale, lines.rows);
    lines.of_columns[c] = adafactor_detail::moved(lines.of_columns[c], beta2, mean);
  }
  for (unsigned half = block_threads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) chains[threadIdx.x] += chains[threadIdx.x + half];
  }
  if (threadIdx.x == 0) columns[words_of_line * lines.columns] = std::bit_cast<std::int64_t>(chains[0] / static_cast<double>(lines.rows));
}

template <class Grad>
struct Directions {
  const Update& p;
  const ColumnTile& tile;
  double mean;
  float grad_scale, of_column;

  __device__ Directions(const Update& update, const ColumnTile& of)
      : p(update),
        tile(of),
        mean(std::bit_cast<double>(p.lines.sums[words_of_line * (p.lines.rows + p.lines.columns)])),
        grad_scale(p.scalars->grad_scale),
        of_column(tile.column < p.lines.width ? sqrtf(p.lines.of_columns[p.lines.column + tile.column]) : 1) {}
  /// Of element i, which is k rows down.
  __device__ float operator()(std::int64_t i, int k) const {
    const float of_row = static_cast<float>(1 / sqrt(static_cast<double>(p.lines.of_rows[p.lines.row + tile.row + k]) / mean));
    return gradient_of(static_cast<const Grad*>(p.grad)[i]) * grad_scale * of_row / of_column;
  }
};

template <class Grad>
__global__ void __launch_bounds__(block_threads) direction_kernel(Update p) {
  if (p.scalars->skip) return;
  __shared__ std::int64_t some[block_threads / warp_lanes][4];
  const ColumnTile tile(p.lines);
  const Directions<Grad> direction(p, tile);
  for (int from = 0; from < tile_rows; from += rows_at_once) {
    float u[rows_at_once];
#pragma unroll
    for (int k = 0; k < rows_at_once; ++k) {
      const std::int64_t i = tile.at(p, from + k);
      u[k] = i < 0 ? 0 : direction(i, from + k);
    }
    update_detail::add_squares(p.sums[0], u, some);
  }
}

template <class Grad, class Param>
__global__ void __launch_bounds__(block_threads) apply_kernel(Update p) {
  const ColumnTile tile(p.lines);
  const bool skip = p.scalars->skip;
  if (skip && !p.param) return;
  __shared__ float factors[2];
  if (threadIdx.x == 0 && !skip) {
    const adafactor_detail::Factors made(*p.scalars, p);
    factors[0] = made.step, factors[1] = made.keep;
  }
  __syncthreads();
  const Directions<Grad> direction(p, tile);
  for (int k = 0; k < tile_rows; ++k) {
    const std::int64_t i = tile.at(p, k);
    if (i < 0) continue;
    float w = p.master[i];
    if (!skip) p.master[i] = w = fmaf(w, factors[1], -(direction(i, k) * factors[0]));
    const float one[] = {w};
    if (p.param) store<std::false_type>(static_cast<Param*>(p.param), i, p.n, one);
  }
}

}  // namespace

void adafactor_squares(const Context& context, const Update& p) {
  if (p.n == 0) return;
  tessera::cuda::with_sum_type(
      p.grad_dtype, [&](auto grad) { launch(stream_of(context), tiles_of(p), block_threads, 0, squares_kernel<decltype(grad)>, p); });
}

void adafactor_lines(const Context& context, const Update& p) { launch(stream_of(context), 1, block_threads, 0, lines_kernel, p); }

void adafactor_direction(const Context& context, const Update& p) {
  if (p.n == 0) return;
  tessera::cuda::with_sum_type(
      p.grad_dtype, [&](auto grad) { launch(stream_of(context), tiles_of(p), block_threads, 0, direction_kernel<decltype(grad)>, p); });
}

void adafactor(const Context& context, const Update& p) {
  if (p.n == 0) return;
  tessera::cuda::with_sum_type(p.grad_dtype, [&](auto grad) {
    with_half_type(p.param_dtype, [&](auto param) {
      launch(stream_of(context), tiles_of(p), block_threads, 0, apply_kernel<decltype(grad), decltype(param)>, p);
    });
  });
}

void adafactor_vector_direction(const Context& context, const Update& p) { update_elements<AdafactorVectorDirectionRule>(context, p); }
void adafactor_vector(const Context& context, const Update& p) { update_elements<AdafactorVectorRule>(context, p); }

}  // namespace tessera::kernels::cuda
