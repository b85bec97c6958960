// The vectors of a matrix as one flat range: rows are cut into whole vectors (the last of a row may be short), and a launch has a thread
// for each.
#pragma once
#include "kernels/cuda/vector.hpp"

namespace tessera::cuda {

struct RowVectors {
  std::int64_t rows = 0;
  unsigned in_row = 0;  ///< vectors in a row

  RowVectors(std::int64_t rows, std::int64_t columns, int elements)
      : rows(rows), in_row(static_cast<unsigned>(ceil_div(columns, elements))) {
    TESSERA_CUDA_REQUIRE(ceil_div(columns, elements) < std::int64_t{1} << 31);
  }
  unsigned blocks() const { return Tile<1, 1>::blocks(rows * in_row); }

  struct Place {
    std::int64_t row;
    unsigned vector;  ///< in the row
  };
  /// This thread's vector; row == rows (or more) where there is none. One division of 64 bits a block, one of 32 bits a thread.
  __device__ Place place() const {
    const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * blockDim.x, row = first / in_row;
    const unsigned vector = static_cast<unsigned>(first - row * in_row) + threadIdx.x;
    return {row + vector / in_row, vector % in_row};
  }
};

}  // namespace tessera::cuda
