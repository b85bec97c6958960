// Bound by memory: a block of threads takes a tile of 128 x 128, of which a thread has eight neighbours of every sixteenth row in
// registers. What shares a scale beyond a tile has its largest magnitude found by a pass before, and its scale put in that place by one
// after. Codes that are wanted transposed change places in shared memory. Bits are the host's. Not yet measured.
#include <type_traits>

#include "kernels/cuda/reduce.hpp"
#include "kernels/cuda/vector.hpp"
#include "kernels/fp8/codes.hpp"
#include "kernels/fp8/scale.hpp"

namespace tessera::kernels::cuda {
namespace {

using namespace tessera::cuda;

constexpr int tile = static_cast<int>(fp8_block), in_thread = 8, threads_of_row = tile / in_thread, threads = 256;
constexpr int row_step = threads / threads_of_row, passes = tile / row_step;
constexpr int padded = tile + 8;  // bytes of a row of codes in shared memory, whole words of eight

/// Where a thread's elements of a pass are.
struct Place {
  int row, column;                       ///< in the tile
  std::int64_t first_row, first_column;  ///< of the tile
  __device__ Place()
      : row(static_cast<int>(threadIdx.x) / threads_of_row),
        column(static_cast<int>(threadIdx.x) % threads_of_row * in_thread),
        first_row(static_cast<std::int64_t>(blockIdx.y) * tile),
        first_column(static_cast<std::int64_t>(blockIdx.x) * tile) {}
};

template <class Whole, class T>
__device__ void load_tile(float (&x)[passes][in_thread], const Fp8Quantize& p, const Place& at) {
#pragma unroll
  for (int k = 0; k < passes; ++k) {
    const std::int64_t row = at.first_row + at.row + k * row_step;
    load<Whole, in_thread>(x[k], static_cast<const T*>(p.x) + row * p.columns, at.first_column + at.column, row < p.rows ? p.columns : 0);
  }
}

/// Magnitudes as bits, whose order is that of the values, with NaN above all.
__device__ inline std::uint32_t magnitude(float x) { return __float_as_uint(x) & 0x7fffffffu; }
__device__ inline std::uint32_t larger(std::uint32_t a, std::uint32_t b) { return a < b ? b : a; }

/// Of each of this thread's rows in the tile; all threads of a row get it.
__device__ inline void row_magnitudes(std::uint32_t (&most)[passes], const float (&x)[passes][in_thread]) {
#pragma unroll
  for (int k = 0; k < passes; ++k) {
    most[k] = 0;
#pragma unroll
    for (int j = 0; j < in_thread; ++j) most[k] = larger(most[k], magnitude(x[k][j]));
    most[k] = warp_max(most[k], threads_of_row);
  }
}
/// Of each column of the tile, in shared memory; the whole block calls it.
__device__ inline void column_magnitudes(std::uint32_t* most, const float (&x)[passes][in_thread], const Place& at) {
  for (int j = static_cast<int>(threadIdx.x); j < tile; j += threads) most[j] = 0;
  __syncthreads();
#pragma unroll
  for (int j = 0; j < in_thread; ++j) {
    std::uint32_t mine = 0;
#pragma unroll
    for (int k = 0; k < passes; ++k) mine = larger(mine, magnitude(x[k][j]));
    atomicMax(most + at.column + j, mine);
  }
  __syncthreads();
}
__device__ inline bool is_finite(float x) { return magnitude(x) < 0x7f800000u; }
/// Of the tile's finite elements; the whole block calls it.
__device__ inline std::uint32_t finite_magnitude(const float (&x)[passes][in_thread]) {
  std::uint32_t most = 0;
#pragma unroll
  for (int k = 0; k < passes; ++k) {
#pragma unroll
    for (int j = 0; j < in_thread; ++j)
      if (is_finite(x[k][j])) most = larger(most, magnitude(x[k][j]));
  }
  return block_max(most);
}
__device__ inline std::uint32_t tile_magnitude(const float (&x)[passes][in_thread]) {
  std::uint32_t most[passes], all = 0;
  row_magnitudes(most, x);
#pragma unroll
  for (int k = 0; k < passes; ++k) all = larger(all, most[k]);
  return block_max(all);
}

__global__ void clear_kernel(std::uint32_t* magnitudes, std::int64_t n) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) magnitudes[i] = 0;
}
template <class F>
__global__ void scale_kernel(float* scales, std::int64_t n) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) scales[i] = fp8_scale(scales[i], F::largest(), false).scale;
}

