// Blocks of ring attention by definition, and shapes of them.
#pragma once
#include <algorithm>
#include <optional>

#include "kernels/ring_attention/ring_attention.hpp"
#include "validation/kernels/attention_cases.hpp"

namespace tessera::kernels::testing {

/// Of this rank's packed rows, and of packed keys and values of another one.
inline Qkv block_rows(const void* qkv, const void* kv, const AttentionShape& s) { return packed_kv(packed_qkv(qkv, s).q, kv, s); }
inline QkvGradient block_gradients(void* d_q, void* d_kv, const AttentionShape& s) {
  return packed_kv(HeadRows<void>{d_q, s.H * s.D}, d_kv, s);
}

/// What a block reads and writes; outputs are poisoned.
struct BlockTensors {
  Tensor qkv, kv, d_out, whole_out, whole_lse;  ///< whole_*: what the backward pass is told of the row over all blocks
  Tensor out, lse, d_q, d_kv;
  std::vector<std::int32_t> starts;  ///< of documents, (B, T), or none
  explicit BlockTensors(const AttentionShape& s)
      : qkv(s.B * s.T * s.qkv_width(), s.dtype),
        kv(s.B * s.T * s.kv_width(), s.dtype),
        d_out(s.B * s.T * s.out_width(), s.dtype),
        whole_out(d_out.size(), s.dtype),
        whole_lse(s.B * s.H * s.T, DType::f32),
        out(d_out.size(), s.dtype),
        lse(whole_lse.size(), DType::f32),
        d_q(s.B * s.T * s.H * s.D, s.dtype),
        d_kv(kv.size(), s.dtype) {
    qkv.randomize(1, 2);
    kv.randomize(2, 2);
    d_out.randomize(3);
    whole_out.randomize(4);
  }
  /// As if other blocks had as much weight as this one, whose rows' lse is there.
  void set_whole_lse() {
    for (std::int64_t i = 0; i < lse.size(); ++i) whole_lse.set(i, std::isinf(lse.get(i)) ? 0.7 : lse.get(i) + 0.7);
  }
  /// Drawn over the sequence whose first token is the block's key row 0.
  void draw_documents(const AttentionBlock& b, unsigned seed) {
    const AttentionShape& s = b.shape;
    const std::int64_t length = b.ahead + place_of(s.T - 1, s.gap) + 1;
    const std::vector<std::int32_t> documents = random_documents(s.B, length, seed);
    for (std::int64_t i = 0; i < s.B * s.T; ++i) {
      const std::int64_t place = std::max<std::int64_t>(0, b.ahead + place_of(i % s.T, s.gap));
      const std::int64_t before = place - documents[static_cast<std::size_t>(i / s.T * length + place)];
      starts.push_back(static_cast<std::int32_t>(i % s.T - before));
    }
  }
  const std::int32_t* document_starts() const { return starts.empty() ? nullptr : starts.data(); }
  /// Scores of about -size^2 / sqrt(D).
  void set_low_scores(const AttentionShape& s, double size) {
    for (std::int64_t row = 0; row < s.B * s.T; ++row) {
      qkv.set(row * s.qkv_width(), size);
      kv.set(row * s.kv_width(), -size);
    }
  }
  AttentionBlockForward forward(const AttentionBlock& b) {
    return {.out = out.data(),
            .lse = lse.as<float>(),
            .qkv = block_rows(qkv.data(), kv.data(), b.shape),
            .block = b,
            .document_starts = document_starts()};
  }
  AttentionBlockBackward backward(const AttentionBlock& b) {
    return {.d_qkv = block_gradients(d_q.data(), d_kv.data(), b.shape),
            .d_out = d_out.data(),
            .qkv = block_rows(qkv.data(), kv.data(), b.shape),
            .out = whole_out.data(),
            .lse = whole_lse.as<float>(),
            .block = b,
            .document_starts = document_starts()};
  }
};

struct BlockReference {
  std::vector<double> out, lse, d_q, d_kv;  ///< NaN where nothing is to be written
};

/// In doubles, straight from the definition.
inline BlockReference by_definition(const AttentionBlock& b, const BlockTensors& x) {
  const AttentionShape& s = b.shape;
  const std::int64_t Dv = s.value_dim();
  const auto z = [](std::int64_t i) { return static_cast<std::size_t>(i); };
  const auto nan = [&](const Tensor& t) { return std::vector<double>(z(t.size()), std::nan("")); };
  BlockReference r{nan(x.out), nan(x.lse), nan(x.d_q), nan(x.d_kv)};
  const auto key_row = [&](std::int64_t batch, std::int64_t i) { return (batch * s.T + b.keys.first + i) * s.kv_width(); };
  for (std::int64_t batch = 0; batch < s.B; ++batch)
    for (std::int64_t i = 0; i < b.keys.count; ++i) std::fill_n(r.d_kv.begin() + key_row(batch, i), s.kv_width(), 0.0);
  for (std::int64_t batch = 0; batch < s.B; ++batch)
    for (std::int64_t h = 0; h < s.H; ++h)
      for (std::int64_t t = b.queries.first; t < b.queries.first + b.queries.count; ++t) {
        const std::int64_t row = batch * s.T + t, q = row * s.qkv_width() + h * s.D, d_q = (row * s.H + h) * s.D,
                           out = (row * s.H + h) * Dv;
        const std::int64_t term = (batch * s.H + h) * s.T + t, group = h / (s.H / s.G), g = group * s.D, to_value = s.G * s.D + group * Dv;
        std::vector<double> score(z(b.keys.count)), slope(z(b.keys.count));
        double most = -INFINITY, total = 0, delta = 0;
        const std::int64_t place = b.ahead + place_of(t, s.gap);
        for (std::int64_t i = 0; i < b.keys.count; ++i) {
          score[z(i)] = 0;
          const std::int64_t behind = place - place_of(b.keys.first + i, b.keys_gap);
          if ((s.window > 0 && behind >= s.window) || (!x.starts.empty() && behind > t - x.starts[z(row)])) {
            score[z(i)] = -INFINITY;
            continue;
          }
          for (std::int64_t d = 0; d < s.D; ++d) score[z(i)] += x.qkv.get(q + d) * x.kv.get(key_row(batch, i) + g + d);
          const AttentionScore of_key(s, score[z(i)]);
          score[z(i)] = of_key.value, slope[z(i)] = of_key.slope;
          most = std::max(most, score[z(i)]);
        }
        for (std::int64_t d = 0; d < s.D; ++d) r.d_q[z(d_q + d)] = 0;
        for (std::int64_t d = 0; d < Dv; ++d) {
          r.out[z(out + d)] = 0;
          delta += x.d_out.get(out + d) * x.whole_out.get(out + d);
        }
        r.lse[z(term)] = most;
        if (std::isinf(most)) continue;  // it sees no key
        for (double v : score) total += std::exp(v - most);
        r.lse[z(term)] += std::log(total);
        for (std::int64_t i = 0; i < b.keys.count; ++i) {
          const std::int64_t k = key_row(batch, i) + g, v = key_row(batch, i) + to_value;
          const double p = std::exp(score[z(i)] - r.lse[z(term)]), whole_p = std::exp(score[z(i)] - x.whole_lse.get(term));
          double d_p = 0;
          for (std::int64_t d = 0; d < Dv; ++d) d_p += x.d_out.get(out + d) * x.kv.get(v + d);
          const double d_score = whole_p * (d_p - delta) * slope[z(i)];
          for (std::int64_t d = 0; d < s.D; ++d) {
            r.d_q[z(d_q + d)] += d_score * x.kv.get(k + d);
            r.d_kv[z(k + d)] += d_score * x.qkv.get(q + d);
          }
          for (std::int64_t d = 0; d < Dv; ++d) {
            r.out[z(out + d)] += p * x.kv.get(v + d);
            r.d_kv[z(v + d)] += whole_p * x.d_out.get(out + d);
          }
        }
      }
  return r;
}

/// The distance of what is to be written, and infinity where anything else was written, or what is to be was not.
inline double written_error(const Tensor& got, const std::vector<double>& want) {
  std::vector<double> a, b;
  for (std::int64_t i = 0; i < got.size(); ++i) {
    const double x = got.get(i), y = want[static_cast<std::size_t>(i)];
    if (std::isnan(x) != std::isnan(y) || ((std::isinf(x) || std::isinf(y)) && x != y)) return INFINITY;
    if (std::isfinite(x)) a.push_back(x), b.push_back(y);
  }
  return relative_error(a, b);
}

/// Blocks with the first half of the keys for all queries, with all keys for the second half of the queries, and with rows anywhere. Of
/// each tile that the kernels have, whole ones, less than one, and a few rows or one more; grouped queries; head dims of every kernel.
inline std::vector<AttentionBlock> ring_attention_cases(DType t) {
  const auto lower = [&](std::int64_t B, std::int64_t T, std::int64_t H, std::int64_t G, std::int64_t D) {
    return AttentionBlock{{.B = B, .T = T, .H = H, .G = G, .D = D, .dtype = t}, {0, T}, {0, T / 2}};
  };
  const auto higher = [&](std::int64_t B, std::int64_t T, std::int64_t H, std::int64_t G, std::int64_t D) {
    return AttentionBlock{{.B = B, .T = T, .H = H, .G = G, .D = D, .dtype = t}, {T / 2, T - T / 2}, {0, T}};
  };
  return {lower(1, 2, 2, 1, 16),
          higher(1, 2, 2, 1, 16),
          lower(2, 74, 4, 2, 48),
          higher(2, 74, 4, 2, 48),
          lower(1, 256, 2, 2, 64),
          higher(1, 258, 4, 1, 64),
          lower(1, 130, 7, 1, 128),
          higher(1, 134, 2, 1, 128),
          lower(1, 200, 2, 1, 96),
          higher(1, 202, 2, 2, 96),
          lower(1, 130, 2, 1, 192),
          higher(1, 70, 1, 1, 256),
          lower(2, 66, 3, 1, 6),
          higher(1, 66, 2, 1, 90),
          higher(3, 130, 8, 8, 64),
          AttentionBlock{{.B = 2, .T = 90, .H = 2, .G = 1, .D = 32, .dtype = t}, {3, 71}, {11, 67}},
          AttentionBlock{{.B = 1, .T = 134, .H = 2, .G = 2, .D = 192, .Dv = 128, .dtype = t}, {0, 134}, {0, 67}},
          AttentionBlock{{.B = 2, .T = 66, .H = 4, .G = 2, .D = 24, .Dv = 16, .dtype = t}, {33, 33}, {0, 66}},
          AttentionBlock{{.B = 1, .T = 90, .H = 2, .G = 1, .D = 18, .Dv = 34, .dtype = t}, {3, 71}, {11, 67}}};
}

/// Blocks of scores with a scale of their own, and with a cap.
inline std::vector<AttentionBlock> ring_attention_score_cases(DType t) {
  return {{{.B = 1, .T = 130, .H = 4, .G = 2, .D = 64, .dtype = t, .scale = 0.25f, .softcap = 2}, {65, 65}, {0, 130}},
          {{.B = 1, .T = 90, .H = 2, .G = 1, .D = 128, .dtype = t, .softcap = 2}, {3, 71}, {11, 67}},
          {{.B = 1, .T = 70, .H = 2, .G = 1, .D = 40, .Dv = 16, .dtype = t, .softcap = 2}, {0, 70}, {0, 35}},
          {{.B = 1, .T = 70, .H = 2, .G = 1, .D = 192, .dtype = t, .scale = 1.f / 16, .softcap = 50}, {35, 35}, {0, 70}},
          {{.B = 2, .T = 66, .H = 3, .G = 1, .D = 6, .dtype = t, .scale = 1.3f}, {0, 66}, {0, 33}},
          {{.B = 1, .T = 134, .H = 2, .G = 2, .D = 80, .dtype = t, .scale = 0.3f, .softcap = 3}, {0, 134}, {0, 67}},
          {{.B = 2, .T = 66, .H = 2, .G = 1, .D = 16, .dtype = t, .scale = 0.5f, .softcap = 1}, {0, 66}, {0, 33}}};
}

/// Of a sequence of 2 N chunks of `half` tokens over N ranks, of which rank r has chunk r and chunk 2 N - 1 - r.
struct RingPlaces {
  std::int64_t N, half;
  /// Where row t of rank r lies in the sequence.
  std::int64_t of(std::int64_t r, std::int64_t t) const { return t < half ? r * half + t : (2 * N - 1 - r) * half + t - half; }
  AttentionGap gap(std::int64_t r) const { return {half, of(r, half) - of(r, half - 1) - 1}; }
  /// What queries of `rank` see of the keys of `other`, if anything, token by token; s.window as it is. 0: no window.
  std::optional<AttentionBlock> block(AttentionShape s, std::int64_t rank, std::int64_t other) const {
    s.T = 2 * half, s.gap = gap(rank);
    const auto sees = [&](std::int64_t query, std::int64_t key) {
      const std::int64_t behind = of(rank, query) - of(other, key);
      return behind >= 0 && (s.window == 0 || behind < s.window);
    };
    AttentionBlock b{s, {}, {}, of(rank, 0) - of(other, 0), gap(other)};
    for (std::int64_t query = s.T - 1; query >= 0; --query)
      for (std::int64_t key = s.T - 1; key >= 0; --key)
        if (sees(query, key)) b.queries.first = query, b.keys.first = key;
    for (std::int64_t query = b.queries.first; query < s.T; ++query)
      for (std::int64_t key = b.keys.first; key < s.T; ++key)
        if (sees(query, key)) b.queries.count = query + 1 - b.queries.first, b.keys.count = std::max(b.keys.count, key + 1 - b.keys.first);
    return b.queries.count > 0 ? std::optional(b) : std::nullopt;
  }
};

/// Blocks with a window, of ranks before and behind: of chunks and tiles of any size, of queries or keys of one chunk and of both, of one
/// pair, and of all but one.
inline std::vector<AttentionBlock> ring_attention_window_cases(DType t) {
  struct Case {
    RingPlaces places;
    std::int64_t rank, other;
    AttentionShape shape;
  };
  const Case cases[] = {
      {{2, 130}, 1, 0, {.B = 1, .H = 2, .G = 1, .D = 64, .window = 100}},
      {{2, 130}, 0, 1, {.B = 1, .H = 4, .G = 2, .D = 64, .window = 200}},
      {{2, 100}, 1, 0, {.B = 2, .H = 2, .G = 1, .D = 128, .window = 250}},
      {{3, 70}, 0, 2, {.B = 1, .H = 2, .G = 2, .D = 96, .window = 190}},
      {{3, 70}, 2, 1, {.B = 1, .H = 3, .G = 1, .D = 48, .window = 2}},
      {{2, 70}, 0, 1, {.B = 1, .H = 2, .G = 1, .D = 16, .window = 279}},
      {{2, 65}, 0, 1, {.B = 2, .H = 2, .G = 1, .D = 6, .window = 66}},
      {{2, 70}, 1, 0, {.B = 1, .H = 1, .G = 1, .D = 192, .window = 129}},
      {{2, 70}, 1, 0, {.B = 1, .H = 2, .G = 1, .D = 96, .Dv = 64, .window = 129}},
      {{3, 33}, 1, 0, {.B = 1, .H = 2, .G = 1, .D = 256, .window = 131}},
      {{2, 130}, 1, 0, {.B = 1, .H = 4, .G = 1, .D = 80, .window = 310, .scale = 1, .softcap = 2}},
      {{2, 66}, 0, 1, {.B = 1, .H = 2, .G = 1, .D = 128, .window = 40, .softcap = 1}},
  };
  std::vector<AttentionBlock> all;
  for (const Case& c : cases) {
    AttentionShape s = c.shape;
    s.dtype = t;
    all.push_back(c.places.block(s, c.rank, c.other).value());
  }
  return all;
}

/// Blocks for documents: of all of those above, the keys of whole ones lying before the queries.
inline std::vector<AttentionBlock> ring_attention_document_cases(DType t) {
  std::vector<AttentionBlock> all = ring_attention_cases(t);
  for (const AttentionBlock& b : ring_attention_score_cases(t)) all.push_back(b);
  for (AttentionBlock& b : all) b.ahead = b.keys.first + b.keys.count - b.queries.first;
  for (const AttentionBlock& b : ring_attention_window_cases(t)) all.push_back(b);
  return all;
}

inline std::string name_of(const AttentionBlock& b) {
  return fmt::format("{}, {} queries from {}, {} keys from {}, {} ahead", name_of(b.shape), b.queries.count, b.queries.first, b.keys.count,
                     b.keys.first, b.ahead);
}

}  // namespace tessera::kernels::testing
