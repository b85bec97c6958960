// Bound by memory when rows leave the caches: a head is read once from memory and a second time from cache, when its statistic is known.
#include "kernels/qk_norm_rope/qk_norm_rope.hpp"

#include <algorithm>

#include "kernels/rmsnorm/row_host.hpp"
#include "kernels/rope/rotation_host.hpp"
#include "kernels/vector/row_blocks.hpp"

namespace tessera::kernels::host {
namespace {

/// Takes a part of a token's row of the table apart into cosines and sines, for all heads of the token.
void split_pairs(float* cos, float* sin, const float* pairs, std::int64_t n) {
  for_vectors(0, n, [&](std::int64_t i, auto count) {
    Rotation r = load_rotation(pairs + 2 * i, count);
    store(cos + i, r.cos, count), store(sin + i, r.sin, count);
  });
}

/// A query or key head of a token's row.
template <class T>
struct Head {
  const T* weight;  ///< (D)
  std::int64_t at;  ///< where the head begins in the row
};
template <class T, class P>
Head<T> head_of(const P& p, std::int64_t h) {
  return {static_cast<const T*>(h < p.H ? p.q_norm : p.k_norm), h * p.D};
}

/// What a norm scales by: weights, plus an offset where there is one.
template <bool Offset, class T, class Count>
TESSERA_INLINE f32x16 factor(const T* weight, Count n, float offset) {
  f32x16 w = load(weight, n);
  return Offset ? w + offset : w;
}

/// Pairs begin .. end of a head: `out` is x, normed and rotated. Each pair is written after it was read, so out may be x.
template <bool Offset, class T>
void norm_and_rotate_neighbours(T* out, const T* x, const T* weight, float offset, float rstd, const float* cos, const float* sin,
                                std::int64_t begin, std::int64_t end) {
  for_vectors(begin, end, [&](std::int64_t i, auto n) {
    const Neighbours v = load_neighbours(x + 2 * i, n), w = load_neighbours(weight + 2 * i, n);
    f32x16 a = norm::scaled(v.first, Offset ? w.first + offset : w.first, rstd);
    f32x16 b = norm::scaled(v.second, Offset ? w.second + offset : w.second, rstd);
    rotate_pair(a, b, load(cos + i - begin, n), load(sin + i - begin, n));
    store_neighbours(out + 2 * i, a, b, n);
  });
}
/// The same of pairs whose features lie half further on.
template <bool Stream, bool Offset, class T>
void norm_and_rotate(T* out, const T* x, const T* next, const T* weight, float offset, float rstd, const float* cos, const float* sin,
                     std::int64_t begin, std::int64_t end, std::int64_t half) {
  for_vectors(begin, end, [&](std::int64_t i, auto n) {
    prefetch(next + half + i);
    f32x16 a = norm::scaled(load(x + i, n), factor<Offset>(weight + i, n, offset), rstd);
    f32x16 b = norm::scaled(load(x + half + i, n), factor<Offset>(weight + half + i, n, offset), rstd);
    rotate_pair(a, b, load(cos + i - begin, n), load(sin + i - begin, n));
    store<Stream>(out + i, a, n), store<Stream>(out + half + i, b, n);
  });
}

/// Features begin .. end of a head, which are not rotated.
template <bool Stream, bool Offset, class T>
void norm_alone(T* out, const T* x, const T* weight, float offset, float rstd, std::int64_t begin, std::int64_t end) {
  for_vectors(begin, end, [&](std::int64_t i, auto n) {
    store<Stream>(out + i, norm::scaled(load(x + i, n), factor<Offset>(weight + i, n, offset), rstd), n);
  });
}

/// `next` is the row of x that comes after: it is asked for while this one is being computed.
template <bool Stream, bool Offset, bool neighbours, class T>
void forward_row(const QkNormRopeForward& p, T* out, float* rstd, const T* x, const T* next, const float* table) {
  // Statistics of several heads come first, since each is a chain of operations that wait for each other. Cosines and sines are kept for
  // all pairs, unless heads are very wide.
  constexpr std::int64_t most_heads = 16, most_pairs = 128;
  float of_head[most_heads], cos[most_pairs], sin[most_pairs];
  const std::int64_t turned = turned_features(p), half = turned / 2, heads = p.H + p.G;
  for (std::int64_t first = 0; first < heads; first += most_heads) {
    const std::int64_t last = std::min(first + most_heads, heads);
    for (std::int64_t h = first; h < last; ++h) of_head[h - first] = row_reciprocal_rms(x + h * p.D, next + h * p.D, p.D, p.eps);
    if (rstd) std::copy_n(of_head, last - first, rstd + first);
    for (std::int64_t h = first; h < last; ++h) {
      const auto [weight, at] = head_of<T>(p, h);
      for (std::int64_t i = 0; i < half; i += most_pairs) {
        const std::int64_t end = std::min(i + most_pairs, half);
        if (h == 0 || half > most_pairs) split_pairs(cos, sin, table + 2 * i, end - i);
        if constexpr (neighbours)
          norm_and_rotate_neighbours<Offset>(out + at, x + at, weight, p.offset, of_head[h - first], cos, sin, i, end);
        else
          norm_and_rotate<Stream, Offset>(out + at, x + at, next + at, weight, p.offset, of_head[h - first], cos, sin, i, end, half);
      }
      if (turned < p.D) norm_alone<Stream, Offset>(out + at, x + at, weight, p.offset, of_head[h - first], turned, p.D);
    }
  }
  const std::int64_t values = (p.H + p.G) * p.D;
  if (out != x) std::copy_n(x + values, p.G * p.D, out + values);
}

template <class T>
void forward(const QkNormRopeForward& p) {
  T* out = static_cast<T*>(p.out);
  const T* x = static_cast<const T*>(p.x);
  const std::int64_t width = (p.H + 2 * p.G) * p.D, row_bytes = width * static_cast<std::int64_t>(sizeof(T));
  // In place the lines of out are in cache already. Where half a head is whole vectors, and half of what is turned, so is all that is
  // streamed. Neighbours are not: they are put together on the stack.
  const std::int64_t turned = turned_features(p);
  const bool whole_halves = p.D / 2 % lanes == 0 && turned / 2 % lanes == 0;
  const bool stream = out != x && !p.neighbours && whole_halves && worth_streaming(out, p.M * row_bytes, row_bytes);
  auto run_row = p.offset == 0 ? (stream ? forward_row<true, false, false, T> : forward_row<false, false, false, T>)
                               : (stream ? forward_row<true, true, false, T> : forward_row<false, true, false, T>);
  if (p.neighbours) run_row = p.offset == 0 ? forward_row<false, false, true, T> : forward_row<false, true, true, T>;
  parallel_ranges(p.M, std::max<std::int64_t>(1, 16384 / width), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t m = begin; m < end; ++m) {
      const T* next = x + std::min(m + 1, p.M - 1) * width;
      run_row(p, out + m * width, p.rstd ? p.rstd + m * (p.H + p.G) : nullptr, x + m * width, next,
              p.table + position_of(m, p.T, p.document_starts) * turned);
    }
    if (stream) stream_fence();
  });
}

