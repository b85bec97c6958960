// A 64 x 64 tile of a product, which a block holds in registers: bf16 and fp16 on the tensor cores, fp32 on the others. Sums run over the
// depth in one order, so a row's bits do not depend on the rows beside it.
#pragma once
#include "kernels/attention/tensor_core_tiles.hpp"
#include "kernels/cuda/vector.hpp"

namespace tessera::kernels::cuda::tile_product {

using namespace tessera::cuda;

inline constexpr int tile = 64;

/// 64 rows of an operand, of which `valid` are there. Element k of row i is from[i stride + k]; of an operand that is stored `down`, with
/// rows as columns, from[k stride + i].
template <class T>
struct Operand {
  const T* from;
  std::int64_t stride;
  int valid;
  template <bool down>
  __device__ Operand at(std::int64_t k) const {
    return {from + (down ? k * stride : k), stride, valid};
  }
};

/// `wide`: both operands begin on 16 bytes, and so do their rows.
template <class T, bool a_down, bool b_down, bool wide>
class TileProduct {
 public:
  static constexpr int threads = tensor_core_tiles::threads;
  /// Over the whole depth, 64 at a time: while one piece is multiplied the next is on its way.
  __device__ void run(const Operand<T>& a, const Operand<T>& b, std::int64_t depth) {
    alignas(16) __shared__ T pieces[2][2][tile * tile];
    tensor_core_tiles::set_zero(sums_);
    const auto begin = [&](std::int64_t k, int stage) {
      const int there = static_cast<int>(depth - k < tile ? depth - k : tile);
      load<a_down>(pieces[stage][0], a.template at<a_down>(k), there);
      load<b_down>(pieces[stage][1], b.template at<b_down>(k), there);
      copy_async_commit();
    };
    begin(0, 0);
    int stage = 0;
    for (std::int64_t k = 0; k < depth; k += tile, stage ^= 1) {
      if (k + tile < depth)
        begin(k + tile, stage ^ 1);
      else
        copy_async_commit();
      copy_async_wait<1>();
      __syncthreads();
      multiply(pieces[stage][0], pieces[stage][1]);
      __syncthreads();  // before the next copies
    }
  }
  /// put(row, column, sum) for what this thread holds.
  template <class Put>
  __device__ void each(Put&& put) const {
    const int lane = tensor_core_tiles::lane_index(), g = lane / 4, t = lane % 4;
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int n = 0; n < 4; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) put(first_row() + 16 * m + g + i / 2 * 8, first_column() + 8 * n + 2 * t + i % 2, sums_[m][n][i]);
  }

 private:
  /// Four warps have a quarter each, 32 x 32.
  __device__ static int first_row() { return tensor_core_tiles::warp_index() / 2 * 32; }
  __device__ static int first_column() { return tensor_core_tiles::warp_index() % 2 * 32; }

  /// A piece as it is stored: rows of 64 elements along the depth, or down it.
  template <bool down>
  __device__ static void load(T* piece, const Operand<T>& from, int there) {
    const int rows = down ? there : from.valid, columns = down ? from.valid : there;
    if constexpr (wide) {
      tensor_core_tiles::load_rows<tile, tile, true>(piece, from.from, from.stride, rows, columns);
    } else {
      for (int i = static_cast<int>(threadIdx.x); i < tile * tile; i += threads) {
        const int row = i / tile, column = i % tile;
        T x;
        if (row < rows && column < columns) x = from.from[row * from.stride + column];
        piece[tensor_core_tiles::chunk_at<tile>(row, column / 8) + column % 8] = x;
      }
    }
  }

  __device__ void multiply(const T* a, const T* b) {
    using tensor_core_tiles::chunk_at;
    const int lane = tensor_core_tiles::lane_index();
#pragma unroll
    for (int k = 0; k < tile / 16; ++k) {
      std::uint32_t left[2][4];
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        const int row = first_row() + 16 * m;
        if constexpr (a_down)
          load_matrices_transposed(left[m], a + chunk_at<tile>(16 * k + lane % 8 + lane / 16 * 8, row / 8 + lane / 8 % 2));
        else
          load_matrices(left[m], a + chunk_at<tile>(row + lane % 16, 2 * k + lane / 16));
      }
#pragma unroll
      for (int n = 0; n < 4; n += 2) {
        const int column = first_column() + 8 * n;
        std::uint32_t right[4];
        if constexpr (b_down)
          load_matrices_transposed(right, b + chunk_at<tile>(16 * k + lane % 16, column / 8 + lane / 16));
        else
          load_matrices(right, b + chunk_at<tile>(column + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          multiply_add<T>(sums_[m][n], left[m], right[0], right[1]);
          multiply_add<T>(sums_[m][n + 1], left[m], right[2], right[3]);
        }
      }
    }
  }

  float sums_[2][4][4];
};

template <bool a_down, bool b_down, bool wide>
class TileProduct<float, a_down, b_down, wide> {
 public:
  static constexpr int threads = 256;
  __device__ void run(const Operand<float>& a, const Operand<float>& b, std::int64_t depth) {
    __shared__ float pieces[2][step][tile + 4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) sums_[i][j] = 0;
    for (std::int64_t k = 0; k < depth; k += step) {
      const int there = static_cast<int>(depth - k < step ? depth - k : step);
      load<a_down>(pieces[0], a.template at<a_down>(k), there);
      load<b_down>(pieces[1], b.template at<b_down>(k), there);
      __syncthreads();
#pragma unroll
      for (int d = 0; d < step; ++d)
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
          for (int j = 0; j < 4; ++j) sums_[i][j] = fmaf(pieces[0][d][first_row() + i], pieces[1][d][first_column() + j], sums_[i][j]);
      __syncthreads();
    }
  }
  template <class Put>
  __device__ void each(Put&& put) const {
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) put(first_row() + i, first_column() + j, sums_[i][j]);
  }

 private:
  static constexpr int step = 16;  // of the depth
  __device__ static int first_row() { return static_cast<int>(threadIdx.x) / 16 * 4; }
  __device__ static int first_column() { return static_cast<int>(threadIdx.x) % 16 * 4; }

  /// Neighbouring threads read neighbouring elements.
  template <bool down>
  __device__ static void load(float (*piece)[tile + 4], const Operand<float>& from, int there) {
    for (int n = static_cast<int>(threadIdx.x); n < tile * step; n += threads) {
      const int i = down ? n % tile : n / step, k = down ? n / tile : n % step;
      piece[k][i] = i < from.valid && k < there ? from.from[down ? k * from.stride + i : i * from.stride + k] : 0.0f;
    }
  }

  float sums_[4][4];
};

}  // namespace tessera::kernels::cuda::tile_product