/// Largest magnitudes of the matrix, its rows or its columns join those in the place of scales.
template <class Whole, class T>
__global__ void __launch_bounds__(threads) magnitude_kernel(Fp8Quantize p) {
  __shared__ std::uint32_t most_of_column[tile];
  const Place at;
  float x[passes][in_thread];
  load_tile<Whole, T>(x, p, at);
  auto* found = reinterpret_cast<std::uint32_t*>(p.scales);
  if (p.scaling == Fp8Scaling::tensor) {
    const std::uint32_t most = tile_magnitude(x);
    if (threadIdx.x == 0) atomicMax(found, most);
  } else if (p.transposed) {
    column_magnitudes(most_of_column, x, at);
    for (int j = static_cast<int>(threadIdx.x); j < tile; j += threads)
      if (at.first_column + j < p.columns) atomicMax(found + at.first_column + j, most_of_column[j]);
  } else {
    std::uint32_t most[passes];
    row_magnitudes(most, x);
#pragma unroll
    for (int k = 0; k < passes; ++k) {
      const std::int64_t row = at.first_row + at.row + k * row_step;
      if (at.column == 0 && row < p.rows) atomicMax(found + row, most[k]);
    }
  }
}

static_assert(passes == in_thread);
/// What a thread's elements are multiplied by: one number for each of its rows, or for each of its columns.
struct Multipliers {
  float of[in_thread];
  bool of_columns = false;
  __device__ float at(int pass, int j) const { return of_columns ? of[j] : of[pass]; }
};

/// Scales of blocks are written on the way.
template <class F>
__device__ void find_multipliers(Multipliers& by, const float (&x)[passes][in_thread], std::uint32_t* most_of_column, const Fp8Quantize& p,
                                 const Place& at) {
  const bool blocks = is_blocks(p.scaling);
  const auto scale_of = [&](std::uint32_t bits) { return fp8_scale(__uint_as_float(bits), F::largest(), blocks); };
  const std::int64_t down = gridDim.y, across = gridDim.x;
  if (p.delayed.multiplier) {
    const float multiplier = *p.delayed.multiplier;
    if (p.delayed.largest) {
      const std::uint32_t most = finite_magnitude(x);
      if (threadIdx.x == 0) atomicMax(reinterpret_cast<std::uint32_t*>(p.delayed.largest), most);
    }
    if (threadIdx.x == 0 && blockIdx.x == 0 && blockIdx.y == 0) *p.scales = 1.f / multiplier;
#pragma unroll
    for (int k = 0; k < passes; ++k) by.of[k] = multiplier;
  } else if (p.scaling == Fp8Scaling::tensor || p.scaling == Fp8Scaling::square_blocks) {
    const Fp8Scale scale = scale_of(blocks ? tile_magnitude(x) : __float_as_uint(*p.scales));
    if (blocks && threadIdx.x == 0)
      p.scales[p.transposed ? blockIdx.x * down + blockIdx.y : blockIdx.y * across + blockIdx.x] = scale.scale;
#pragma unroll
    for (int k = 0; k < passes; ++k) by.of[k] = scale.multiplier;
  } else if (p.transposed) {
    by.of_columns = true;
    if (blocks) column_magnitudes(most_of_column, x, at);
#pragma unroll
    for (int j = 0; j < in_thread; ++j) {
      const std::int64_t column = at.first_column + at.column + j;
      const std::uint32_t most = blocks ? most_of_column[at.column + j] : column < p.columns ? __float_as_uint(p.scales[column]) : 0u;
      const Fp8Scale scale = scale_of(most);
      if (blocks && at.row == 0 && column < p.columns) p.scales[column * down + blockIdx.y] = scale.scale;
      by.of[j] = scale.multiplier;
    }
  } else {
    std::uint32_t most[passes];
    if (blocks) row_magnitudes(most, x);
#pragma unroll
    for (int k = 0; k < passes; ++k) {
      const std::int64_t row = at.first_row + at.row + k * row_step;
      const Fp8Scale scale = scale_of(blocks ? most[k] : row < p.rows ? __float_as_uint(p.scales[row]) : 0u);
      if (blocks && at.column == 0 && row < p.rows) p.scales[row * across + blockIdx.x] = scale.scale;
      by.of[k] = scale.multiplier;
    }
  }
}

