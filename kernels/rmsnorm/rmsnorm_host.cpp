// Bound by memory: each row is read once from memory and a second time from cache, when its statistic is known.
#include "kernels/rmsnorm/rmsnorm.hpp"

#include "kernels/rmsnorm/row_host.hpp"
#include "kernels/vector/row_blocks.hpp"

namespace tessera::kernels::host {
namespace {

std::int64_t rows_per_piece(std::int64_t C) { return std::max<std::int64_t>(1, 16384 / C); }

/// `next` is the row of x that comes after: its second half is asked for here, its first half while this row's statistic was computed.
template <bool Stream, class T>
void forward_row(T* out, const T* x, const T* next, const T* weight, std::int64_t C, float rstd) {
  for_vectors(0, C, [&](std::int64_t i, auto n) {
    prefetch(next + (C + i) / 2);
    store_any<Stream>(out + i, norm::scaled(load_any(x + i, n), load_any(weight + i, n), rstd), n);
  });
}

/// The same by offset + weight, and onto a residual where there is one, which may be out.
template <bool Stream, class T>
void forward_row_onto(T* out, const T* x, const T* residual, const T* next, const T* weight, float offset, std::int64_t C, float rstd) {
  for_vectors(0, C, [&](std::int64_t i, auto n) {
    prefetch(next + (C + i) / 2);
    f32x16 normed = norm::scaled(load_any(x + i, n), load_any(weight + i, n) + offset, rstd);
    store_any<Stream>(out + i, residual ? normed + load_any(residual + i, n) : normed, n);
  });
}

template <class T>
void forward(const RmsnormForward& p) {
  T* out = static_cast<T*>(p.out);
  const T *x = static_cast<const T*>(p.x), *weight = static_cast<const T*>(p.weight), *residual = static_cast<const T*>(p.residual);
  std::int64_t row_bytes = p.C * static_cast<std::int64_t>(sizeof(T));
  bool stream = out != residual && worth_streaming(out, p.rows * row_bytes, row_bytes);
  const bool plain = p.offset == 0 && !residual;
  parallel_ranges(p.rows, rows_per_piece(p.C), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const T *row = x + r * p.C, *next = x + std::min(r + 1, p.rows - 1) * p.C;
      const float rstd = row_reciprocal_rms(row, next, p.C, p.eps);
      if (p.rstd) p.rstd[r] = rstd;
      const T* onto = residual ? residual + r * p.C : nullptr;
      if (plain && stream)
        forward_row<true>(out + r * p.C, row, next, weight, p.C, rstd);
      else if (plain)
        forward_row<false>(out + r * p.C, row, next, weight, p.C, rstd);
      else if (stream)
        forward_row_onto<true>(out + r * p.C, row, onto, next, weight, p.offset, p.C, rstd);
      else
        forward_row_onto<false>(out + r * p.C, row, onto, next, weight, p.offset, p.C, rstd);
    }
    if (stream) stream_fence();
  });
}

template <class T>
struct BackwardRow {
  T* d_x;
  float* d_weight;  ///< whole vectors in the order of T
  const T *d_out, *d_residual, *x, *weight;
  std::int64_t C;
  float rstd;
  std::int64_t ahead;  ///< how far the next row lies ahead: it is asked for early
  float offset;
};

/// d_x may be d_out or d_residual: an element is written after the last read of it.
template <bool Stream, bool Residual, bool Offset, class T>
void backward_row(BackwardRow<T> p) {
  const auto factor = [&](std::int64_t i, auto n) {
    f32x16 weight = load_any(p.weight + i, n);
    return Offset ? weight + p.offset : weight;
  };
  float dot = fold<T>(p.C, [&](std::int64_t i, auto n, f32x16& sum) {
    prefetch(p.d_out + p.ahead + i);
    sum = norm::add_dot(load_any(p.d_out + i, n), factor(i, n), load_any(p.x + i, n), sum);
  });
  const float along_x = norm::along_x(dot, p.C, p.rstd);
  for_vectors(0, p.C, [&](std::int64_t i, auto n) {
    prefetch(p.x + p.ahead + i);
    if constexpr (Residual) prefetch(p.d_residual + p.ahead + i);
    f32x16 g = load_any(p.d_out + i, n), x = load_any(p.x + i, n);
    store(p.d_weight + i, norm::add_weight_gradient(g, x, p.rstd, load(p.d_weight + i)));
    f32x16 rest = Residual ? fma(x, splat(along_x), load_any(p.d_residual + i, n)) : x * along_x;
    store_any<Stream>(p.d_x + i, norm::gradient(g, factor(i, n), p.rstd, rest), n);
  });
}

template <bool Offset, class T>
void backward(const Context& context, const RmsnormBackward& p) {
  T* d_x = static_cast<T*>(p.d_x);
  const T *d_out = static_cast<const T*>(p.d_out), *d_residual = static_cast<const T*>(p.d_residual);
  const T *x = static_cast<const T*>(p.x), *weight = static_cast<const T*>(p.weight);
  float* partial = reinterpret_cast<float*>(context.workspace.data());  // (blocks, stride(C))
  RowBlocks blocks(p.rows);
  std::int64_t row_bytes = p.C * static_cast<std::int64_t>(sizeof(T));
  // In place the lines of d_x are in cache already, and a plain store costs no extra read.
  bool in_place = d_x == d_out || d_x == d_residual;
  bool stream = !in_place && worth_streaming(d_x, p.rows * row_bytes, row_bytes);
  auto run_row = d_residual ? (stream ? backward_row<true, true, Offset, T> : backward_row<false, true, Offset, T>)
                            : (stream ? backward_row<true, false, Offset, T> : backward_row<false, false, Offset, T>);
  parallel_ranges(blocks.count, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t b = first; b < last; ++b) {
      float* d_weight = partial + b * blocks.stride(p.C);
      std::fill_n(d_weight, blocks.stride(p.C), 0.0f);
      for (std::int64_t r = blocks.begin(b); r < blocks.end(b); ++r) {
        std::int64_t at = r * p.C;
        run_row({.d_x = d_x + at,
                 .d_weight = d_weight,
                 .d_out = d_out + at,
                 .d_residual = d_residual ? d_residual + at : nullptr,
                 .x = x + at,
                 .weight = weight,
                 .C = p.C,
                 .rstd = p.rstd[r],
                 .ahead = r + 1 < p.rows ? p.C : 0,
                 .offset = p.offset});
      }
    }
    if (stream) stream_fence();
  });
  add_partial_sums<T>(p.d_weight, partial, blocks, p.C);
}

}  // namespace

void rmsnorm_forward(const Context&, const RmsnormForward& p) {
  if (p.rows == 0 || p.C == 0) return;
  with_float_type(p.dtype, "rmsnorm_forward", [&](auto type) { forward<decltype(type)>(p); });
}

void rmsnorm_backward(const Context& context, const RmsnormBackward& p) {
  if (p.rows == 0 || p.C == 0) return;
  std::size_t needed = host::rmsnorm_backward_workspace_bytes(p);
  TESSERA_REQUIRE(context.workspace.size() >= needed, "rmsnorm_backward needs {} bytes of workspace, has {}", needed,
                  context.workspace.size());
  with_float_type(p.dtype, "rmsnorm_backward", [&](auto type) {
    using T = decltype(type);
    p.offset == 0 ? backward<false, T>(context, p) : backward<true, T>(context, p);
  });
}

std::size_t rmsnorm_backward_workspace_bytes(const RmsnormBackward& p) { return RowBlocks(p.rows).bytes(p.C); }

}  // namespace tessera::kernels::host