/// A row block's parts of the workspace: partial sums of both weights' gradients, and what is kept of a token and of a head meanwhile.
struct Scratch {
  static constexpr std::int64_t parts = 4;  ///< (blocks, stride(D)) each
  float *d_q_norm, *d_k_norm;               ///< (D)
  float *cos, *sin;                         ///< (D/2)
  float* d_normed;                          ///< (D): a head's gradient before the rotation

  Scratch(float* memory, const RowBlocks& blocks, std::int64_t block, std::int64_t D) {
    const auto part = [&](std::int64_t i) { return memory + (i * blocks.count + block) * RowBlocks::stride(D); };
    d_q_norm = part(0), d_k_norm = part(1), cos = part(2), sin = cos + D / 2, d_normed = part(3);
  }
};

/// The gradient of one head that was rotated back, through the norm. `dot` is what along_x takes.
template <bool Offset, class T>
TESSERA_INLINE void backward_norm(T* d, float* d_weight, const T* x, const T* weight, float offset, float rstd, float dot, std::int64_t D,
                                  std::int64_t ahead, const Scratch& s) {
  const float along_x = norm::along_x(dot, D, rstd);
  for_vectors(0, D, [&](std::int64_t i, auto n) {
    prefetch(x + ahead + i);
    f32x16 g = load(s.d_normed + i, n), v = load(x + i, n);
    store(d_weight + i, norm::add_weight_gradient(g, v, rstd, load(d_weight + i, n)), n);
    store(d + i, norm::gradient(g, factor<Offset>(weight + i, n, offset), rstd, v * along_x), n);
  });
}

/// The gradient of one head, in place: rotated back, then through the norm.
template <bool Offset, class T>
void backward_head(T* d, float* d_weight, const T* x, const T* weight, float offset, float rstd, std::int64_t D, std::int64_t /*turned*/,
                   std::int64_t ahead, const Scratch& s) {
  const std::int64_t half = D / 2;
  const float dot = fold(half, [&](std::int64_t i, auto n, f32x16& sum) {
    prefetch(d + ahead + i), prefetch(d + ahead + half + i);
    f32x16 a = load(d + i, n), b = load(d + half + i, n);
    rotate_pair(a, b, load(s.cos + i, n), -load(s.sin + i, n));
    sum = norm::add_dot(a, factor<Offset>(weight + i, n, offset), load(x + i, n), sum);
    sum = norm::add_dot(b, factor<Offset>(weight + half + i, n, offset), load(x + half + i, n), sum);
    store(s.d_normed + i, a, n), store(s.d_normed + half + i, b, n);
  });
  backward_norm<Offset>(d, d_weight, x, weight, offset, rstd, dot, D, ahead, s);
}

