// Bound by memory: sums and dots read a row once, and the passes that need them read and write it once, when all ranks have them.
#include "kernels/wide_qk_norm/wide_qk_norm.hpp"

#include <array>

#include "kernels/rmsnorm/row_host.hpp"
#include "kernels/vector/row_blocks.hpp"

namespace tessera::kernels::host {
namespace {

/// What is normed together: the query features of a row, or its key features.
template <class T>
struct WideSection {
  std::int64_t which;  ///< column of the sums: 0 for queries, 1 for keys
  std::int64_t at, C;  ///< where it begins in a row, and its features
  std::int64_t all;    ///< those of all parts
  const T* weight;     ///< (C)
};
template <class T>
std::array<WideSection<T>, 2> wide_sections(const WideQkShape& s, const void* q_norm, const void* k_norm) {
  return {{{.which = 0, .at = 0, .C = s.Q, .all = s.all_queries(), .weight = static_cast<const T*>(q_norm)},
           {.which = 1, .at = s.Q, .C = s.K, .all = s.all_keys(), .weight = static_cast<const T*>(k_norm)}}};
}

/// The sum over the parts of one number of a row, in their order.
float over_parts(const float* sums, const WideQkShape& s, std::int64_t m, std::int64_t which) {
  float sum = 0;
  for (std::int64_t part = 0; part < s.parts; ++part) sum += sums[(part * s.M + m) * 2 + which];
  return sum;
}

std::int64_t wide_rows_per_piece(const WideQkShape& s) { return std::max<std::int64_t>(1, 16384 / (s.Q + s.K)); }

template <class T>
void sum_wide_squares(const WideQkSums& p) {
  const WideQkShape& s = p.shape;
  const T* x = static_cast<const T*>(p.x);
  const auto sections = wide_sections<T>(s, nullptr, nullptr);
  parallel_ranges(s.M, wide_rows_per_piece(s), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t m = begin; m < end; ++m) {
      const std::int64_t ahead = m + 1 < s.M ? s.stride : 0;
      for (const auto& section : sections) {
        const T* row = x + m * s.stride + section.at;
        p.sums[2 * m + section.which] = fold<T>(section.C, [&](std::int64_t i, auto n, f32x16& sum) {
          prefetch(row + ahead + i);
          const f32x16 a = load_any(row + i, n);
          sum = fma(a, a, sum);
        });
      }
    }
  });
}

/// One section of a row; `ahead` is how far the next row lies, which is asked for early. out may be x.
template <bool Stream, bool Offset, class T>
void norm_wide_row(T* out, const T* x, std::int64_t ahead, const WideSection<T>& section, float offset, float rstd) {
  for_vectors(0, section.C, [&](std::int64_t i, auto n) {
    prefetch(x + ahead + i);
    store_any<Stream>(out + i, norm::scaled(load_any(x + i, n), norm::factor<Offset>(load_any(section.weight + i, n), offset), rstd), n);
  });
}

template <class T>
void norm_wide(const WideQkNorm& p) {
  const WideQkShape& s = p.shape;
  T* out = static_cast<T*>(p.out);
  const T* x = static_cast<const T*>(p.x);
  const std::int64_t others = s.Q + s.K, row_bytes = s.stride * static_cast<std::int64_t>(sizeof(T));
  // In place the lines of out are in cache already. Where key features begin on a whole vector, all that is streamed lies on one.
  const bool stream = out != x && s.Q % lanes == 0 && worth_streaming(out, s.M * row_bytes, row_bytes);
  auto run_row = s.offset != 0 ? (stream ? norm_wide_row<true, true, T> : norm_wide_row<false, true, T>)
                               : (stream ? norm_wide_row<true, false, T> : norm_wide_row<false, false, T>);
  const auto sections = wide_sections<T>(s, p.q_norm, p.k_norm);
  parallel_ranges(s.M, wide_rows_per_piece(s), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t m = begin; m < end; ++m) {
      const std::int64_t row = m * s.stride;
      for (const auto& section : sections) {
        const float rstd = norm::reciprocal_rms(over_parts(p.sums, s, m, section.which), section.all, s.eps);
        run_row(out + row + section.at, x + row + section.at, m + 1 < s.M ? s.stride : 0, section, s.offset, rstd);
      }
      if (out != x) std::copy_n(x + row + others, s.stride - others, out + row + others);
    }
    if (stream) stream_fence();
  });
}

template <bool Offset, class T>
float wide_dot(const T* d, const T* x, std::int64_t ahead, const WideSection<T>& section, float offset) {
  return fold<T>(section.C, [&](std::int64_t i, auto n, f32x16& sum) {
    prefetch(d + ahead + i), prefetch(x + ahead + i);
    sum = norm::add_dot(load_any(d + i, n), norm::factor<Offset>(load_any(section.weight + i, n), offset), load_any(x + i, n), sum);
  });
}