template <class Whole, class T, class F>
__global__ void __launch_bounds__(threads, Whole::value ? 2 : 1) encode_kernel(Fp8Quantize p) {
  __shared__ __align__(16) std::uint8_t kept[tile * padded];  // transposed
  __shared__ std::uint32_t most_of_column[tile];
  const Place at;
  float x[passes][in_thread];
  Multipliers by;
  load_tile<Whole, T>(x, p, at);
  find_multipliers<F>(by, x, most_of_column, p, at);
#pragma unroll
  for (int k = 0; k < passes; ++k) {
    const int in_tile = at.row + k * row_step;
    const std::int64_t row = at.first_row + in_tile;
    Vector<std::uint8_t, in_thread> codes;
#pragma unroll
    for (int j = 0; j < in_thread; j += 2) {
      const std::uint16_t two = fp8_codes<F>(x[k][j] * by.at(k, j), x[k][j + 1] * by.at(k, j + 1));
      codes.value[j] = is_finite(x[k][j]) ? static_cast<std::uint8_t>(two & 0xff) : F::nan;
      codes.value[j + 1] = is_finite(x[k][j + 1]) ? static_cast<std::uint8_t>(two >> 8) : F::nan;
    }
    if (p.transposed) {
#pragma unroll
      for (int j = 0; j < in_thread; ++j) kept[(at.column + j) * padded + in_tile] = codes.value[j];
    } else {
      store<Whole, in_thread>(p.codes + row * p.columns, at.first_column + at.column, row < p.rows ? p.columns : 0, codes);
    }
  }
  if (!p.transposed) return;
  __syncthreads();
#pragma unroll
  for (int k = 0; k < passes; ++k) {
    const int in_tile = at.row + k * row_step;
    const std::int64_t column = at.first_column + in_tile;
    Vector<std::uint8_t, in_thread> codes;
#pragma unroll
    for (int j = 0; j < in_thread; ++j) codes.value[j] = kept[in_tile * padded + at.column + j];
    store<Whole, in_thread>(p.codes + column * p.rows, at.first_row + at.column, column < p.columns ? p.rows : 0, codes);
  }
}

unsigned blocks_of(std::int64_t n) { return static_cast<unsigned>(ceil_div(n, threads)); }

template <class Whole, class T, class F>
void quantize(const Context& context, const Fp8Quantize& p) {
  const dim3 grid(static_cast<unsigned>(ceil_div(p.columns, tile)), static_cast<unsigned>(ceil_div(p.rows, tile)));
  TESSERA_CUDA_REQUIRE(grid.y < 65536);
  const cudaStream_t stream = stream_of(context);
  const std::int64_t scales = fp8_scales(p.scaling, p.transposed ? p.columns : p.rows, 0);
  const bool searched = !is_blocks(p.scaling) && !p.delayed.multiplier;
  if (searched) {
    launch(stream, blocks_of(scales), threads, 0, clear_kernel, reinterpret_cast<std::uint32_t*>(p.scales), scales);
    launch(stream, grid, threads, 0, magnitude_kernel<Whole, T>, p);
  }
  launch(stream, grid, threads, 0, encode_kernel<Whole, T, F>, p);
  if (searched) launch(stream, blocks_of(scales), threads, 0, scale_kernel<F>, p.scales, scales);
}

}  // namespace

void fp8_quantize(const Context& context, const Fp8Quantize& p) {
  TESSERA_CUDA_REQUIRE(p.type == DType::e4m3 || p.type == DType::e5m2);
  TESSERA_CUDA_REQUIRE(!p.delayed.multiplier || p.scaling == Fp8Scaling::tensor);
  if (p.rows == 0 || p.columns == 0) return;
  with_float_type(p.dtype, [&](auto type) {
    using T = decltype(type);
    with_whole(on_sixteen_bytes(p.x, p.codes) && whole_vectors(in_thread, {p.columns, p.transposed ? p.rows : in_thread}), [&](auto whole) {
      if (p.type == DType::e4m3)
        quantize<decltype(whole), T, e4m3>(context, p);
      else
        quantize<decltype(whole), T, e5m2>(context, p);
    });
  });
}

}  // namespace tessera::kernels::cuda
