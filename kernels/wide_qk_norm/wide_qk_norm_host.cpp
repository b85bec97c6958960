// Bound by memory: sums and dots read a row's query and key features, the norm reads and writes them, its backward pass reads two and
// writes one; rows that were summed just before come from the caches.
#include "kernels/wide_qk_norm/wide_qk_norm.hpp"

#include <algorithm>
#include <array>

#include "kernels/rmsnorm/formulas.hpp"
#include "kernels/vector/row_blocks.hpp"

namespace tessera::kernels::host {
namespace {

std::int64_t wide_rows_of_piece(const WideQkShape& s) { return std::max<std::int64_t>(1, 16384 / (s.Q + s.K)); }

/// Query features of a row, or key features.
struct WideSpan {
  std::int64_t begin = 0, count = 0, all = 0;  ///< all: that are normed together
  int number = 0;                              ///< in rows of sums
};
std::array<WideSpan, 2> spans_of(const WideQkShape& s) {
  return {
      {{.begin = 0, .count = s.Q, .all = s.all_queries(), .number = 0}, {.begin = s.Q, .count = s.K, .all = s.all_keys(), .number = 1}}};
}

float sum_of_parts(const float* sums, const WideQkShape& s, std::int64_t m, const WideSpan& span) {
  float total = 0;
  for (std::int64_t part = 0; part < s.parts; ++part) total += sums[(part * s.M + m) * 2 + span.number];
  return total;
}

template <class T, class Row>
void over_rows(const WideQkShape& s, Row row) {
  parallel_ranges(s.M, wide_rows_of_piece(s), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t m = begin; m < end; ++m)
      for (const WideSpan& span : spans_of(s)) row(m, span);
  });
}

template <class T>
const T* weight_of(const void* q_norm, const void* k_norm, const WideSpan& span) {
  return static_cast<const T*>(span.number == 0 ? q_norm : k_norm);
}

template <class T>
void backward_of_row(const WideQkNormBackward& p, std::int64_t m, const WideSpan& span, float* d_weight) {
  const WideQkShape& s = p.shape;
  T* d = static_cast<T*>(p.d) + m * s.stride + span.begin;
  const T *x = static_cast<const T*>(p.x) + m * s.stride + span.begin, *weight = weight_of<T>(p.q_norm, p.k_norm, span);
  const float rstd = norm::reciprocal_rms(sum_of_parts(p.sums, s, m, span), span.all, s.eps);
  const float along_x = norm::along_x(sum_of_parts(p.dots, s, m, span), span.all, rstd);
  for_vectors(0, span.count, [&](std::int64_t i, auto n) {
    f32x16 g = load(d + i, n), v = load(x + i, n);
    store(d_weight + i, norm::add_weight_gradient(g, v, rstd, load(d_weight + i, n)), n);
    store(d + i, norm::gradient(g, load(weight + i, n) + s.offset, rstd, v * along_x), n);
  });
}

}  // namespace

void wide_qk_sums(const Context&, const WideQkSums& p) {
  with_float_type(p.shape.dtype, "wide_qk_sums", [&](auto type) {
    using T = decltype(type);
    over_rows<T>(p.shape, [&](std::int64_t m, const WideSpan& span) {
      const T* x = static_cast<const T*>(p.x) + m * p.shape.stride + span.begin;
      p.sums[2 * m + span.number] = fold(span.count, [&](std::int64_t i, auto n, f32x16& sum) {
        f32x16 a = load(x + i, n);
        sum = fma(a, a, sum);
      });
    });
  });
}

void wide_qk_norm(const Context&, const WideQkNorm& p) {
  with_float_type(p.shape.dtype, "wide_qk_norm", [&](auto type) {
    using T = decltype(type);
    const WideQkShape& s = p.shape;
    over_rows<T>(s, [&](std::int64_t m, const WideSpan& span) {
      const T *row = static_cast<const T*>(p.x) + m * s.stride, *x = row + span.begin, *weight = weight_of<T>(p.q_norm, p.k_norm, span);
      T *out_row = static_cast<T*>(p.out) + m * s.stride, *out = out_row + span.begin;
      const float rstd = norm::reciprocal_rms(sum_of_parts(p.sums, s, m, span), span.all, s.eps);
      for_vectors(0, span.count,
                  [&](std::int64_t i, auto n) { store(out + i, norm::scaled(load(x + i, n), load(weight + i, n) + s.offset, rstd), n); });
      const std::int64_t normed = s.Q + s.K;
      if (span.number == 1 && p.out != p.x) std::copy_n(row + normed, s.stride - normed, out_row + normed);
    });
  });
}

void wide_qk_dots(const Context&, const WideQkDots& p) {
  with_float_type(p.shape.dtype, "wide_qk_dots", [&](auto type) {
    using T = decltype(type);
    const WideQkShape& s = p.shape;
    over_rows<T>(s, [&](std::int64_t m, const WideSpan& span) {
      const std::int64_t at = m * s.stride + span.begin;
      const T *d = static_cast<const T*>(p.d) + at, *x = static_cast<const T*>(p.x) + at, *weight = weight_of<T>(p.q_norm, p.k_norm, span);
      p.dots[2 * m + span.number] = fold(span.count, [&](std::int64_t i, auto n, f32x16& sum) {
        sum = norm::add_dot(load(d + i, n), load(weight + i, n) + s.offset, load(x + i, n), sum);
      });
    });
  });
}

void wide_qk_norm_backward(const Context& context, const WideQkNormBackward& p) {
  const std::size_t needed = host::wide_qk_norm_backward_workspace_bytes(p);
  TESSERA_REQUIRE(context.workspace.size() >= needed, "wide_qk_norm_backward needs {} bytes of workspace, has {}", needed,
                  context.workspace.size());
  const WideQkShape& s = p.shape;
  const RowBlocks blocks(s.M);
  auto* partial_q = reinterpret_cast<float*>(context.workspace.data());  // (blocks, stride(Q)), then (blocks, stride(K))
  float* partial_k = partial_q + blocks.count * RowBlocks::stride(s.Q);
  with_float_type(s.dtype, "wide_qk_norm_backward", [&](auto type) {
    using T = decltype(type);
    parallel_ranges(blocks.count, 1, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t b = first; b < last; ++b)
        for (const WideSpan& span : spans_of(s)) {
          const std::int64_t stride = RowBlocks::stride(span.count);
          float* d_weight = (span.number == 0 ? partial_q : partial_k) + b * stride;
          std::fill_n(d_weight, stride, 0.0f);
          for (std::int64_t m = blocks.begin(b); m < blocks.end(b); ++m) backward_of_row<T>(p, m, span, d_weight);
        }
    });
  });
  add_partial_sums<float>(p.d_q_norm, partial_q, blocks, s.Q);
  add_partial_sums<float>(p.d_k_norm, partial_k, blocks, s.K);
}

std::size_t wide_qk_norm_backward_workspace_bytes(const WideQkNormBackward& p) {
  const RowBlocks blocks(p.shape.M);
  return blocks.bytes(p.shape.Q) + blocks.bytes(p.shape.K);
}

}  // namespace tessera::kernels::host