template <class T>
void take_wide_dots(const WideQkDots& p) {
  const WideQkShape& s = p.shape;
  const T *d = static_cast<const T*>(p.d), *x = static_cast<const T*>(p.x);
  const auto sections = wide_sections<T>(s, p.q_norm, p.k_norm);
  auto dot = s.offset != 0 ? wide_dot<true, T> : wide_dot<false, T>;
  parallel_ranges(s.M, wide_rows_per_piece(s), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t m = begin; m < end; ++m) {
      for (const auto& section : sections) {
        const std::int64_t at = m * s.stride + section.at;
        p.dots[2 * m + section.which] = dot(d + at, x + at, m + 1 < s.M ? s.stride : 0, section, s.offset);
      }
    }
  });
}

/// A section's statistics of a row.
struct WideStatistics {
  float rstd, along_x;
};
/// d becomes the gradient of x: an element is written after it was read. d_weight is whole vectors in the order of T.
template <bool Offset, class T>
void wide_backward_row(T* d, float* d_weight, const T* x, std::int64_t ahead, const WideSection<T>& section, float offset,
                       WideStatistics of) {
  for_vectors(0, section.C, [&](std::int64_t i, auto n) {
    prefetch(d + ahead + i), prefetch(x + ahead + i);
    const f32x16 g = load_any(d + i, n), v = load_any(x + i, n);
    store(d_weight + i, norm::add_weight_gradient(g, v, of.rstd, load(d_weight + i)));
    const f32x16 factor = norm::factor<Offset>(load_any(section.weight + i, n), offset);
    store_any(d + i, norm::gradient(g, factor, of.rstd, v * splat(of.along_x)), n);
  });
}

template <class T>
void wide_backward(const Context& context, const WideQkNormBackward& p) {
  const WideQkShape& s = p.shape;
  T* d = static_cast<T*>(p.d);
  const T* x = static_cast<const T*>(p.x);
  const RowBlocks blocks(s.M);
  const auto sections = wide_sections<T>(s, p.q_norm, p.k_norm);
  auto* of_queries = reinterpret_cast<float*>(context.workspace.data());  // (blocks, stride(Q)), then (blocks, stride(K))
  const std::array<float*, 2> partial = {of_queries, of_queries + blocks.count * RowBlocks::stride(s.Q)};
  auto run_row = s.offset != 0 ? wide_backward_row<true, T> : wide_backward_row<false, T>;
  parallel_ranges(blocks.count, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t b = first; b < last; ++b) {
      for (const auto& section : sections) {
        const std::int64_t width = RowBlocks::stride(section.C);
        std::fill_n(partial[static_cast<std::size_t>(section.which)] + b * width, width, 0.0f);
      }
      for (std::int64_t m = blocks.begin(b); m < blocks.end(b); ++m) {
        for (const auto& section : sections) {
          const float rstd = norm::reciprocal_rms(over_parts(p.sums, s, m, section.which), section.all, s.eps);
          const float along_x = norm::along_x(over_parts(p.dots, s, m, section.which), section.all, rstd);
          const std::int64_t at = m * s.stride + section.at;
          float* d_weight = partial[static_cast<std::size_t>(section.which)] + b * RowBlocks::stride(section.C);
          run_row(d + at, d_weight, x + at, m + 1 < s.M ? s.stride : 0, section, s.offset, {.rstd = rstd, .along_x = along_x});
        }
      }
    }
  });
  add_partial_sums<T>(p.d_q_norm, partial[0], blocks, s.Q);
  add_partial_sums<T>(p.d_k_norm, partial[1], blocks, s.K);
}

void check_wide(const WideQkShape& s) {
  TESSERA_REQUIRE(s.Q > 0 && s.K > 0 && s.stride >= s.Q + s.K && s.parts > 0, "wide_qk_norm: Q {}, K {}, stride {}, parts {}", s.Q, s.K,
                  s.stride, s.parts);
}

}  // namespace

void wide_qk_sums(const Context&, const WideQkSums& p) {
  if (p.shape.M == 0) return;
  check_wide(p.shape);
  with_float_type(p.shape.dtype, "wide_qk_sums", [&](auto type) { sum_wide_squares<decltype(type)>(p); });
}

void wide_qk_norm(const Context&, const WideQkNorm& p) {
  if (p.shape.M == 0) return;
  check_wide(p.shape);
  with_float_type(p.shape.dtype, "wide_qk_norm", [&](auto type) { norm_wide<decltype(type)>(p); });
}

void wide_qk_dots(const Context&, const WideQkDots& p) {
  if (p.shape.M == 0) return;
  check_wide(p.shape);
  with_float_type(p.shape.dtype, "wide_qk_dots", [&](auto type) { take_wide_dots<decltype(type)>(p); });
}

void wide_qk_norm_backward(const Context& context, const WideQkNormBackward& p) {
  if (p.shape.M == 0) return;
  check_wide(p.shape);
  const std::size_t needed = host::wide_qk_norm_backward_workspace_bytes(p);
  TESSERA_REQUIRE(context.workspace.size() >= needed, "wide_qk_norm_backward needs {} bytes of workspace, has {}", needed,
                  context.workspace.size());
  with_float_type(p.shape.dtype, "wide_qk_norm_backward", [&](auto type) { wide_backward<decltype(type)>(context, p); });
}

std::size_t wide_qk_norm_backward_workspace_bytes(const WideQkNormBackward& p) {
  const RowBlocks blocks(p.shape.M);
  return blocks.bytes(p.shape.Q) + blocks.bytes(p.shape.K);
}

}  // namespace tessera::kernels::host
