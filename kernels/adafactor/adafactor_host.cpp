// Each call is one pass over gradients (and weights) by runs of a row; what is kept of columns stays in the caches.
#include "kernels/adafactor/adafactor.hpp"

#include <bit>
#include <cstring>
#include <vector>

#include "kernels/update/update_host.hpp"

namespace tessera::kernels::host {
namespace {

using namespace update_detail;

/// Elements whose low parts a double adds exactly.
constexpr std::int64_t exact_adds = 1 << 14;

void add_words(std::int64_t* words, double high, double low) {
  const std::int64_t values[] = {static_cast<std::int64_t>(high * 0x1p40), static_cast<std::int64_t>(low * 0x1p80)};
  for (int i = 0; i < 2; ++i)
    if (values[i] != 0) std::atomic_ref<std::int64_t>(words[i]).fetch_add(values[i], std::memory_order_relaxed);
}

/// f(row of the matrix, its column at which the run begins, the run's first of the update's elements, elements)
template <class F>
void for_rows(const Lines& lines, std::int64_t begin, std::int64_t end, F&& f) {
  for (std::int64_t i = begin; i < end;) {
    const std::int64_t at = lines.first + i, inside = at % lines.width, n = std::min(lines.width - inside, end - i);
    f(lines.row + at / lines.width, lines.column + inside, i, n);
    i += n;
  }
}

/// A part of the update's elements a thread, of whole rows where there are many.
template <class F>
void over_rows(const Update& p, F&& f) {
  const std::int64_t grain = round_up(std::max<std::int64_t>(4096, p.lines.width), p.lines.width);
  parallel_ranges((p.n + grain - 1) / grain, 1,
                  [&](std::int64_t begin, std::int64_t end) { f(begin * grain, std::min(end * grain, p.n)); });
}

TESSERA_INLINE void add(double* to, const f64x8& x) {
  f64x8 sum;
  std::memcpy(&sum, to, sizeof sum);
  sum += x;
  std::memcpy(to, &sum, sizeof sum);
}

template <class Grad>
void add_squares(const Update& p) {
  const Lines& lines = p.lines;
  const Grad* grad = static_cast<const Grad*>(p.grad);
  const float grad_scale = p.scalars->grad_scale;
  const double square_scale = static_cast<double>(p.scalars->square_scale);
  over_rows(p, [&](std::int64_t begin, std::int64_t end) {
    // Of each column of the box high and low parts, and room for the rest of a vector.
    std::vector<double> columns(2 * static_cast<std::size_t>(lines.width + lanes));
    double *high = columns.data(), *low = high + lines.width + lanes;
    std::int64_t rows = 0;
    const auto flush = [&] {
      for (std::int64_t c = 0; c < lines.width; ++c)
        add_words(lines.sums + words_of_line * (lines.rows + lines.column + c), high[c], low[c]);
      std::fill(columns.begin(), columns.end(), 0.0);
      rows = 0;
    };
    for_rows(lines, begin, end, [&](std::int64_t row, std::int64_t column, std::int64_t i, std::int64_t n) {
      const std::int64_t c = column - lines.column;
      for (std::int64_t first = 0; first < n; first += exact_adds) {
        f64x8 row_high{}, row_low{};
        for_vectors(first, std::min(n, first + exact_adds), [&](std::int64_t j, auto count) {
          float x[lanes] = {};
          store(x, load_grad(grad + i + j, count) * grad_scale, count);
          for (int half = 0; half < lanes; half += 8) {
            const f64x8 v = to_f64(x + half);
            const SplitSquare<f64x8> square = split_square(v * v * square_scale);
            row_high += square.high, row_low += square.low;
            add(high + c + j + half, square.high), add(low + c + j + half, square.low);
          }
        });
        add_words(lines.sums + words_of_line * row, horizontal_sum(row_high), horizontal_sum(row_low));
      }
      if (++rows == exact_adds) flush();
    });
    flush();
  });
}

/// Sixteen elements of an update's direction.
struct Direction {
  float of_row, grad_scale;
  template <class Count>
  TESSERA_INLINE f32x16 operator()(const f32x16& g, const float* columns, Count n) const {
    return g * grad_scale * of_row / sqrt(load(columns, n));
  }
};

/// f(element, its column's number, its direction, count) by vectors of a row.
template <class Grad, class F>
void for_directions(const Update& p, std::int64_t begin, std::int64_t end, F&& f) {
  const Lines& lines = p.lines;
  const Grad* grad = static_cast<const Grad*>(p.grad);
  const double mean = std::bit_cast<double>(lines.sums[words_of_line * (lines.rows + lines.columns)]);
  for_rows(lines, begin, end, [&](std::int64_t row, std::int64_t column, std::int64_t i, std::int64_t n) {
    const Direction direction{static_cast<float>(1 / std::sqrt(static_cast<double>(lines.of_rows[row]) / mean)), p.scalars->grad_scale};
    for_vectors(0, n, [&](std::int64_t j, auto count) {
      prefetch(grad + i + j + ahead);
      f(i + j, direction(load_grad(grad + i + j, count), lines.of_columns + column + j, count), count);
    });
  });
}

template <class Grad>
void add_directions(const Update& p) {
  over_rows(p, [&](std::int64_t begin, std::int64_t end) {
    ExactSquares squares;
    for_directions<Grad>(p, begin, end, [&](std::int64_t, const f32x16& u, auto count) { squares.add(u, count); });
    squares.add_to(p.sums[0]);
  });
}

template <class Grad, class Param>
void apply(const Update& p) {
  const adafactor_detail::Factors factors(*p.scalars, p);
  Param* param = static_cast<Param*>(p.param);
  over_rows(p, [&](std::int64_t begin, std::int64_t end) {
    for_directions<Grad>(p, begin, end, [&](std::int64_t i, const f32x16& u, auto count) {
      prefetch(p.master + i + ahead);
      const f32x16 w = fma(load(p.master + i, count), f32x16(factors.keep), -(u * factors.step));
      store(p.master + i, w, count);
      if (param) store(param + i, w, count);
    });
  });
}

}  // namespace

void adafactor_squares(const Context&, const Update& p) {
  if (p.n == 0 || p.scalars->skip) return;
  with_sum_type(p.grad_dtype, "adafactor_squares", [&](auto type) { add_squares<decltype(type)>(p); });
}

void adafactor_lines(const Context&, const Update& p) {
  if (p.scalars->skip) return;
  const Lines& lines = p.lines;
  const float beta2 = p.scalars->beta2;
  const auto square_scale = static_cast<double>(p.scalars->square_scale);
  double chains[adafactor_detail::chains] = {};
  for (std::int64_t r = 0; r < lines.rows; ++r) {
    const double mean = adafactor_detail::mean_square(lines.sums + words_of_line * r, square_scale, lines.columns);
    chains[r % adafactor_detail::chains] += static_cast<double>(lines.of_rows[r] = adafactor_detail::moved(lines.of_rows[r], beta2, mean));
  }
  std::int64_t* columns = lines.sums + words_of_line * lines.rows;
  for (std::int64_t c = 0; c < lines.columns; ++c) {
    const double mean = adafactor_detail::mean_square(columns + words_of_line * c, square_scale, lines.rows);
    lines.of_columns[c] = adafactor_detail::moved(lines.of_columns[c], beta2, mean);
  }
  for (int half = adafactor_detail::chains / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) chains[i] += chains[i + half];
  columns[words_of_line * lines.columns] = std::bit_cast<std::int64_t>(chains[0] / static_cast<double>(lines.rows));
}

void adafactor_direction(const Context&, const Update& p) {
  if (p.n == 0 || p.scalars->skip) return;
  with_sum_type(p.grad_dtype, "adafactor_direction", [&](auto type) { add_directions<decltype(type)>(p); });
}

void adafactor(const Context&, const Update& p) {
  if (p.n == 0) return;
  if (p.scalars->skip) return p.param ? host::cast({}, p.param, p.param_dtype, p.master, DType::f32, p.n) : void();
  with_sum_type(p.grad_dtype, "adafactor", [&](auto grad) {
    with_half_type(p.param_dtype, "the copy of an update", [&](auto param) { apply<decltype(grad), decltype(param)>(p); });
  });
}

void adafactor_vector_direction(const Context&, const Update& p) {
  update_elements<AdafactorVectorDirectionRule>("adafactor_vector_direction", p);
}
void adafactor_vector(const Context&, const Update& p) { update_elements<AdafactorVectorRule>("adafactor_vector", p); }

}  // namespace tessera::kernels::host
