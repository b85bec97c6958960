// Bound by memory: each row is read once from memory and a second time from cache, when its statistic is known.
#include "kernels/rmsnorm/rmsnorm.hpp"

#include "kernels/rmsnorm/row_host.hpp"
#include "kernels/vector/row_blocks.hpp"

namespace tessera::kernels::host {
namespace {

/// Statistics of several short rows come before the rows themselves: each ends in a chain of operations that wait for each other.
constexpr std::int64_t most_together = 16;

std::int64_t rows_per_piece(std::int64_t C) { return std::max<std::int64_t>(1, 16384 / C); }

template <class T>
struct RmsForwardRow {
  T* out;
  const T *x, *next;  ///< `next` is a row of x that is needed soon
  const T *weight, *residual;
  std::int64_t C;
  float offset, rstd;
};

/// The second half of `next` is asked for here, its first half was while this row's statistic was computed. out may be the residual: an
/// element is written after it was read.
template <bool Stream, bool Offset, bool Residual, class T>
void rms_forward_row(RmsForwardRow<T> p) {
  for_vectors(0, p.C, [&](std::int64_t i, auto n) {
    prefetch(p.next + (p.C + i) / 2);
    const f32x16 x = load_any(p.x + i, n), factor = norm::factor<Offset>(load_any(p.weight + i, n), p.offset);
    if constexpr (Residual) {
      store_any<Stream>(p.out + i, norm::add_scaled(x, factor, p.rstd, load_any(p.residual + i, n)), n);
    } else {
      store_any<Stream>(p.out + i, norm::scaled(x, factor, p.rstd), n);
    }
  });
}
template <bool Stream, class T>
auto rms_forward_row_for(const RmsnormForward& p) {
  if (p.offset != 0) return p.residual ? rms_forward_row<Stream, true, true, T> : rms_forward_row<Stream, true, false, T>;
  return p.residual ? rms_forward_row<Stream, false, true, T> : rms_forward_row<Stream, false, false, T>;
}

template <class T>
void forward(const RmsnormForward& p) {
  T* out = static_cast<T*>(p.out);
  const T *x = static_cast<const T*>(p.x), *weight = static_cast<const T*>(p.weight), *residual = static_cast<const T*>(p.residual);
  std::int64_t row_bytes = p.C * static_cast<std::int64_t>(sizeof(T));
  bool stream = out != residual && worth_streaming(out, p.rows * row_bytes, row_bytes);
  auto run_row = stream ? rms_forward_row_for<true, T>(p) : rms_forward_row_for<false, T>(p);
  const std::int64_t together = row_bytes > 512 ? 1 : std::clamp<std::int64_t>(8192 / row_bytes, 1, most_together);
  parallel_ranges(p.rows, rows_per_piece(p.C), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t first = begin; first < end; first += together) {
      const std::int64_t last = std::min(first + together, end);
      const auto next = [&](std::int64_t r) { return x + std::min(r + together, p.rows - 1) * p.C; };
      float rstd[most_together];
      for (std::int64_t r = first; r < last; ++r) rstd[r - first] = row_reciprocal_rms(x + r * p.C, next(r), p.C, p.eps);
      if (p.rstd) std::copy_n(rstd, last - first, p.rstd + first);
      for (std::int64_t r = first; r < last; ++r)
        run_row({.out = out + r * p.C,
                 .x = x + r * p.C,
                 .next = next(r),
                 .weight = weight,
                 .residual = residual ? residual + r * p.C : nullptr,
                 .C = p.C,
                 .offset = p.offset,
                 .rstd = rstd[r - first]});
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
  float offset, rstd;
  std::int64_t ahead;  ///< how far the next row lies ahead: it is asked for early
};

/// d_x may be d_out or d_residual: an element is written after the last read of it.
template <bool Stream, bool Offset, bool Residual, class T>
void rms_backward_row(BackwardRow<T> p) {
  float dot = fold<T>(p.C, [&](std::int64_t i, auto n, f32x16& sum) {
    prefetch(p.d_out + p.ahead + i);
    const f32x16 factor = norm::factor<Offset>(load_any(p.weight + i, n), p.offset);
    sum = norm::add_dot(load_any(p.d_out + i, n), factor, load_any(p.x + i, n), sum);
  });
  const float along_x = norm::along_x(dot, p.C, p.rstd);
  for_vectors(0, p.C, [&](std::int64_t i, auto n) {
    prefetch(p.x + p.ahead + i);
    if constexpr (Residual) prefetch(p.d_residual + p.ahead + i);
    f32x16 g = load_any(p.d_out + i, n), x = load_any(p.x + i, n);
    store(p.d_weight + i, norm::add_weight_gradient(g, x, p.rstd, load(p.d_weight + i)));
    f32x16 rest = Residual ? fma(x, splat(along_x), load_any(p.d_residual + i, n)) : x * along_x;
    store_any<Stream>(p.d_x + i, norm::gradient(g, norm::factor<Offset>(load_any(p.weight + i, n), p.offset), p.rstd, rest), n);
  });
}
template <bool Stream, class T>
auto rms_backward_row_for(const RmsnormBackward& p) {
  if (p.offset != 0) return p.d_residual ? rms_backward_row<Stream, true, true, T> : rms_backward_row<Stream, true, false, T>;
  return p.d_residual ? rms_backward_row<Stream, false, true, T> : rms_backward_row<Stream, false, false, T>;
}

template <class T>
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
  auto run_row = stream ? rms_backward_row_for<true, T>(p) : rms_backward_row_for<false, T>(p);
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
                 .offset = p.offset,
                 .rstd = p.rstd[r],
                 .ahead = r + 1 < p.rows ? p.C : 0});
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
  with_float_type(p.dtype, "rmsnorm_backward", [&](auto type) { backward<decltype(type)>(context, p); });
}

std::size_t rmsnorm_backward_workspace_bytes(const RmsnormBackward& p) { return RowBlocks(p.rows).bytes(p.C); }

}  // namespace tessera::kernels::host
