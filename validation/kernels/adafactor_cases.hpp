// Adafactor's calls as one update of a whole matrix, whose parts may be boxes of it in pieces.
#pragma once
#include "kernels/adafactor/adafactor.hpp"
#include "kernels/step/step_code.hpp"
#include "update_cases.hpp"

namespace tessera::kernels::testing {

/// A matrix and what is kept of it.
struct AdafactorMatrix {
  std::int64_t rows, columns;
  std::vector<float> master, of_rows, of_columns;
  std::vector<bf16> param;

  AdafactorMatrix(std::int64_t r, std::int64_t c)
      : rows(r),
        columns(c),
        master(random_values<float>(r * c, 1)),
        of_rows(positive(r, 2)),
        of_columns(positive(c, 3)),
        param(poisoned<bf16>(r * c)) {}
  static std::vector<float> positive(std::int64_t n, unsigned seed) {
    std::vector<float> x = random_values<float>(n, seed, 1e-3f);
    for (float& v : x) v = std::abs(v) + 1e-6f;
    return x;
  }
  std::int64_t words() const { return words_of_line * (rows + columns) + words_of_matrix; }
  Hash128 hash() const { return digest(master, of_rows, of_columns, param); }
  Lines lines(std::int64_t* sums) {
    return {.rows = rows, .columns = columns, .width = columns, .of_rows = of_rows.data(), .of_columns = of_columns.data(), .sums = sums};
  }
  /// Elements from `first` on, without gradient and values of the step.
  Update call(std::int64_t first, std::int64_t n, std::int64_t* words, FixedSum* sums) {
    Update p{.master = master.data() + first,
             .param = param.data() + first,
             .n = n,
             .weight_decay = 0.1f,
             .sums = sums,
             .tensor_elements = rows * columns,
             .lines = lines(words)};
    p.lines.first = first;
    return p;
  }
};

/// Rows and columns: less than a vector, whole ones, remainders, more than a tile of a block.
inline const std::pair<std::int64_t, std::int64_t> matrices[] = {{1, 1}, {3, 5}, {40, 16}, {33, 77}, {70, 300}, {5, 1013}, {257, 32}};

/// Gradients of unlike sizes, of rows that none has among them.
inline std::vector<float> matrix_gradients(std::int64_t rows, std::int64_t columns, unsigned seed) {
  std::vector<float> g = random_values<float>(rows * columns, seed, 0.1f);
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < columns; ++c)
      g[static_cast<std::size_t>(r * columns + c)] *= rows > 200   ? (r % 25 == 7 ? 1.0f : 0.0f)
                                                      : r % 7 == 3 ? 0.0f
                                                      : r % 7 == 5 ? 1e-5f
                                                                   : 1.0f;
  return g;
}

inline UpdateScalars adafactor_scalars(const std::vector<float>& gradients, int step, float grad_scale) {
  double squares = 0;
  for (const float g : gradients) squares += static_cast<double>(g * grad_scale) * static_cast<double>(g * grad_scale);
  UpdateScalars s = scalars_of_step(step, 3e-3f, grad_scale);
  s.beta2 = static_cast<float>(1 - std::pow(step, -0.8));
  s.square_scale = step::square_scale(std::sqrt(squares));
  return s;
}

}  // namespace tessera::kernels::testing
