// Bound by memory: each row is read once from memory, and again from cache for its variance and when its statistics are known.
#include "kernels/layer_norm/layer_norm.hpp"

#include <algorithm>

#include "kernels/layer_norm/formulas.hpp"
#include "kernels/vector/row_blocks.hpp"

namespace tessera::kernels::host {
namespace {

std::int64_t layer_norm_rows_per_piece(std::int64_t C) { return std::max<std::int64_t>(1, 16384 / C); }

struct RowMoments {
  float mean, rstd;
};
/// Of a row x of C elements. Meanwhile the first half of `next`, a row that is needed later, is asked for.
template <class T>
TESSERA_INLINE RowMoments row_moments(const T* x, const T* next, std::int64_t C, float eps) {
  const float sum = fold<T>(C, [&](std::int64_t i, auto n, f32x16& sum) {
    prefetch(next + i / 2);
    sum += load_any(x + i, n);
  });
  const float mean = sum / static_cast<float>(C);
  const float squares = fold<T>(C, [&](std::int64_t i, auto n, f32x16& sum) {
    f32x16 a = load_any(x + i, n) - splat(mean);
    if constexpr (!is_whole<decltype(n)>) {  // lanes beyond, which are 0, have no part in it
      T ones[lanes];
      std::fill_n(ones, lanes, T(1.0f));
      a = a * load_any(ones, n);
    }
    sum = fma(a, a, sum);
  });
  return {mean, norm::reciprocal_rms(squares, C, eps)};
}

template <class T>
struct LayerForwardRow {
  T* out;
  const T *x, *next;  ///< `next` is the row of x that comes after
  const T *weight, *bias, *residual;
  std::int64_t C;
  RowMoments of;
};

/// The second half of `next` is asked for here, its first half was while this row's mean was computed. out may be the residual: an element
/// is written after it was read.
template <bool Stream, bool Bias, bool Residual, class T>
void layer_forward_row(LayerForwardRow<T> p) {
  for_vectors(0, p.C, [&](std::int64_t i, auto n) {
    prefetch(p.next + (p.C + i) / 2);
    const f32x16 x = load_any(p.x + i, n) - splat(p.of.mean), weight = load_any(p.weight + i, n);
    if constexpr (Bias || Residual) {
      f32x16 onto = load_any((Bias ? p.bias : p.residual) + i, n);
      if constexpr (Bias && Residual) onto += load_any(p.residual + i, n);
      store_any<Stream>(p.out + i, norm::add_scaled(x, weight, p.of.rstd, onto), n);
    } else {
      store_any<Stream>(p.out + i, norm::scaled(x, weight, p.of.rstd), n);
    }
  });
}
template <bool Stream, class T>
auto layer_forward_row_for(const LayerNormForward& p) {
  if (p.bias) return p.residual ? layer_forward_row<Stream, true, true, T> : layer_forward_row<Stream, true, false, T>;
  return p.residual ? layer_forward_row<Stream, false, true, T> : layer_forward_row<Stream, false, false, T>;
}

template <class T>
void layer_forward(const LayerNormForward& p) {
  T* out = static_cast<T*>(p.out);
  const T *x = static_cast<const T*>(p.x), *residual = static_cast<const T*>(p.residual);
  const std::int64_t row_bytes = p.C * static_cast<std::int64_t>(sizeof(T));
  const bool stream = out != residual && worth_streaming(out, p.rows * row_bytes, row_bytes);
  auto run_row = stream ? layer_forward_row_for<true, T>(p) : layer_forward_row_for<false, T>(p);
  parallel_ranges(p.rows, layer_norm_rows_per_piece(p.C), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const T *row = x + r * p.C, *next = x + std::min(r + 1, p.rows - 1) * p.C;
      const RowMoments of = row_moments(row, next, p.C, p.eps);
      if (p.mean) p.mean[r] = of.mean;
      if (p.rstd) p.rstd[r] = of.rstd;
      run_row({.out = out + r * p.C,
               .x = row,
               .next = next,
               .weight = static_cast<const T*>(p.weight),
               .bias = static_cast<const T*>(p.bias),
               .residual = residual ? residual + r * p.C : nullptr,
               .C = p.C,
               .of = of});
    }
    if (stream) stream_fence();
  });
}

template <class T>
struct LayerBackwardRow {
  T* d_x;
  float *d_weight, *d_bias;  ///< whole vectors in the order of T
  const T *d_out, *d_residual, *x, *weight;
  std::int64_t C;
  RowMoments of;
  std::int64_t ahead;  ///< how far the next row lies ahead: it is asked for early
};

