// What the tests of both backends add, cast, copy and sum by columns.
#pragma once
#include <ostream>

#include "kernels/elementwise/elementwise.hpp"
#include "same_bits.hpp"

namespace tessera::kernels::testing {

/// Less than a vector, whole ones, remainders, several blocks of threads.
inline const std::int64_t elementwise_lengths[] = {1, 7, 8, 15, 16, 77, 1013, 4096, 10001};

/// Random values and, where there is room, a subnormal, infinity, a negative zero and what rounds up to infinity in bf16.
template <class In>
std::vector<In> values_to_cast(std::int64_t n) {
  auto x = random_values<In>(n, 1);
  if (n > 3) x[0] = In(0x1p-130f), x[1] = In(INFINITY), x[2] = In(-0.0f), x[3] = In(0x1.ffffp127f);
  return x;
}

/// Rows of an even number of bytes, some with a gap behind them.
struct CopyRowsCase {
  std::int64_t rows, bytes, from_gap = 20, to_gap = 4;
};
inline const CopyRowsCase copy_rows_cases[] = {{1, 12},        {5, 12},        {0, 12},          {3, 0},        {3, 1 << 20},
                                               {1, 48, 98, 0}, {7, 48, 98, 0}, {300, 10, 22, 0}, {0, 10, 22, 0}};
inline std::ostream& operator<<(std::ostream& out, const CopyRowsCase& c) {
  return out << c.rows << " rows of " << c.bytes << " bytes, gaps of " << c.from_gap << " and " << c.to_gap;
}
/// Source, target before, and target after by definition.
struct CopiedRows {
  std::vector<bf16> from, to, expected;
  explicit CopiedRows(const CopyRowsCase& c)
      : from(random_values<bf16>(c.rows * (c.bytes + c.from_gap) / 2 + 1, 1)),
        to(poisoned<bf16>(c.rows * (c.bytes + c.to_gap) / 2 + 1)),
        expected(to) {
    for (std::int64_t r = 0; r < c.rows; ++r)
      std::copy_n(from.begin() + r * (c.bytes + c.from_gap) / 2, c.bytes / 2, expected.begin() + r * (c.bytes + c.to_gap) / 2);
  }
};
inline CopyRows copy_of(const CopyRowsCase& c, bf16* to, const bf16* from) {
  return {.to = to, .to_stride = c.bytes + c.to_gap, .from = from, .from_stride = c.bytes + c.from_gap, .bytes = c.bytes, .rows = c.rows};
}

struct SumInOrderCase {
  std::int64_t P, n;
  bool accumulate;
};
inline const SumInOrderCase sum_in_order_cases[] = {{1, 16, false}, {2, 1013, false}, {3, 7, true}, {5, 4096, false}, {8, 10008, true}};
inline std::ostream& operator<<(std::ostream& out, const SumInOrderCase& c) {
  return out << c.P << " parts of " << c.n << (c.accumulate ? ", accumulated" : "");
}
/// Parts whose sum has other bits in any other order, what is there before, and the sum by definition.
template <class T>
struct SumInOrderInputs {
  std::vector<T> parts, before, expected;
  explicit SumInOrderInputs(const SumInOrderCase& c) : parts(random_values<T>(c.P * c.n, 5)), before(random_values<T>(c.n, 6)) {
    for (std::size_t i = 0; i < before.size(); ++i) {
      float sum = static_cast<float>(parts[i]);
      for (std::size_t k = 1; k < static_cast<std::size_t>(c.P); ++k) sum += static_cast<float>(parts[k * before.size() + i]);
      expected.push_back(T(c.accumulate ? sum + static_cast<float>(before[i]) : sum));
    }
  }
  SumInOrder arguments(const SumInOrderCase& c, T* out, const T* from) const { return {out, from, c.P, c.n, dtype_of<T>(), c.accumulate}; }
};

struct ColumnSumsCase {
  std::int64_t M, N;
};
inline const ColumnSumsCase column_sums_cases[] = {{1, 1},   {1, 48},   {1, 1013},  {3, 1013},  {77, 1},
                                                   {77, 48}, {77, 128}, {130, 300}, {2100, 77}, {2100, 80}};
inline std::ostream& operator<<(std::ostream& out, const ColumnSumsCase& c) { return out << c.M << " x " << c.N; }

template <class T>
struct ColumnSumsInputs {
  std::vector<T> x;
  std::vector<float> sum;  ///< what is there before
  explicit ColumnSumsInputs(const ColumnSumsCase& c) : x(random_values<T>(c.M * c.N, 3)), sum(random_values<float>(c.N, 4)) {}
};

}  // namespace tessera::kernels::testing
