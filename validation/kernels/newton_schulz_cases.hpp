// Matrices whose orthogonal factor both backends look for, and the definition in fp64.
#pragma once
#include <array>
#include <map>
#include <ostream>
#include <vector>

#include "kernels/newton_schulz/newton_schulz.hpp"
#include "same_bits.hpp"

namespace tessera::kernels::testing {

struct MatrixCase {
  std::int64_t rows, columns;
};
/// A number, vectors, squares; wide and tall ones, on and off the grain of tiles and of sums of squares.
inline const MatrixCase matrix_cases[] = {{1, 1},   {1, 77},   {130, 1},  {5, 3},    {16, 16},
                                          {33, 33}, {24, 300}, {300, 24}, {40, 257}, {256, 64}};
inline std::ostream& operator<<(std::ostream& out, const MatrixCase& c) { return out << c.rows << " x " << c.columns; }

inline constexpr OrthogonalSteps all_orthogonal_steps[] = {OrthogonalSteps::simple, OrthogonalSteps::quintic,
                                                           OrthogonalSteps::polar_express};

/// A matrix as ranks that have a part each would lay it beside each other.
struct PartedMatrix {
  std::vector<bf16> whole, memory;
  MatrixCase size;
  std::int64_t parts;
  bool columns;
  static constexpr std::int64_t gap = 5;

  PartedMatrix(std::vector<bf16> of, const MatrixCase& c, std::int64_t parts, bool columns)
      : whole(std::move(of)), memory(poisoned<bf16>(std::ssize(whole) + parts * gap)), size(c), parts(parts), columns(columns) {
    for (std::int64_t i = 0; i < std::ssize(whole); ++i) {
      const auto [part, at] = place(i);
      memory[static_cast<std::size_t>(part * step() + at)] = whole[static_cast<std::size_t>(i)];
    }
  }
  std::int64_t step() const { return std::ssize(whole) / parts + gap; }
  NewtonSchulz call() const {
    return {.rows = size.rows, .columns = size.columns, .parts = parts, .parts_of_columns = columns, .part_step = step()};
  }
  /// Parts without gaps as the matrix.
  std::vector<bf16> joined(const std::vector<bf16>& result) const {
    std::vector<bf16> all(result.size());
    for (std::int64_t i = 0; i < std::ssize(all); ++i) {
      const auto [part, at] = place(i);
      all[static_cast<std::size_t>(i)] = result[static_cast<std::size_t>(part * (std::ssize(all) / parts) + at)];
    }
    return all;
  }

 private:
  std::pair<std::int64_t, std::int64_t> place(std::int64_t i) const {
    const std::int64_t row = i / size.columns, column = i % size.columns, width = size.columns / parts, height = size.rows / parts;
    if (columns) return {column / width, row * width + column % width};
    return {row / height, row % height * size.columns + column};
  }
};

/// Row-major, in fp64.
struct Matrix {
  std::int64_t rows, columns;
  std::vector<double> at;
  Matrix(std::int64_t rows, std::int64_t columns) : rows(rows), columns(columns), at(static_cast<std::size_t>(rows * columns)) {}
  double& operator()(std::int64_t i, std::int64_t j) { return at[static_cast<std::size_t>(i * columns + j)]; }
  double operator()(std::int64_t i, std::int64_t j) const { return at[static_cast<std::size_t>(i * columns + j)]; }
  Matrix transposed() const {
    Matrix t(columns, rows);
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < columns; ++j) t(j, i) = (*this)(i, j);
    return t;
  }
  friend Matrix operator*(const Matrix& a, const Matrix& b) {
    Matrix c(a.rows, b.columns);
    for (std::int64_t i = 0; i < a.rows; ++i)
      for (std::int64_t k = 0; k < a.columns; ++k)
        for (std::int64_t j = 0; j < b.columns; ++j) c(i, j) += a(i, k) * b(k, j);
    return c;
  }
};

/// The published loop, with sums in fp64: zeropower_via_newtonschulz5 of Jordan's Muon, and the same with other polynomials. What products
/// write, or the matrix divided by its norm, passes through `round`.
inline Matrix orthogonal_of(
    Matrix x, OrthogonalSteps steps, double (*round)(double) = [](double v) { return v; }) {
  using Polynomials = std::vector<std::array<double, 3>>;
  static const std::map<OrthogonalSteps, Polynomials> published = {{OrthogonalSteps::simple, Polynomials(5, {3.4445, -4.7750, 2.0315})},
                                                                   {OrthogonalSteps::quintic,
                                                                    {{4.0848, -6.8946, 2.9270},
                                                                     {3.9505, -6.3029, 2.6377},
                                                                     {3.7418, -5.5913, 2.3037},
                                                                     {2.8769, -3.1427, 1.2046},
                                                                     {2.8366, -3.0525, 1.2012}}},
                                                                   {OrthogonalSteps::polar_express,
                                                                    {{8.15655, -22.48329, 15.87877},
                                                                     {4.04293, -2.80892, 0.50002},
                                                                     {3.89167, -2.77248, 0.50606},
                                                                     {3.28575, -2.36813, 0.46449},
                                                                     {2.34654, -1.70978, 0.42324}}}};
  const bool polar = steps == OrthogonalSteps::polar_express, tall = x.rows > x.columns;
  if (tall) x = x.transposed();
  double norm = 0;
  for (const double v : x.at) norm += v * v;
  for (double& v : x.at) v = round(v / (std::sqrt(norm) * (polar ? 1.01 : 1) + (polar ? 1e-6 : 1e-7)));
  for (const auto& [a, b, c] : published.at(steps)) {
    Matrix gram = x * x.transposed();
    for (double& v : gram.at) v = round(v);
    Matrix factor = gram * gram;
    for (std::size_t i = 0; i < factor.at.size(); ++i) factor.at[i] = round(b * gram.at[i] + c * factor.at[i]);
    Matrix next = factor * x;
    for (std::size_t i = 0; i < next.at.size(); ++i) next.at[i] = round(next.at[i] + a * x.at[i]);
    x = next;
  }
  return tall ? x.transposed() : x;
}

}  // namespace tessera::kernels::testing
