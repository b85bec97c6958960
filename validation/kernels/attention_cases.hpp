// Shapes of attention, what it reads, and how near results must be.
#pragma once
#include <fmt/format.h>

#include "kernels/attention/attention.hpp"
#include "validation/kernels/documents.hpp"
#include "validation/kernels/gemm_test_support.hpp"

namespace tessera::kernels::testing {

/// One token, tiles that are full and that are not, one token more; queries that share a key head and that do not; head dims of every
/// kernel; values narrower than keys (of MLA), and wider.
inline std::vector<AttentionShape> attention_cases(DType t) {
  return {{.B = 2, .T = 1, .H = 7, .G = 1, .D = 64, .dtype = t},
          {.B = 2, .T = 77, .H = 4, .G = 4, .D = 16, .dtype = t},
          {.B = 1, .T = 257, .H = 2, .G = 1, .D = 64, .dtype = t},
          {.B = 1, .T = 77, .H = 7, .G = 1, .D = 128, .dtype = t},
          {.B = 1, .T = 200, .H = 2, .G = 2, .D = 96, .dtype = t},
          {.B = 2, .T = 128, .H = 4, .G = 2, .D = 48, .dtype = t},
          {.B = 1, .T = 257, .H = 1, .G = 1, .D = 128, .dtype = t},
          {.B = 1, .T = 130, .H = 2, .G = 1, .D = 192, .dtype = t},
          {.B = 1, .T = 130, .H = 1, .G = 1, .D = 256, .dtype = t},
          {.B = 1, .T = 65, .H = 2, .G = 1, .D = 90, .dtype = t},
          {.B = 2, .T = 67, .H = 3, .G = 1, .D = 6, .dtype = t},
          {.B = 1, .T = 130, .H = 2, .G = 2, .D = 192, .Dv = 128, .dtype = t},
          {.B = 2, .T = 77, .H = 4, .G = 2, .D = 24, .Dv = 16, .dtype = t},
          {.B = 1, .T = 140, .H = 3, .G = 1, .D = 34, .Dv = 90, .dtype = t}};
}

/// Those with documents: the others, and sequences that are longer than the longest document.
inline std::vector<AttentionShape> attention_document_cases(DType t) {
  std::vector<AttentionShape> all = attention_cases(t);
  all.push_back({.B = 2, .T = 400, .H = 2, .G = 1, .D = 64, .dtype = t});
  return all;
}

/// A sequence of documents that are not drawn: some end with a tile of 64 or 128, others inside one; some have one token; blocks of 128
/// tokens leave out whole tiles before their documents and after them.
struct AttentionEdges {
  AttentionShape shape;
  std::vector<std::int32_t> starts;
};
inline std::vector<AttentionEdges> attention_edges(DType t) {
  std::vector<AttentionEdges> all;
  for (std::int64_t D : {64, 96, 128}) {
    all.push_back({{.B = 1, .T = 400, .H = 2, .G = 1, .D = D, .dtype = t}, documents_of({1, 63, 64, 130, 1, 141})});
    all.push_back({{.B = 1, .T = 390, .H = 1, .G = 1, .D = D, .dtype = t}, documents_of({128, 127, 1, 1, 63, 70})});
  }
  return all;
}

/// Windows: of the query's own key alone, up to the edges of tiles, over several of them, and of all keys. Rows with a gap: one that a
/// window reaches over, inside a tile and at its edge, and one that it does not.
inline std::vector<AttentionShape> attention_window_cases(DType t) {
  return {{.B = 1, .T = 400, .H = 2, .G = 1, .D = 64, .dtype = t, .window = 65},
          {.B = 1, .T = 390, .H = 2, .G = 1, .D = 128, .dtype = t, .window = 130},
          {.B = 1, .T = 330, .H = 2, .G = 2, .D = 96, .dtype = t, .window = 64},
          {.B = 2, .T = 200, .H = 4, .G = 2, .D = 48, .dtype = t, .window = 1},
          {.B = 2, .T = 77, .H = 2, .G = 1, .D = 80, .dtype = t, .window = 2},
          {.B = 1, .T = 270, .H = 3, .G = 1, .D = 16, .dtype = t, .window = 63},
          {.B = 1, .T = 260, .H = 1, .G = 1, .D = 192, .dtype = t, .window = 128},
          {.B = 2, .T = 130, .H = 2, .G = 1, .D = 6, .dtype = t, .window = 37},
          {.B = 1, .T = 300, .H = 1, .G = 1, .D = 256, .dtype = t, .window = 200},
          {.B = 1, .T = 270, .H = 2, .G = 1, .D = 96, .Dv = 64, .dtype = t, .window = 63},
          {.B = 1, .T = 257, .H = 7, .G = 1, .D = 64, .dtype = t, .window = 256},
          {.B = 1, .T = 390, .H = 2, .G = 1, .D = 64, .dtype = t, .window = 150, .gap = {195, 60}},
          {.B = 2, .T = 256, .H = 2, .G = 2, .D = 128, .dtype = t, .window = 200, .gap = {128, 70}},
          {.B = 1, .T = 260, .H = 4, .G = 1, .D = 48, .dtype = t, .window = 40, .gap = {130, 520}}};
}
/// Where a row of a sequence with a gap lies in it.
inline std::int64_t place_of(std::int64_t row, const AttentionGap& gap) { return row + (row >= gap.row ? gap.tokens : 0); }
/// The first key that lies at most so many tokens before a query.
inline std::int64_t first_key_within(const AttentionShape& s, std::int64_t query, std::int64_t tokens) {
  std::int64_t key = 0;
  while (place_of(query, s.gap) - place_of(key, s.gap) > tokens) ++key;
  return key;
}
/// As AttentionForward::document_starts, (B, T), those that let each query see what the window does.
inline std::vector<std::int32_t> documents_of_windows(const AttentionShape& s) {
  std::vector<std::int32_t> starts;
  for (std::int64_t i = 0; i < s.B * s.T; ++i)
    starts.push_back(static_cast<std::int32_t>(i % s.T - std::min(s.window - 1, place_of(i % s.T, s.gap))));
  return starts;
}

/// Scales of their own and caps, of scores that the cap bends: of head dims of every kernel, of windows, and both as Gemma 2 has them.
inline std::vector<AttentionShape> attention_score_cases(DType t) {
  return {{.B = 1, .T = 200, .H = 4, .G = 2, .D = 64, .dtype = t, .scale = 1.f / 16},
          {.B = 1, .T = 130, .H = 2, .G = 1, .D = 128, .dtype = t, .scale = 0.5f, .softcap = 2},
          {.B = 1, .T = 257, .H = 2, .G = 1, .D = 64, .dtype = t, .scale = 1, .softcap = 50},
          {.B = 1, .T = 130, .H = 2, .G = 1, .D = 256, .dtype = t, .scale = 1.f / 16, .softcap = 50},
          {.B = 1, .T = 200, .H = 2, .G = 2, .D = 96, .dtype = t, .softcap = 0.5f},
          {.B = 1, .T = 260, .H = 1, .G = 1, .D = 192, .dtype = t, .window = 128, .scale = 0.5f, .softcap = 3},
          {.B = 2, .T = 150, .H = 3, .G = 1, .D = 80, .dtype = t, .window = 65, .scale = 1, .softcap = 2},
          {.B = 1, .T = 300, .H = 4, .G = 2, .D = 40, .dtype = t, .window = 200, .scale = 0.7f, .softcap = 2},
          {.B = 2, .T = 67, .H = 3, .G = 1, .D = 6, .dtype = t, .scale = 3, .softcap = 1.5f},
          {.B = 1, .T = 140, .H = 2, .G = 1, .D = 90, .dtype = t, .softcap = 1},
          {.B = 1, .T = 270, .H = 3, .G = 1, .D = 16, .dtype = t, .window = 63, .scale = 6},
          {.B = 1, .T = 150, .H = 2, .G = 1, .D = 64, .Dv = 32, .dtype = t, .scale = 0.7f, .softcap = 2},
          {.B = 1, .T = 140, .H = 2, .G = 1, .D = 24, .Dv = 40, .dtype = t, .window = 70, .scale = 0.5f},
          {.B = 1, .T = 200, .H = 2, .G = 1, .D = 64, .dtype = t, .window = 90, .scale = 1, .softcap = 2, .gap = {100, 30}}};
}
/// One token, whose log-sum-exp is its score: far below the cap, where a tanh of no small relative error would show.
inline AttentionShape attention_tiny_scores(float scale) {
  return {.B = 2, .T = 1, .H = 3, .G = 1, .D = 16, .scale = scale, .softcap = 50};
}

/// New tokens: groups of one, of what is taken at once on a GPU, and of more.
inline std::vector<AttentionShape> attention_decode_cases(DType t) {
  return {{.B = 2, .H = 4, .G = 4, .D = 64, .dtype = t},
          {.B = 1, .H = 7, .G = 1, .D = 128, .dtype = t},
          {.B = 1, .H = 14, .G = 2, .D = 64, .dtype = t},
          {.B = 1, .H = 10, .G = 2, .D = 96, .dtype = t},
          {.B = 1, .H = 8, .G = 2, .D = 128, .dtype = t},
          {.B = 2, .H = 2, .G = 1, .D = 6, .dtype = t},
          {.B = 1, .H = 2, .G = 1, .D = 16, .dtype = t},
          {.B = 1, .H = 2, .G = 2, .D = 250, .dtype = t},
          {.B = 2, .H = 4, .G = 2, .D = 192, .Dv = 128, .dtype = t},
          {.B = 1, .H = 6, .G = 2, .D = 24, .Dv = 16, .dtype = t},
          {.B = 2, .H = 5, .G = 1, .D = 18, .Dv = 70, .dtype = t, .window = 100},
          {.B = 2, .H = 6, .G = 2, .D = 48, .dtype = t},
          {.B = 1, .H = 4, .G = 2, .D = 64, .dtype = t, .window = 1},
          {.B = 2, .H = 5, .G = 1, .D = 96, .dtype = t, .window = 64},
          {.B = 1, .H = 4, .G = 1, .D = 32, .dtype = t, .window = 100},
          {.B = 1, .H = 2, .G = 2, .D = 6, .dtype = t, .window = 129},
          {.B = 1, .H = 4, .G = 2, .D = 64, .dtype = t, .scale = 1.f / 16},
          {.B = 1, .H = 8, .G = 2, .D = 256, .dtype = t, .scale = 1.f / 16, .softcap = 2},
          {.B = 2, .H = 5, .G = 1, .D = 40, .dtype = t, .window = 70, .scale = 1, .softcap = 2},
          {.B = 1, .H = 2, .G = 1, .D = 6, .dtype = t, .scale = 4, .softcap = 50}};
}
/// At the first and the last token of a piece, which is 64 tokens, or 128 of heads of up to eight elements.
inline const std::int64_t attention_decode_positions[] = {0, 1, 62, 63, 64, 127, 128, 300};

inline std::string name_of(const AttentionShape& s) {
  return fmt::format("B{} T{} H{} G{} D{} Dv{} window {} scale {} softcap {} gap {} before {} {}", s.B, s.T, s.H, s.G, s.D, s.value_dim(),
                     s.window, s.scale, s.softcap, s.gap.tokens, s.gap.row, tessera::name_of(s.dtype));
}

/// What a product of a query and a key counts as, in doubles, and the gradient of the product by it.
struct AttentionScore {
  double value, slope;
  AttentionScore(const AttentionShape& s, double product) {
    slope = s.scale != 0 ? static_cast<double>(s.scale) : 1 / std::sqrt(static_cast<double>(s.D));
    value = product * slope;
    if (s.softcap == 0) return;
    const double bent = std::tanh(value / static_cast<double>(s.softcap));
    value = static_cast<double>(s.softcap) * bent;
    slope *= 1 - bent * bent;
  }
};

struct AttentionOperands {
  Tensor qkv, d_out;
  std::vector<std::int32_t> starts;  ///< of documents, (B, T), or none
  explicit AttentionOperands(const AttentionShape& s, double size = 1)
      : qkv(s.B * s.T * s.qkv_width(), s.dtype), d_out(s.B * s.T * s.out_width(), s.dtype) {
    qkv.randomize(1, size);
    d_out.randomize(2);
  }
  const std::int32_t* document_starts() const { return starts.empty() ? nullptr : starts.data(); }
};

/// Results in doubles.
struct AttentionValues {
  std::vector<double> out, lse, d_qkv;
  std::vector<double> d_sinks = {}, sink_terms = {};  ///< where there are sinks; the sums of sizes of d_sinks' terms
};

/// d_qkv has three parts of different size: each is compared by itself.
inline std::vector<double> part_of(const std::vector<double>& rows, const AttentionShape& s, int part) {
  const std::int64_t stride = s.qkv_width(), begin = part == 0 ? 0 : (s.H + (part - 1) * s.G) * s.D;
  const std::int64_t width = part == 0 ? s.H * s.D : s.G * (part == 1 ? s.D : s.value_dim());
  std::vector<double> r;
  for (std::int64_t i = 0; i < s.B * s.T; ++i)
    r.insert(r.end(), rows.begin() + i * stride + begin, rows.begin() + i * stride + begin + width);
  return r;
}

inline void expect_close(const AttentionShape& s, const AttentionValues& got, const AttentionValues& want) {
  SCOPED_TRACE(name_of(s));
  EXPECT_LT(relative_error(got.out, want.out), tolerance(s.dtype));
  EXPECT_LT(relative_error(got.lse, want.lse), 1e-5);
  for (int part = 0; part < 3; ++part) {
    if ((s.T == 1 || s.window == 1) && part < 2) {  // a token attends to itself alone: dQ and dK are zero but for rounding
      for (double d : part_of(got.d_qkv, s, part)) EXPECT_NEAR(d, 0, s.dtype == DType::f32 ? 1e-5 : 1e-1);
    } else {
      EXPECT_LT(relative_error(part_of(got.d_qkv, s, part), part_of(want.d_qkv, s, part)), tolerance(s.dtype)) << "qkv"[part];
    }
  }
}

}  // namespace tessera::kernels::testing
