// Blocks of attention and what merges them, by definition and as a whole: a sequence over several ranks must come out as on one.
#include <fmt/format.h>

#include "base/hash.hpp"
#include "validation/kernels/ring_attention_cases.hpp"
#include "validation/unit/sample.hpp"

namespace tessera::kernels::ring_attention_test {
namespace {
using namespace testing;

void run_block(const AttentionBlock& b, BlockTensors& x) {
  Workspace forward(attention_block_forward_workspace_bytes(b)), backward(attention_block_backward_workspace_bytes(b));
  attention_block_forward(forward.context(), x.forward(b));
  x.set_whole_lse();
  attention_block_backward(backward.context(), x.backward(b));
  EXPECT_TRUE(forward.intact() && backward.intact());
}

void expect_match_with_fp64(const AttentionBlock& b, BlockTensors& x) {
  SCOPED_TRACE(name_of(b));
  const double allowed = tolerance(b.shape.dtype);
  run_block(b, x);
  const BlockReference want = by_definition(b, x);
  EXPECT_LT(written_error(x.out, want.out), allowed);
  EXPECT_LT(written_error(x.lse, want.lse), 1e-5);
  EXPECT_LT(written_error(x.d_q, want.d_q), allowed);
  EXPECT_LT(written_error(x.d_kv, want.d_kv), allowed);
}

void expect_match_with_fp64(const AttentionBlock& b) {
  BlockTensors x(b.shape);
  expect_match_with_fp64(b, x);
}

TEST(AttentionBlocks, MatchFp64) {
  for (DType t : {DType::f32, DType::bf16, DType::f16})
    for (const AttentionBlock& b : ring_attention_cases(t)) expect_match_with_fp64(b);
}

TEST(AttentionBlocks, ScalesAndCapsMatchFp64) {
  for (DType t : {DType::f32, DType::bf16, DType::f16})
    for (const AttentionBlock& b : ring_attention_score_cases(t)) expect_match_with_fp64(b);
}

TEST(AttentionBlocks, WindowsMatchFp64) {
  test::Sample sample;
  for (DType t : {DType::f32, DType::bf16, DType::f16})
    for (const AttentionBlock& b : sample.some(ring_attention_window_cases(t), 5)) expect_match_with_fp64(b);
}

TEST(AttentionBlocks, DocumentsMatchFp64) {
  test::Sample sample;
  for (DType t : {DType::f32, DType::bf16, DType::f16})
    for (const AttentionBlock& b : sample.some(ring_attention_document_cases(t), 10)) {
      BlockTensors x(b.shape);
      x.draw_documents(b, 5);
      expect_match_with_fp64(b, x);
    }
}

// Each query's document begins with it: what the block gives is nothing, and other blocks' rows stay as they are when it joins them.
TEST(AttentionBlocks, QueriesThatSeeNoKeyAddNothing) {
  for (DType t : {DType::f32, DType::bf16, DType::f16})
    for (const std::int64_t D : {16, 64, 192}) {
      const AttentionShape s{.B = 2, .T = 140, .H = 2, .G = 1, .D = D, .dtype = t};
      const AttentionBlock b{s, {0, 140}, {0, 70}, 140};
      BlockTensors x(s);
      for (std::int64_t i = 0; i < s.B * s.T; ++i) x.starts.push_back(static_cast<std::int32_t>(i % s.T));
      run_block(b, x);
      Tensor sum(x.out.size(), DType::f32), lse(x.lse.size(), DType::f32);
      sum.randomize(6), lse.randomize(7, 30);
      const std::vector<double> sum_before = sum.doubles(), lse_before = lse.doubles();
      merge_block({}, {.sum = sum.as<float>(),
                       .lse = lse.as<float>(),
                       .block_out = x.out.data(),
                       .block_lse = x.lse.as<float>(),
                       .queries = b.queries,
                       .shape = s});
      EXPECT_EQ(sum.doubles(), sum_before);
      EXPECT_EQ(lse.doubles(), lse_before);
      for (const Tensor* zero : {&x.out, &x.d_q})
        for (const double v : zero->doubles()) ASSERT_EQ(v, 0);
      for (std::int64_t row = 0; row < s.B * s.T; ++row)
        for (std::int64_t i = 0; i < 2 * D; ++i) ASSERT_EQ(std::isnan(x.d_kv.get(row * 2 * D + i)), row % s.T >= 70) << row;
      for (std::int64_t i = 0; i < x.lse.size(); ++i) ASSERT_EQ(x.lse.get(i), -INFINITY);
    }
}

// Rows of keys that products compute beside those that there are have scores of 0: far above those here. With the first of these sizes
// their powers would overflow in the backward pass.
TEST(AttentionBlocks, ScoresFarBelowZero) {
  for (const float softcap : {0.f, 200.f})
    for (const double size : {19.4, 40.0}) {
      const AttentionBlock b{{.B = 1, .T = 66, .H = 1, .G = 1, .D = 16, .softcap = softcap}, {0, 66}, {0, 33}};
      BlockTensors x(b.shape);
      x.set_low_scores(b.shape, size);
      run_block(b, x);
      const BlockReference want = by_definition(b, x);
      EXPECT_LT(want.lse[0], -80);
      EXPECT_LT(written_error(x.out, want.out), 1e-4);
      EXPECT_LT(written_error(x.d_q, want.d_q), 1e-3);
      EXPECT_LT(written_error(x.d_kv, want.d_kv), 1e-3);
    }
}

TEST(AttentionBlocks, NanIsNotSwallowed) {
  const AttentionBlock b{{.B = 1, .T = 100, .H = 1, .G = 1, .D = 16}, {0, 100}, {0, 50}};
  for (const bool in_query : {false, true}) {
    BlockTensors x(b.shape);
    in_query ? x.qkv.set(20 * 48 + 3, std::nan("")) : x.kv.set(30 * 32 + 3, std::nan(""));
    Workspace w(attention_block_forward_workspace_bytes(b));
    attention_block_forward(w.context(), x.forward(b));
    for (std::int64_t t = 0; t < 100; ++t) EXPECT_EQ(std::isnan(x.out.get(t * 16)), !in_query || t == 20) << t;
  }
}

TEST(AttentionBlocks, RowsThatAreNotThereAreRefused) {
  const AttentionShape s{.B = 1, .T = 8, .H = 2, .G = 1, .D = 8};
  // Of 8 keys right before the queries the first query sees the last four in a window of five, and the fourth the last one alone.
  const auto windowed = [&](AttentionRows queries, AttentionRows keys) {
    AttentionBlock b{s, queries, keys, 8};
    b.shape.window = 5;
    return b;
  };
  EXPECT_NO_THROW(attention_block_backward_workspace_bytes(windowed({0, 4}, {4, 4}), Backend::host));
  for (const AttentionBlock& b : {AttentionBlock{s, {4, 5}, {0, 8}}, AttentionBlock{s, {0, 8}, {0, 0}}, AttentionBlock{s, {0, 8}, {-1, 4}},
                                  AttentionBlock{s, {0, 0}, {0, 8}}, windowed({0, 5}, {4, 4}), windowed({0, 4}, {3, 5})}) {
    EXPECT_ANY_THROW(attention_block_forward({}, {.block = b}));
    for (const Backend backend : {Backend::host, Backend::cuda}) EXPECT_ANY_THROW(attention_block_backward_workspace_bytes(b, backend));
  }
  EXPECT_ANY_THROW(merge_block({}, {.queries = {4, 5}, .shape = s}));
  EXPECT_ANY_THROW(add_block_gradient({}, {.B = 1, .T = 8, .W = 2, .rows = {4, 5}}));
}

// Blocks of any weight: both alike, one that drowns the other, and one that is nothing beside the other.
TEST(MergeBlock, MatchesFp64) {
  for (DType t : {DType::f32, DType::bf16, DType::f16}) {
    const AttentionShape s{.B = 2, .T = 45, .H = 19, .G = 1, .D = 8, .Dv = 22, .dtype = t};
    const AttentionRows rows{.first = 5, .count = 37};
    Tensor sum(s.B * s.T * s.out_width(), DType::f32), lse(s.B * s.H * s.T, DType::f32), out(sum.size(), t),
        block_lse(lse.size(), DType::f32);
    sum.randomize(1), out.randomize(2), lse.randomize(3, 100), block_lse.randomize(4, 100);
    for (std::int64_t i = 0; i < lse.size(); i += 3) block_lse.set(i, lse.get(i) + 2 * out.get(i));
    std::vector<double> want_sum = sum.doubles(), want_lse = lse.doubles();
    for (std::int64_t i = 0; i < lse.size(); ++i) {
      const std::int64_t batch = i / s.T / s.H, head = i / s.T % s.H, row = i % s.T;
      if (row < rows.first || row >= rows.first + rows.count) continue;
      const double a = lse.get(i), b = block_lse.get(i), most = std::max(a, b),
                   merged = most + std::log(std::exp(a - most) + std::exp(b - most));
      want_lse[static_cast<std::size_t>(i)] = merged;
      for (std::int64_t d = 0; d < s.Dv; ++d) {
        const std::int64_t at = ((batch * s.T + row) * s.H + head) * s.Dv + d;
        want_sum[static_cast<std::size_t>(at)] = sum.get(at) * std::exp(a - merged) + out.get(at) * std::exp(b - merged);
      }
    }
    merge_block({}, {.sum = sum.as<float>(),
                     .lse = lse.as<float>(),
                     .block_out = out.data(),
                     .block_lse = block_lse.as<float>(),
                     .queries = rows,
                     .shape = s});
    EXPECT_LT(relative_error(sum.doubles(), want_sum), 1e-6);
    EXPECT_LT(relative_error(lse.doubles(), want_lse), 1e-6);
  }
}

// A sequence of 2 N chunks of `half` tokens over N ranks (RingPlaces).
struct RingCase {
  std::int64_t N, half, B, H, G, D, window = 0;
  float softcap = 0;
  std::int64_t Dv = 0;
  RingPlaces places() const { return {N, half}; }
};
const RingCase rings[] = {{2, 1, 1, 2, 1, 16},           {2, 37, 1, 4, 2, 48},   {3, 70, 2, 2, 1, 16},
                          {4, 33, 1, 3, 3, 6},           {2, 64, 2, 6, 3, 64},   {3, 96, 1, 8, 2, 24},
                          {2, 67, 1, 4, 1, 128},         {4, 20, 2, 12, 12, 64}, {2, 67, 1, 4, 4, 192, 0, 0, 128},
                          {3, 20, 2, 4, 2, 24, 0, 0, 16}};
// A query's own key; shorter than a chunk and a token longer; over several chunks, and a token less than all.
const RingCase windowed_rings[] = {{3, 20, 1, 2, 1, 16, 1},        {3, 70, 1, 2, 1, 16, 2},         {4, 33, 2, 4, 2, 6, 20},
                                   {4, 20, 1, 2, 2, 64, 21},       {4, 20, 1, 4, 2, 48, 50, 2.f},   {5, 24, 1, 2, 1, 32, 73},
                                   {2, 70, 1, 4, 1, 64, 100},      {3, 66, 2, 2, 1, 128, 250, 3.f}, {2, 37, 1, 4, 2, 16, 147},
                                   {3, 20, 1, 4, 2, 24, 30, 0, 40}};

AttentionShape shape_of(const RingCase& c, std::int64_t T, DType t) {
  return {.B = c.B, .T = T, .H = c.H, .G = c.G, .D = c.D, .Dv = c.Dv, .dtype = t, .window = c.window, .softcap = c.softcap};
}

/// One rank's operands and what it sums.
struct Rank {
  Tensor qkv, d_out, kv, out, lse, d_qkv;  // of step 0, and at the end of all
  Tensor sum, block_out, block_lse, block_d_q, block_d_kv;
  Tensor d_q, d_kv, far_d_kv;        // far: what other ranks give
  std::vector<std::int32_t> starts;  // of documents
  const std::int32_t* document_starts() const { return starts.empty() ? nullptr : starts.data(); }
  bool far_begun = false;
  explicit Rank(const AttentionShape& s)
      : qkv(s.B * s.T * s.qkv_width(), s.dtype),
        d_out(s.B * s.T * s.out_width(), s.dtype),
        kv(s.B * s.T * s.kv_width(), s.dtype),
        out(d_out.size(), s.dtype),
        lse(s.B * s.H * s.T, DType::f32),
        d_qkv(qkv.size(), s.dtype),
        sum(d_out.size(), DType::f32),
        block_out(d_out.size(), s.dtype),
        block_lse(lse.size(), DType::f32),
        block_d_q(s.B * s.T * s.H * s.D, s.dtype),
        block_d_kv(kv.size(), s.dtype),
        d_q(block_d_q.size(), DType::f32),
        d_kv(kv.size(), DType::f32),
        far_d_kv(kv.size(), DType::f32) {}
};

/// Rows of `width` from the whole sequences to a rank's, or back.
void move_rows(const RingCase& c, std::int64_t r, Tensor& whole, Tensor& part, std::int64_t width, bool to_part) {
  for (std::int64_t b = 0; b < c.B; ++b)
    for (std::int64_t t = 0; t < 2 * c.half; ++t)
      for (std::int64_t i = 0; i < width; ++i) {
        const std::int64_t in_whole = (b * 2 * c.N * c.half + c.places().of(r, t)) * width + i, in_part = (b * 2 * c.half + t) * width + i;
        to_part ? part.set(in_part, whole.get(in_whole)) : whole.set(in_whole, part.get(in_part));
      }
}

void forward_ring(const RingPlaces& places, AttentionShape s, std::vector<Rank>& ranks) {
  Workspace w(attention_forward_workspace_bytes(s));
  for (Rank& r : ranks) {
    s.gap = places.gap(&r - ranks.data());
    pack_keys({}, r.kv.data(), packed_qkv(r.qkv.data(), s), s);
    attention_forward(w.context(), {.out = r.out.data(),
                                    .lse = r.lse.as<float>(),
                                    .qkv = packed_qkv(r.qkv.data(), s),
                                    .shape = s,
                                    .document_starts = r.document_starts()});
    begin_merge({}, r.sum.as<float>(), r.out.data(), s);
  }
  const auto N = static_cast<std::int64_t>(ranks.size());
  for (std::int64_t step = 1; step < N; ++step)
    for (std::int64_t i = 0; i < N; ++i) {
      Rank &r = ranks[static_cast<std::size_t>(i)], &from = ranks[static_cast<std::size_t>((i - step + N) % N)];
      const std::optional<AttentionBlock> seen = places.block(s, i, (i - step + N) % N);
      if (!seen) continue;
      const AttentionBlock& b = *seen;
      Workspace block_workspace(attention_block_forward_workspace_bytes(b));
      r.block_out.poison();
      attention_block_forward(block_workspace.context(), {.out = r.block_out.data(),
                                                          .lse = r.block_lse.as<float>(),
                                                          .qkv = block_rows(r.qkv.data(), from.kv.data(), s),
                                                          .block = b,
                                                          .document_starts = r.document_starts()});
      merge_block({}, {.sum = r.sum.as<float>(),
                       .lse = r.lse.as<float>(),
                       .block_out = r.block_out.data(),
                       .block_lse = r.block_lse.as<float>(),
                       .queries = b.queries,
                       .shape = s});
    }
  for (Rank& r : ranks) end_merge({}, r.out.data(), r.sum.as<float>(), s);
}

void backward_ring(const RingPlaces& places, AttentionShape s, std::vector<Rank>& ranks) {
  Workspace w(attention_backward_workspace_bytes(s));
  const std::int64_t queries = s.H * s.D, keys = s.kv_width();
  for (Rank& r : ranks) {
    s.gap = places.gap(&r - ranks.data());
    attention_backward(w.context(), {.d_qkv = packed_qkv(r.d_qkv.data(), s),
                                     .d_out = r.d_out.data(),
                                     .qkv = packed_qkv(r.qkv.data(), s),
                                     .out = r.out.data(),
                                     .lse = r.lse.as<float>(),
                                     .shape = s,
                                     .document_starts = r.document_starts()});
    begin_gradients({}, {.d_q = r.d_q.as<float>(), .d_kv = r.d_kv.as<float>(), .d_qkv = packed_qkv(r.d_qkv.data(), s), .shape = s});
  }
  const auto N = static_cast<std::int64_t>(ranks.size());
  for (std::int64_t step = 1; step < N; ++step)
    for (std::int64_t i = 0; i < N; ++i) {
      Rank &r = ranks[static_cast<std::size_t>(i)], &from = ranks[static_cast<std::size_t>((i - step + N) % N)];
      const std::optional<AttentionBlock> seen = places.block(s, i, (i - step + N) % N);
      if (!seen) continue;
      const AttentionBlock& b = *seen;
      Workspace block_workspace(attention_block_backward_workspace_bytes(b));
      r.block_d_q.poison(), r.block_d_kv.poison();
      attention_block_backward(block_workspace.context(), {.d_qkv = block_gradients(r.block_d_q.data(), r.block_d_kv.data(), s),
                                                           .d_out = r.d_out.data(),
                                                           .qkv = block_rows(r.qkv.data(), from.kv.data(), s),
                                                           .out = r.out.data(),
                                                           .lse = r.lse.as<float>(),
                                                           .block = b,
                                                           .document_starts = r.document_starts()});
      AddBlockGradient add{.sum = r.d_q.as<float>(), .block = r.block_d_q.data(), .B = s.B, .T = s.T, .W = queries, .rows = b.queries};
      add.dtype = s.dtype;
      add_block_gradient({}, add);
      add.sum = from.far_d_kv.as<float>(), add.block = r.block_d_kv.data(), add.W = keys, add.rows = b.keys;
      add.first = !std::exchange(from.far_begun, true);
      add_block_gradient({}, add);
    }
  for (Rank& r : ranks) {
    if (r.far_begun)
      add_block_gradient({}, {.sum = r.d_kv.as<float>(), .block = r.far_d_kv.data(), .B = s.B, .T = s.T, .W = keys, .rows = {0, s.T}});
    end_gradients({}, {.d_qkv = packed_qkv(r.d_qkv.data(), s), .d_q = r.d_q.as<float>(), .d_kv = r.d_kv.as<float>(), .shape = s});
  }
}

struct Whole {
  Tensor qkv, d_out, out, lse, d_qkv;
  explicit Whole(const AttentionShape& s)
      : qkv(s.B * s.T * s.qkv_width(), s.dtype),
        d_out(s.B * s.T * s.out_width(), s.dtype),
        out(d_out.size(), s.dtype),
        lse(s.B * s.H * s.T, DType::f32),
        d_qkv(qkv.size(), s.dtype) {
    qkv.randomize(1, 2);
    d_out.randomize(2);
  }
};

/// out, lse and d_qkv of the whole sequences, over the ring, of documents that start so where there are any.
Whole over_ring(const RingCase& c, DType t, const std::vector<std::int32_t>& starts = {}) {
  const AttentionShape s = shape_of(c, 2 * c.half, t);
  const std::int64_t width = s.qkv_width();
  Whole whole(shape_of(c, 2 * c.N * c.half, t));
  std::vector<Rank> ranks(static_cast<std::size_t>(c.N), Rank(s));
  for (std::int64_t r = 0; r < c.N; ++r) {
    move_rows(c, r, whole.qkv, ranks[static_cast<std::size_t>(r)].qkv, width, true);
    move_rows(c, r, whole.d_out, ranks[static_cast<std::size_t>(r)].d_out, s.out_width(), true);
    for (std::int64_t i = 0; !starts.empty() && i < c.B * s.T; ++i) {
      const std::int64_t place = c.places().of(r, i % s.T);
      const std::int64_t before = place - starts[static_cast<std::size_t>(i / s.T * 2 * c.N * c.half + place)];
      ranks[static_cast<std::size_t>(r)].starts.push_back(static_cast<std::int32_t>(i % s.T - before));
    }
  }
  forward_ring(c.places(), s, ranks);
  backward_ring(c.places(), s, ranks);
  for (std::int64_t r = 0; r < c.N; ++r) {
    Rank& rank = ranks[static_cast<std::size_t>(r)];
    move_rows(c, r, whole.out, rank.out, s.out_width(), false);
    move_rows(c, r, whole.d_qkv, rank.d_qkv, width, false);
    for (std::int64_t head = 0; head < s.B * s.H; ++head)
      for (std::int64_t i = 0; i < s.T; ++i) whole.lse.set(head * 2 * c.N * c.half + c.places().of(r, i), rank.lse.get(head * s.T + i));
  }
  return whole;
}

Whole on_one_rank(const RingCase& c, DType t, const std::vector<std::int32_t>& starts) {
  const AttentionShape s = shape_of(c, 2 * c.N * c.half, t);
  Whole x(s);
  Workspace forward(attention_forward_workspace_bytes(s)), backward(attention_backward_workspace_bytes(s));
  const std::int32_t* documents = starts.empty() ? nullptr : starts.data();
  attention_forward(
      forward.context(),
      {.out = x.out.data(), .lse = x.lse.as<float>(), .qkv = packed_qkv(x.qkv.data(), s), .shape = s, .document_starts = documents});
  attention_backward(backward.context(), {.d_qkv = packed_qkv(x.d_qkv.data(), s),
                                          .d_out = x.d_out.data(),
                                          .qkv = packed_qkv(x.qkv.data(), s),
                                          .out = x.out.data(),
                                          .lse = x.lse.as<float>(),
                                          .shape = s,
                                          .document_starts = documents});
  return x;
}

std::string name_of(const RingCase& c, DType t) {
  return fmt::format("{} ranks, {} tokens a chunk, B{} H{} G{} D{} window {} {}", c.N, c.half, c.B, c.H, c.G, c.D, c.window,
                     tessera::name_of(t));
}

void expect_that_a_ring_is_one_rank(const RingCase& c, DType t, const std::vector<std::int32_t>& starts = {}) {
  SCOPED_TRACE(name_of(c, t) + (starts.empty() ? "" : " of documents"));
  const Whole got = over_ring(c, t, starts), want = on_one_rank(c, t, starts);
  const double allowed = t == DType::f32 ? 2e-6 : 1e-2;
  EXPECT_LT(relative_error(got.out.doubles(), want.out.doubles()), allowed);
  EXPECT_LT(relative_error(got.lse.doubles(), want.lse.doubles()), 1e-6);
  EXPECT_LT(relative_error(got.d_qkv.doubles(), want.d_qkv.doubles()), allowed);
}

TEST(Ring, IsAttentionOfTheWholeSequence) {
  test::Sample sample;
  for (DType t : {DType::f32, DType::bf16}) {
    for (const RingCase& c : sample.some(rings, 4)) expect_that_a_ring_is_one_rank(c, t);
    for (const RingCase& c : sample.some(windowed_rings, 4)) expect_that_a_ring_is_one_rank(c, t);
    for (const auto& all : {std::span<const RingCase>(rings), std::span<const RingCase>(windowed_rings)})
      for (const RingCase& c : sample.some(all, 3))
        expect_that_a_ring_is_one_rank(c, t, random_documents(c.B, 2 * c.N * c.half, static_cast<unsigned>(test::Sample::seed())));
  }
}

TEST(Ring, Digest) {
  Hasher h;
  for (DType t : {DType::f32, DType::bf16, DType::f16})
    for (const RingCase& c : {rings[1], rings[2], rings[3], windowed_rings[2]}) {
      const Whole x = over_ring(c, t);
      for (const Tensor* part : {&x.out, &x.lse, &x.d_qkv}) h.update(part->data(), part->bytes().size());
    }
  print_digest(h.digest().hex());
}
TEST(Ring, SameBitsForAnyThreadCount) { expect_same_digest("Ring.Digest"); }

}  // namespace
}  // namespace tessera::kernels::ring_attention_test