/// The same where a part of a head is turned, or neighbours are: the dot product is taken when all features are rotated back.
template <bool Offset, bool neighbours, class T>
void backward_part(T* d, float* d_weight, const T* x, const T* weight, float offset, float rstd, std::int64_t D, std::int64_t turned,
                   std::int64_t ahead, const Scratch& s) {
  const std::int64_t half = turned / 2;
  for_vectors(0, half, [&](std::int64_t i, auto n) {
    const f32x16 cos = load(s.cos + i, n), sin = -load(s.sin + i, n);
    if constexpr (neighbours) {
      Neighbours both = load_neighbours(d + 2 * i, n);
      rotate_pair(both.first, both.second, cos, sin);
      store_neighbours(s.d_normed + 2 * i, both.first, both.second, n);
    } else {
      f32x16 a = load(d + i, n), b = load(d + half + i, n);
      rotate_pair(a, b, cos, sin);
      store(s.d_normed + i, a, n), store(s.d_normed + half + i, b, n);
    }
  });
  for_vectors(turned, D, [&](std::int64_t i, auto n) { store(s.d_normed + i, load(d + i, n), n); });
  const float dot = fold(D, [&](std::int64_t i, auto n, f32x16& sum) {
    prefetch(d + ahead + i);
    sum = norm::add_dot(load(s.d_normed + i, n), factor<Offset>(weight + i, n, offset), load(x + i, n), sum);
  });
  backward_norm<Offset>(d, d_weight, x, weight, offset, rstd, dot, D, ahead, s);
}

template <class T>
void backward(const Context& context, const QkNormRopeBackward& p) {
  T* d_qkv = static_cast<T*>(p.d_qkv);
  const T* x = static_cast<const T*>(p.x);
  const RowBlocks blocks(p.M);
  const std::int64_t heads = p.H + p.G, width = (heads + p.G) * p.D;
  auto* memory = reinterpret_cast<float*>(context.workspace.data());
  const std::int64_t turned = turned_features(p);
  auto run_head = p.offset == 0 ? backward_head<false, T> : backward_head<true, T>;
  if (p.neighbours)
    run_head = p.offset == 0 ? backward_part<false, true, T> : backward_part<true, true, T>;
  else if (turned < p.D)
    run_head = p.offset == 0 ? backward_part<false, false, T> : backward_part<true, false, T>;
  parallel_ranges(blocks.count, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t b = first; b < last; ++b) {
      const Scratch s(memory, blocks, b, p.D);
      for (float* sums : {s.d_q_norm, s.d_k_norm}) std::fill_n(sums, RowBlocks::stride(p.D), 0.0f);
      for (std::int64_t m = blocks.begin(b); m < blocks.end(b); ++m) {
        split_pairs(s.cos, s.sin, p.table + position_of(m, p.T, p.document_starts) * turned, turned / 2);
        const std::int64_t ahead = m + 1 < p.M ? width : 0;
        for (std::int64_t h = 0; h < heads; ++h) {
          const auto [weight, at] = head_of<T>(p, h);
          float* d_weight = h < p.H ? s.d_q_norm : s.d_k_norm;
          run_head(d_qkv + m * width + at, d_weight, x + m * width + at, weight, p.offset, p.rstd[m * heads + h], p.D, turned, ahead, s);
        }
      }
    }
  });
  const Scratch first(memory, blocks, 0, p.D);
  add_partial_sums<float>(p.d_q_norm, first.d_q_norm, blocks, p.D);
  add_partial_sums<float>(p.d_k_norm, first.d_k_norm, blocks, p.D);
}

template <class P>
void check(const P& p) {
  TESSERA_REQUIRE(can_turn(p) && p.T > 0 && p.H > 0 && p.G > 0, "qk_norm_rope: D {}, of which {}, T {}, H {}, G {}", p.D, p.rotated, p.T,
                  p.H, p.G);
}

}  // namespace

void qk_norm_rope_forward(const Context&, const QkNormRopeForward& p) {
  if (p.M == 0) return;
  check(p);
  with_float_type(p.dtype, "qk_norm_rope_forward", [&](auto type) { forward<decltype(type)>(p); });
}

void qk_norm_rope_backward(const Context& context, const QkNormRopeBackward& p) {
  if (p.M == 0) return;
  check(p);
  const std::size_t needed = host::qk_norm_rope_backward_workspace_bytes(p);
  TESSERA_REQUIRE(context.workspace.size() >= needed, "qk_norm_rope_backward needs {} bytes of workspace, has {}", needed,
                  context.workspace.size());
  with_float_type(p.dtype, "qk_norm_rope_backward", [&](auto type) { backward<decltype(type)>(context, p); });
}

std::size_t qk_norm_rope_backward_workspace_bytes(const QkNormRopeBackward& p) {
  return static_cast<std::size_t>(Scratch::parts) * RowBlocks(p.M).bytes(p.D);
}

}  // namespace tessera::kernels::host
