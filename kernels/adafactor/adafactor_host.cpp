// Each call is one pass over gradients (and weights) by runs of a row; what is kept of columns stays in the caches.
#include "kernels/adafactor/adafactor.hpp"

#include <bit>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels/update/update_host.hpp"

namespace tessera::kernels::host {
namespace {

using update_detail::ahead, update_detail::ComputeCopy, update_detail::ExactSquares, update_detail::load_grad, update_detail::split_product;

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

/// Squares of gradients on their way to the sums of a box's lines.
template <class Grad>
class LineSquares {
 public:
  explicit LineSquares(const Update& p)
      : lines_(p.lines),
        grad_(static_cast<const Grad*>(p.grad)),
        grad_scale_(p.scalars->grad_scale),
        square_scale_(static_cast<double>(p.scalars->square_scale)),
        stride_(round_up(lines_.width, lanes) + lanes),  // a vector that begins at any column ends inside
        columns_(static_cast<std::size_t>(2 * stride_ / lanes)) {}

  /// Columns [column, column + n) of `rows` rows, the first of which is `row` and begins at the update's element i.
  template <int rows>
  void add_rows(std::int64_t row, std::int64_t column, std::int64_t i, std::int64_t n) {
    if (added_ + rows > exact_adds) flush();
    added_ += rows;
    double *high = columns_.data()->sum + (column - lines_.column), *low = high + stride_;
    for (std::int64_t first = 0; first < n; first += exact_adds) {
      f64x8 row_high[rows] = {}, row_low[rows] = {};
      for_vectors(
          first, std::min(n, first + exact_adds), [&](std::int64_t j, auto count) __attribute__((always_inline)) {
            float x[rows][lanes];
            unrolled<rows>([&](auto r) __attribute__((always_inline)) {
              prefetch(grad_ + i + r * lines_.width + j + ahead);
              if constexpr (!is_whole<decltype(count)>) store(x[r], f32x16{});
              store(x[r], load_grad(grad_ + i + r * lines_.width + j, count) * grad_scale_, count);
            });
            for (int half = 0; half < lanes; half += 8) {
              f64x8 column_high{}, column_low{};
              unrolled<rows>([&](auto r) __attribute__((always_inline)) {
                const f64x8 v = to_f64(x[r] + half);
                const SplitSquare<f64x8> square = split_product(v, v * square_scale_);
                row_high[r] += square.high, row_low[r] += square.low;
                column_high += square.high, column_low += square.low;
              });
              add(high + j + half, column_high), add(low + j + half, column_low);
            }
          });
      for (int r = 0; r < rows; ++r)
        add_words(lines_.sums + words_of_line * (row + r), horizontal_sum(row_high[r]), horizontal_sum(row_low[r]));
    }
  }
  void flush() {
    double *high = columns_.data()->sum, *low = high + stride_;
    for (std::int64_t c = 0; c < lines_.width; ++c)
      add_words(lines_.sums + words_of_line * (lines_.rows + lines_.column + c), high[c], low[c]);
    std::ranges::fill(columns_, Line{});
    added_ = 0;
  }

 private:
  struct alignas(64) Line {
    double sum[lanes] = {};
  };
  const Lines& lines_;
  const Grad* grad_;
  float grad_scale_;
  double square_scale_;
  std::int64_t stride_, added_ = 0;  ///< of rows
  std::vector<Line> columns_;        ///< of each column of the box high parts, then low ones
};

template <class Grad>
void add_squares(const Update& p) {
  over_rows(p, [&](std::int64_t begin, std::int64_t end) {
    LineSquares<Grad> squares(p);
    // Sums of columns are read and written once for so many rows.
    constexpr int at_once = 4;
    const std::int64_t width = p.lines.width;
    std::int64_t done = begin;
    for_rows(p.lines, begin, end, [&](std::int64_t row, std::int64_t column, std::int64_t i, std::int64_t n) {
      if (i < done) return;
      const bool together = n == width && end - i >= at_once * width;
      together ? squares.template add_rows<at_once>(row, column, i, n) : squares.template add_rows<1>(row, column, i, n);
      done = i + (together ? at_once * width : n);
    });
    squares.flush();
  });
}

/// f(element, its direction, count) by vectors of a row.
template <class Grad, class F>
void for_directions(const Update& p, std::int64_t begin, std::int64_t end, F&& f) {
  const Lines& lines = p.lines;
  // Of the box's columns, once for all rows.
  const auto roots = std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(lines.width));
  for_vectors(0, lines.width, [&](std::int64_t c, auto n) { store(&roots[c], sqrt(load(lines.of_columns + lines.column + c, n)), n); });
  const Grad* grad = static_cast<const Grad*>(p.grad);
  const double mean = std::bit_cast<double>(lines.sums[words_of_line * (lines.rows + lines.columns)]);
  const f32x16 grad_scale = splat(p.scalars->grad_scale);
  for_rows(lines, begin, end, [&](std::int64_t row, std::int64_t column, std::int64_t i, std::int64_t n) {
    const f32x16 of_row = splat(static_cast<float>(1 / std::sqrt(static_cast<double>(lines.of_rows[row]) / mean)));
    const float* of_columns = &roots[column - lines.column];
    for_vectors(0, n, [&](std::int64_t j, auto count) {
      prefetch(grad + i + j + 4 * ahead);
      f(i + j, load_grad(grad + i + j, count) * grad_scale * of_row / load(of_columns + j, count), count);
    });
  });
}

template <class Grad>
void add_directions(const Update& p) {
  over_rows(p, [&](std::int64_t begin, std::int64_t end) {
    ExactSquares::Room room;
    ExactSquares squares(room);
    for_directions<Grad>(
        p, begin, end, [&](std::int64_t, const f32x16& u, auto count) __attribute__((always_inline)) { squares.add(u, count); });
    squares.add_to(p.sums[0]);
  });
}

template <class Grad>
void apply(const Update& p) {
  const adafactor_detail::Factors factors(*p.scalars, p);
  const f32x16 keep = splat(factors.keep), step = splat(factors.step);
  float* master = p.master;
  // Runs begin on whole lines where rows do.
  const std::int64_t row_bytes = p.lines.first % 32 == 0 ? p.lines.width * std::int64_t{2} : 1;
  const ComputeCopy copy(p, p.param && worth_streaming(p.param, p.n * 4, row_bytes));
  over_rows(p, [&](std::int64_t begin, std::int64_t end) {
    for_directions<Grad>(
        p, begin, end, [=](std::int64_t i, const f32x16& u, auto count) __attribute__((always_inline)) {
          prefetch(master + i + ahead);
          const f32x16 w = fma(load(master + i, count), keep, -(u * step));
          store(master + i, w, count);
          copy.store_weights(i, w, count);
        });
    copy.end();
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
  with_sum_type(p.grad_dtype, "adafactor", [&](auto grad) { apply<decltype(grad)>(p); });
}

void adafactor_vector_direction(const Context&, const Update& p) {
  update_elements<AdafactorVectorDirectionRule>("adafactor_vector_direction", p);
}
void adafactor_vector(const Context&, const Update& p) { update_elements<AdafactorVectorRule>("adafactor_vector", p); }

}  // namespace tessera::kernels::host