/// d_x may be d_out or d_residual: an element is written after the last read of it.
template <bool Stream, bool Bias, bool Residual, class T>
void layer_backward_row(LayerBackwardRow<T> p) {
  const auto centred = [&](std::int64_t i, auto n) { return load_any(p.x + i, n) - splat(p.of.mean); };
  f32x16 levels{};
  const float dot = fold<T>(p.C, [&](std::int64_t i, auto n, f32x16& sum) {
    prefetch(p.d_out + p.ahead + i);
    const f32x16 y = load_any(p.d_out + i, n) * load_any(p.weight + i, n);
    sum = fma(y, centred(i, n), sum), levels += y;
  });
  const float along_x = norm::along_x(dot, p.C, p.of.rstd), level = norm::level(horizontal_sum(in_order<T>(levels)), p.C, p.of.rstd);
  for_vectors(0, p.C, [&](std::int64_t i, auto n) {
    prefetch(p.x + p.ahead + i);
    if constexpr (Residual) prefetch(p.d_residual + p.ahead + i);
    const f32x16 g = load_any(p.d_out + i, n), x = centred(i, n);
    store(p.d_weight + i, norm::add_weight_gradient(g, x, p.of.rstd, load(p.d_weight + i)));
    if constexpr (Bias) store(p.d_bias + i, g + load(p.d_bias + i));
    f32x16 rest = fma(x, splat(along_x), splat(level));
    if constexpr (Residual) rest += load_any(p.d_residual + i, n);
    store_any<Stream>(p.d_x + i, norm::gradient(g, load_any(p.weight + i, n), p.of.rstd, rest), n);
  });
}
template <bool Stream, class T>
auto layer_backward_row_for(const LayerNormBackward& p) {
  if (p.d_bias) return p.d_residual ? layer_backward_row<Stream, true, true, T> : layer_backward_row<Stream, true, false, T>;
  return p.d_residual ? layer_backward_row<Stream, false, true, T> : layer_backward_row<Stream, false, false, T>;
}

template <class T>
void layer_backward(const Context& context, const LayerNormBackward& p) {
  T* d_x = static_cast<T*>(p.d_x);
  const T *d_out = static_cast<const T*>(p.d_out), *d_residual = static_cast<const T*>(p.d_residual), *x = static_cast<const T*>(p.x);
  const RowBlocks blocks(p.rows);
  const std::int64_t width = RowBlocks::stride(p.C), row_bytes = p.C * static_cast<std::int64_t>(sizeof(T));
  float* weights = reinterpret_cast<float*>(context.workspace.data());  // (blocks, stride(C))
  float* biases = p.d_bias ? weights + blocks.count * width : nullptr;  // (blocks, stride(C))
  // In place the lines of d_x are in cache already, and a plain store costs no extra read.
  const bool in_place = d_x == d_out || d_x == d_residual;
  const bool stream = !in_place && worth_streaming(d_x, p.rows * row_bytes, row_bytes);
  auto run_row = stream ? layer_backward_row_for<true, T>(p) : layer_backward_row_for<false, T>(p);
  parallel_ranges(blocks.count, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t b = first; b < last; ++b) {
      float *d_weight = weights + b * width, *d_bias = biases ? biases + b * width : nullptr;
      std::fill_n(d_weight, width, 0.0f);
      if (d_bias) std::fill_n(d_bias, width, 0.0f);
      for (std::int64_t r = blocks.begin(b); r < blocks.end(b); ++r) {
        const std::int64_t at = r * p.C;
        run_row({.d_x = d_x + at,
                 .d_weight = d_weight,
                 .d_bias = d_bias,
                 .d_out = d_out + at,
                 .d_residual = d_residual ? d_residual + at : nullptr,
                 .x = x + at,
                 .weight = static_cast<const T*>(p.weight),
                 .C = p.C,
                 .of = {p.mean[r], p.rstd[r]},
                 .ahead = r + 1 < p.rows ? p.C : 0});
      }
    }
    if (stream) stream_fence();
  });
  add_partial_sums<T>(p.d_weight, weights, blocks, p.C);
  if (p.d_bias) add_partial_sums<T>(p.d_bias, biases, blocks, p.C);
}

}  // namespace

void layer_norm_forward(const Context&, const LayerNormForward& p) {
  if (p.rows == 0 || p.C == 0) return;
  with_float_type(p.dtype, "layer_norm_forward", [&](auto type) { layer_forward<decltype(type)>(p); });
}

void layer_norm_backward(const Context& context, const LayerNormBackward& p) {
  if (p.rows == 0 || p.C == 0) return;
  const std::size_t needed = host::layer_norm_backward_workspace_bytes(p);
  TESSERA_REQUIRE(context.workspace.size() >= needed, "layer_norm_backward needs {} bytes of workspace, has {}", needed,
                  context.workspace.size());
  with_float_type(p.dtype, "layer_norm_backward", [&](auto type) { layer_backward<decltype(type)>(context, p); });
}

std::size_t layer_norm_backward_workspace_bytes(const LayerNormBackward& p) { return 2 * RowBlocks(p.rows).bytes(p.C); }

}  // namespace tessera::kernels::host
