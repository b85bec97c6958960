// Rows and columns of a matrix, of which an update may keep or sum a number each.
#pragma once
#include <cstdint>

namespace tessera::kernels {

/// Of what a state, or a sum, has a number.
enum class Extent : std::uint8_t { element, row, column };

/// An update's elements [0, n) are elements [first, first + n) of a box of the matrix, row-major.
struct Lines {
  std::int64_t rows = 0, columns = 0;           ///< of the whole matrix
  std::int64_t row = 0, column = 0, width = 0;  ///< at which the box begins; its columns
  std::int64_t first = 0;
  float* of_rows = nullptr;  ///< what is kept of each row, and of each column
  float* of_columns = nullptr;
  std::int64_t* sums = nullptr;  ///< two words of each row, then of each column, and room for two more
};
inline constexpr std::int64_t words_of_line = 2, words_of_matrix = 2;

}  // namespace tessera::kernels
