// Bound by memory: each row is read and written once. Threads share the columns, since a row takes the place of an earlier one.
#include "kernels/counted_rows/counted_rows.hpp"

#include <cstring>

#include "base/check.hpp"
#include "kernels/parallel.hpp"

namespace tessera::kernels::host {
namespace {

constexpr std::int64_t column_bytes_at_once = 512;

/// Calls f(the columns' bytes of row 0, bytes of a row, bytes of the columns).
template <class F>
void for_columns(const MoveRows& p, F f) {
  TESSERA_REQUIRE(p.n >= 0 && p.n <= p.M, "{} of {} rows", p.n, p.M);
  const std::int64_t row_bytes = p.N * static_cast<std::int64_t>(size_of(p.dtype));
  parallel_ranges(row_bytes, column_bytes_at_once, [&](std::int64_t begin, std::int64_t end) {
    f(static_cast<std::byte*>(p.x) + begin, row_bytes, static_cast<std::size_t>(end - begin));
  });
}

}  // namespace

void count_rows(const CountRows& p) {
  std::int64_t n = 0;
  for (std::int64_t row = 0; row < p.M; ++row) {
    if (p.weights[row] == 0) continue;
    p.rows[n] = static_cast<std::int32_t>(row);
    p.counted_targets[n] = p.targets[row], p.counted_weights[n] = p.weights[row];
    ++n;
  }
  *p.count = static_cast<std::int32_t>(n);
  for (std::int64_t k = n; k < p.M; ++k) p.counted_targets[k] = 0, p.counted_weights[k] = 0;
}

void gather_counted_rows(const MoveRows& p) {
  for_columns(p, [&](std::byte* x, std::int64_t row_bytes, std::size_t bytes) {
    for (std::int64_t k = 0; k < p.n; ++k)
      if (p.rows[k] != k) std::memcpy(x + k * row_bytes, x + p.rows[k] * row_bytes, bytes);
    for (std::int64_t k = p.n; k < p.M; ++k) std::memset(x + k * row_bytes, 0, bytes);
  });
}

void spread_counted_rows(const MoveRows& p) {
  // From the end: row k lies at or before its place, so no row is overwritten before it has moved.
  for_columns(p, [&](std::byte* x, std::int64_t row_bytes, std::size_t bytes) {
    std::int64_t k = p.n - 1;
    for (std::int64_t row = p.M - 1; row >= 0; --row) {
      if (k < 0 || p.rows[k] != row) {
        std::memset(x + row * row_bytes, 0, bytes);
        continue;
      }
      if (k != row) std::memcpy(x + row * row_bytes, x + k * row_bytes, bytes);
      --k;
    }
  });
}

}  // namespace tessera::kernels::host
