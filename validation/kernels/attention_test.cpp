#include "validation/kernels/attention_reference.hpp"

#include <algorithm>

#include "base/hash.hpp"
#include "kernels/attention/softcap.hpp"
#include "kernels/attention/tiles.hpp"
#include "validation/unit/sample.hpp"

namespace tessera::kernels::attention_test {
namespace {
using namespace testing;

std::size_t z(std::int64_t i) { return static_cast<std::size_t>(i); }

using Starts = std::vector<std::int32_t>;

struct Result : AttentionOperands {
  Tensor out, lse, d_qkv;
  explicit Result(const AttentionShape& s, double size = 1)
      : AttentionOperands(s, size), out(s.B * s.T * s.out_width(), s.dtype), lse(s.B * s.H * s.T, DType::f32), d_qkv(qkv.size(), s.dtype) {}
  AttentionValues values() const { return {out.doubles(), lse.doubles(), d_qkv.doubles()}; }
};

void run(Result& r, const AttentionShape& s, host::HalfProducts products = host::fastest_half_products()) {
  Workspace forward(attention_forward_workspace_bytes(s)), backward(attention_backward_workspace_bytes(s));
  host::attention_forward(forward.context(),
                          {.out = r.out.data(),
                           .lse = r.lse.as<float>(),
                           .qkv = packed_qkv(r.qkv.data(), s),
                           .shape = s,
                           .document_starts = r.document_starts()},
                          products);
  host::attention_backward(backward.context(),
                           {.d_qkv = packed_qkv(r.d_qkv.data(), s),
                            .d_out = r.d_out.data(),
                            .qkv = packed_qkv(r.qkv.data(), s),
                            .out = r.out.data(),
                            .lse = r.lse.as<float>(),
                            .shape = s,
                            .document_starts = r.document_starts()},
                           products);
  EXPECT_TRUE(forward.intact() && backward.intact());
}
Result run(const AttentionShape& s, double size = 1, const Starts& starts = {},
           host::HalfProducts products = host::fastest_half_products()) {
  Result r(s, size);
  r.starts = starts;
  run(r, s, products);
  return r;
}

/// Those of both backends, and of the host alone.
std::vector<AttentionShape> shapes(DType t) {
  std::vector<AttentionShape> all = attention_cases(t);
  for (std::int64_t T : {1, 2, 64, 65, 77, 130})
    for (auto [H, G] : {std::pair{2, 2}, {4, 1}, {7, 1}, {6, 3}}) all.push_back({.B = 2, .T = T, .H = H, .G = G, .D = 48, .dtype = t});
  for (std::int64_t D : {2, 6, 16, 40, 64, 80, 96, 128, 256}) all.push_back({.B = 1, .T = 77, .H = 2, .G = 1, .D = D, .dtype = t});
  all.push_back({.B = 3, .T = 130, .H = 8, .G = 8, .D = 64, .dtype = t});  // enough heads that none is dealt to several parts
  return all;
}

TEST(Attention, MatchesFp64) {
  test::Sample sample;
  for (DType t : {DType::f32, DType::bf16, DType::f16})
    for (const AttentionShape& s : sample.some(shapes(t), 8)) {
      Result r = run(s);
      AttentionValues want = attention_reference(s, r.qkv.doubles(), r.d_out.doubles());
      expect_close(s, r.values(), want);
    }
}

// All ways of bf16, whatever is fastest here: head dims that are no whole vectors of pairs, an odd number of keys, one query.
TEST(Attention, HalfProductsMatchFp64) {
  test::Sample sample;
  std::vector<AttentionShape> all = sample.some(shapes(DType::bf16), 8);
  for (std::int64_t D : {2, 34, 72, 80, 96}) all.push_back({.B = 1, .T = 77, .H = 2, .G = 1, .D = D, .dtype = DType::bf16});
  for (const auto& cases : {attention_window_cases(DType::bf16), attention_score_cases(DType::bf16)})
    for (const AttentionShape& s : sample.some(cases, 4)) all.push_back(s);
  for (const AttentionShape& s : all)
    for (const Starts& starts : {Starts(), random_documents(s.B, s.T, 5)})
      for (const auto products : {host::HalfProducts::widened, host::HalfProducts::pairs, host::HalfProducts::tiles}) {
        if (products == host::HalfProducts::tiles && !amx::can_compute()) continue;
        const Result r = run(s, 1, starts, products);
        expect_close(s, r.values(), attention_reference(s, r.qkv.doubles(), r.d_out.doubles(), starts));
      }
}

std::vector<AttentionShape> document_shapes(DType t) {
  std::vector<AttentionShape> all = attention_document_cases(t);
  for (const AttentionShape& s : std::vector<AttentionShape>{{.B = 3, .T = 130, .H = 8, .G = 8, .D = 64, .dtype = t},
                                                             {.B = 2, .T = 400, .H = 4, .G = 2, .D = 48, .dtype = t},
                                                             {.B = 2, .T = 500, .H = 3, .G = 1, .D = 32, .dtype = t},
                                                             {.B = 1, .T = 333, .H = 2, .G = 1, .D = 2, .dtype = t},
                                                             {.B = 4, .T = 64, .H = 2, .G = 2, .D = 80, .dtype = t},
                                                             {.B = 2, .T = 67, .H = 2, .G = 2, .D = 16, .dtype = t}})
    all.push_back(s);
  return all;
}

TEST(Attention, DocumentsMatchFp64) {
  test::Sample sample;
  for (DType t : {DType::f32, DType::bf16, DType::f16})
    for (const AttentionShape& s : sample.some(document_shapes(t), 5)) {
      const Starts starts = random_documents(s.B, s.T, 5);
      const Result r = run(s, 1, starts);
      const AttentionValues want = attention_reference(s, r.qkv.doubles(), r.d_out.doubles(), starts);
      expect_close(s, r.values(), want);
    }
}

TEST(Attention, DocumentsAtEdgesOfTilesMatchFp64) {
  test::Sample sample;
  for (DType t : {DType::f32, DType::bf16})
    for (const auto& [s, starts] : sample.some(attention_edges(t), 2)) {
      const Result r = run(s, 1, starts);
      expect_close(s, r.values(), attention_reference(s, r.qkv.doubles(), r.d_out.doubles(), starts));
    }
}

TEST(Attention, WindowsMatchFp64) {
  test::Sample sample;
  for (DType t : {DType::f32, DType::bf16, DType::f16})
    for (const AttentionShape& s : sample.some(attention_window_cases(t), 4))
      for (const Starts& starts : {Starts(), random_documents(s.B, s.T, 5)}) {
        const Result r = run(s, 1, starts);
        expect_close(s, r.values(), attention_reference(s, r.qkv.doubles(), r.d_out.doubles(), starts));
      }
}

TEST(Attention, ScalesAndCapsMatchFp64) {
  test::Sample sample;
  for (DType t : {DType::f32, DType::bf16, DType::f16})
    for (const AttentionShape& s : sample.some(attention_score_cases(t), 5))
      for (const Starts& starts : {Starts(), random_documents(s.B, s.T, 5)}) {
        const Result r = run(s, 1, starts);
        expect_close(s, r.values(), attention_reference(s, r.qkv.doubles(), r.d_out.doubles(), starts));
      }
}

TEST(Attention, TinyScoresStayBelowTheCap) {
  for (const float scale : {0x1p-20f, 0x1p-7f}) {
    const AttentionShape s = attention_tiny_scores(scale);
    const Result r = run(s);
    const std::vector<double> want = attention_reference(s, r.qkv.doubles(), {}).lse;
    for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(r.lse.get(static_cast<std::int64_t>(i)), want[i], 3e-7);
  }
}

TEST(Attention, TanhKeepsItsRelativeError) {
  for (float x = 0x1p-120f; x < 200; x *= 1.0037f)
    for (const float signed_x : {x, -x}) {
      const double want = std::tanh(static_cast<double>(signed_x)), got = static_cast<double>(tanh_of_score(signed_x));
      ASSERT_LT(std::abs(got / want - 1), 4e-7) << signed_x;
      ASSERT_EQ(tanh_of_score(splat(signed_x))[3], tanh_of_score(signed_x)) << signed_x;
    }
  EXPECT_EQ(tanh_of_score(0.f), 0);
  EXPECT_EQ(tanh_of_score(-INFINITY), -1);
  EXPECT_TRUE(std::isnan(tanh_of_score(NAN)));
}

std::string bits(const Result& r) {
  Hasher h;
  for (const Tensor* t : {&r.out, &r.lse, &r.d_qkv}) h.update(t->data(), t->bytes().size());
  return h.digest().hex();
}

TEST(Attention, OneDocumentHasTheBitsOfNone) {
  test::Sample sample;
  for (DType t : {DType::f32, DType::bf16})
    for (const AttentionShape& s : sample.some(shapes(t), 6))
      EXPECT_EQ(bits(run(s, 1, Starts(z(s.B * s.T)))), bits(run(s))) << s.T << " " << s.D;
}

TEST(Attention, WindowHasTheBitsOfItsDocuments) {
  test::Sample sample;
  for (DType t : {DType::f32, DType::bf16})
    for (AttentionShape s : sample.some(attention_window_cases(t), 4)) {
      const Starts first = documents_of_windows(s);
      const std::string windowed = bits(run(s));
      s.window = 0;
      EXPECT_EQ(bits(run(s, 1, first)), windowed) << name_of(s);
    }
}

TEST(Attention, WindowOfAllKeysHasTheBitsOfNone) {
  for (std::int64_t window : {150, 1000}) {
    AttentionShape s{.B = 1, .T = 150, .H = 2, .G = 1, .D = 48};
    const std::string none = bits(run(s));
    s.window = window;
    EXPECT_EQ(bits(run(s)), none);
  }
}

// Of a power of two there is no other way to scale.
TEST(Attention, TheUsualScaleHasTheBitsOfNone) {
  for (DType t : {DType::f32, DType::bf16}) {
    AttentionShape s{.B = 1, .T = 150, .H = 2, .G = 1, .D = 64, .dtype = t};
    const std::string none = bits(run(s));
    s.scale = 1.f / 8;
    EXPECT_EQ(bits(run(s)), none);
  }
}

TEST(Attention, NanBehindTheWindowIsNotSeen) {
  const AttentionShape s{.B = 1, .T = 200, .H = 1, .G = 1, .D = 16, .window = 30};
  Result r(s);
  r.qkv.set(70 * 48 + 16 + 2, std::nan(""));
  run(r, s);
  for (std::int64_t t = 0; t < s.T; ++t) EXPECT_EQ(std::isnan(r.out.get(t * 16)), t >= 70 && t < 100) << t;
}

// Where documents begin with tiles they are computed as they are alone, to the bit: the keys of others do not even add zeros.
TEST(Attention, DocumentsThatBeginWithTilesHaveTheBitsOfSequences) {
  for (DType t : {DType::f32, DType::bf16}) {
    const AttentionShape alone{.B = 4, .T = 128, .H = 8, .G = 4, .D = 48, .dtype = t};
    AttentionShape packed = alone;
    packed.B = 2, packed.T = 256;
    Starts starts;
    for (std::int64_t i = 0; i < alone.B * alone.T; ++i) starts.push_back(i % 256 < 128 ? 0 : 128);
    const Result one = run(alone), all = run(packed, 1, starts);
    EXPECT_EQ(all.out.bytes(), one.out.bytes());
    // Sums of dK and dV are dealt to parts by the shape.
    for (int part = 0; part < 3; ++part)
      EXPECT_LT(relative_error(part_of(all.d_qkv.doubles(), packed, part), part_of(one.d_qkv.doubles(), alone, part)), tolerance(t));
    EXPECT_EQ(part_of(all.d_qkv.doubles(), packed, 0), part_of(one.d_qkv.doubles(), alone, 0));
  }
}

TEST(Attention, NanOfAnotherDocumentIsNotSeen) {
  const AttentionShape s{.B = 1, .T = 200, .H = 1, .G = 1, .D = 16};
  Starts starts(50, 0);
  starts.resize(90, 50), starts.resize(200, 90);
  Result r(s);
  r.qkv.set(70 * 48 + 16 + 2, std::nan(""));  // a key of the second document
  r.starts = starts;
  run(r, s);
  for (std::int64_t t = 0; t < s.T; ++t) EXPECT_EQ(std::isnan(r.out.get(t * 16)), t >= 70 && t < 90) << t;
}

TEST(Attention, LargeScoresDoNotOverflow) {
  AttentionShape s{.B = 1, .T = 150, .H = 2, .G = 1, .D = 64};
  Result r = run(s, 30);
  AttentionValues want = attention_reference(s, r.qkv.doubles(), r.d_out.doubles());
  EXPECT_LT(relative_error(r.out.doubles(), want.out), 1e-3);
  EXPECT_LT(relative_error(r.d_qkv.doubles(), want.d_qkv), 1e-2);
}

TEST(Attention, LargeScoresStayBelowTheCap) {
  const AttentionShape s{.B = 1, .T = 150, .H = 2, .G = 1, .D = 64, .softcap = 2};
  const Result r = run(s, 30);
  const AttentionValues want = attention_reference(s, r.qkv.doubles(), {});
  EXPECT_LT(relative_error(r.out.doubles(), want.out), 1e-5);
  EXPECT_LT(relative_error(r.lse.doubles(), want.lse), 1e-6);
}

TEST(Attention, NanIsNotSwallowed) {
  for (const float softcap : {0.f, 5.f}) {
    const AttentionShape s{.B = 1, .T = 100, .H = 1, .G = 1, .D = 16, .softcap = softcap};
    Result r(s);
    r.qkv.set(20 * 48 + 3, std::nan(""));       // a query: its own row alone
    r.qkv.set(70 * 48 + 16 + 2, std::nan(""));  // a key: its row and those after
    Workspace w(attention_forward_workspace_bytes(s));
    attention_forward(w.context(), {.out = r.out.data(), .lse = r.lse.as<float>(), .qkv = packed_qkv(r.qkv.data(), s), .shape = s});
    for (std::int64_t t = 0; t < s.T; ++t) EXPECT_EQ(std::isnan(r.out.get(t * 16)), t == 20 || t >= 70) << t;
  }
}

void expect_finite_differences(const AttentionShape& s) {
  Result r = run(s);
  std::vector<double> d_out = r.d_out.doubles(), numeric, analytic;
  for (std::size_t i = 0; i < z(r.qkv.size()); i += 5) {
    auto value = [&](double by) {
      std::vector<double> qkv = r.qkv.doubles();
      qkv[i] += by;
      std::vector<double> out = attention_reference(s, qkv, {}).out;
      double total = 0;
      for (std::size_t j = 0; j < out.size(); ++j) total += out[j] * d_out[j];
      return total;
    };
    numeric.push_back((value(1e-5) - value(-1e-5)) / 2e-5);
    analytic.push_back(r.d_qkv.get(static_cast<std::int64_t>(i)));
  }
  EXPECT_LT(relative_error(analytic, numeric), 1e-5);
}
TEST(Attention, FiniteDifferences) {
  expect_finite_differences({.B = 1, .T = 9, .H = 4, .G = 2, .D = 6});
  expect_finite_differences({.B = 1, .T = 9, .H = 4, .G = 2, .D = 6, .Dv = 10});
  expect_finite_differences({.B = 1, .T = 9, .H = 4, .G = 2, .D = 6, .scale = 1, .softcap = 1.2f});
}

TEST(Attention, DecodeMatchesTheLastRow) {
  test::Sample sample;
  for (DType t : {DType::f32, DType::bf16, DType::f16})
    for (std::int64_t position : {0, 76, 128})
      for (AttentionShape s : sample.some(attention_decode_cases(t), 5)) {
        s.T = position + 1;
        Result r(s);
        const std::int64_t D = s.D, Dv = s.value_dim(), longest = s.T + 13, capacity = s.window > 0 ? std::min(longest, s.window) : longest,
                           stride = s.qkv_width();
        Tensor row(s.B * stride, t), k(s.B * capacity * s.G * D, t), v(s.B * capacity * s.G * Dv, t), out(s.B * s.out_width(), t);
        Tensor sinks(s.H, t);
        sinks.randomize(3, 4);
        const bool with_sinks = position != 76;
        std::vector<double> want,
            full = attention_reference(s, r.qkv.doubles(), {}, {}, with_sinks ? sinks.doubles() : std::vector<double>()).out;
        for (std::int64_t b = 0; b < s.B; ++b) {
          const auto fill = [&](Tensor& cache, std::int64_t width, std::int64_t column) {
            for (std::int64_t u = 0; u + 1 < s.T; ++u)
              for (std::int64_t i = 0; i < width; ++i)
                cache.set((b * capacity + u % capacity) * width + i, r.qkv.get((b * s.T + u) * stride + column + i));
          };
          fill(k, s.G * D, s.H * D), fill(v, s.G * Dv, (s.H + s.G) * D);
          for (std::int64_t i = 0; i < stride; ++i) row.set(b * stride + i, r.qkv.get((b * s.T + s.T - 1) * stride + i));
          for (std::int64_t i = 0; i < s.out_width(); ++i) want.push_back(full[z((b * s.T + s.T - 1) * s.out_width() + i)]);
        }
        const auto last = static_cast<std::int32_t>(s.T - 1);
        attention_decode({}, {.out = out.data(),
                              .qkv = packed_qkv(row.data(), s),
                              .cached_k = {k.data(), s.G * D},
                              .cached_v = {v.data(), s.G * Dv},
                              .position = &last,
                              .capacity = capacity,
                              .shape = s,
                              .sinks = with_sinks ? sinks.data() : nullptr});
        EXPECT_LT(relative_error(out.doubles(), want), tolerance(t)) << name_of(s);
      }
}

TEST(Attention, LargeScoresOfDocumentsDoNotOverflow) {
  const AttentionShape s{.B = 1, .T = 300, .H = 2, .G = 1, .D = 64};
  const Starts starts = random_documents(1, 300, 7);
  const Result r = run(s, 30, starts);
  const AttentionValues want = attention_reference(s, r.qkv.doubles(), r.d_out.doubles(), starts);
  EXPECT_LT(relative_error(r.out.doubles(), want.out), 1e-3);
  EXPECT_LT(relative_error(r.d_qkv.doubles(), want.d_qkv), 1e-2);
}

TEST(Attention, RefusesBadShapes) {
  EXPECT_ANY_THROW(attention_forward({}, {.shape = {.B = 1, .T = 4, .H = 3, .G = 2, .D = 8}}));
  EXPECT_ANY_THROW(attention_backward_workspace_bytes({.B = 1, .T = 4, .H = 2, .G = 2, .D = 7}));
  for (const Backend backend : {Backend::host, Backend::cuda})
    EXPECT_ANY_THROW(attention_backward_workspace_bytes({.B = 1, .T = 4, .H = 2, .G = 2, .D = 8, .Dv = 7}, backend));
  EXPECT_ANY_THROW(attention_backward_workspace_bytes({.B = 1, .T = 4, .H = 2, .G = 2, .D = 8, .Dv = 258}, Backend::cuda));
  for (const float bad : {-1.f, INFINITY, NAN})
    for (const Backend backend : {Backend::host, Backend::cuda}) {
      EXPECT_ANY_THROW(attention_backward_workspace_bytes({.B = 1, .T = 4, .H = 2, .G = 2, .D = 8, .scale = bad}, backend));
      EXPECT_ANY_THROW(attention_backward_workspace_bytes({.B = 1, .T = 4, .H = 2, .G = 2, .D = 8, .softcap = bad}, backend));
    }
}

/// Queries, keys and values in memory of their own, their rows further apart than they are wide, with NaN between them.
struct ApartRows {
  Tensor q, k, v;
  Qkv rows;
  std::int64_t strides[3];
  ApartRows(const AttentionShape& s, const Tensor& packed)
      : q(s.B * s.T * (s.H * s.D + 6), s.dtype),
        k(s.B * s.T * (s.G * s.D + 2), s.dtype),
        v(s.B * s.T * (s.G * s.value_dim() + 10), s.dtype) {
    const std::int64_t widths[] = {s.H * s.D, s.G * s.D, s.G * s.value_dim()};
    std::int64_t column = 0;
    Tensor* const parts[] = {&q, &k, &v};
    for (int part = 0; part < 3; ++part) {
      const std::int64_t stride = strides[part] = parts[part]->size() / (s.B * s.T);
      for (std::int64_t row = 0; row < s.B * s.T; ++row)
        for (std::int64_t i = 0; i < stride; ++i)
          parts[part]->set(row * stride + i, i < widths[part] ? packed.get(row * s.qkv_width() + column + i) : std::nan(""));
      column += widths[part];
    }
  }
  template <class P>
  QueryKeyValue<P> spans() {
    return {{q.data(), strides[0]}, {k.data(), strides[1]}, {v.data(), strides[2]}};
  }
  /// As packed rows; what lies between rows is as it was.
  std::vector<double> packed(const AttentionShape& s) const {
    std::vector<double> all;
    const std::int64_t widths[] = {s.H * s.D, s.G * s.D, s.G * s.value_dim()};
    const Tensor* const parts[] = {&q, &k, &v};
    for (std::int64_t row = 0; row < s.B * s.T; ++row)
      for (int part = 0; part < 3; ++part)
        for (std::int64_t i = 0; i < strides[part]; ++i) {
          const double x = parts[part]->get(row * strides[part] + i);
          if (i < widths[part])
            all.push_back(x);
          else
            EXPECT_TRUE(std::isnan(x)) << "between rows";
        }
    return all;
  }
};

TEST(Attention, RowsApartHaveTheBitsOfPackedOnes) {
  test::Sample sample;
  for (DType t : {DType::f32, DType::bf16, DType::f16})
    for (const AttentionShape& s : sample.some(attention_cases(t), 5)) {
      const Result want = run(s);
      Result got(s);
      ApartRows in(s, got.qkv), gradient(s, got.d_qkv);
      Workspace forward(attention_forward_workspace_bytes(s)), backward(attention_backward_workspace_bytes(s));
      attention_forward(forward.context(), {.out = got.out.data(), .lse = got.lse.as<float>(), .qkv = in.spans<void>(), .shape = s});
      attention_backward(backward.context(), {.d_qkv = gradient.spans<void>(),
                                              .d_out = got.d_out.data(),
                                              .qkv = in.spans<void>(),
                                              .out = got.out.data(),
                                              .lse = got.lse.as<float>(),
                                              .shape = s});
      EXPECT_EQ(got.out.bytes(), want.out.bytes()) << name_of(s);
      EXPECT_EQ(gradient.packed(s), want.d_qkv.doubles()) << name_of(s);
    }
}

// MLA's latents beside rotated keys: all query heads attend to one key head of 576 features, whose first 512 are the value.
TEST(Attention, DecodeReadsValuesFromKeys) {
  for (DType t : {DType::f32, DType::bf16}) {
    AttentionShape s{.B = 2, .T = 40, .H = 3, .G = 1, .D = 576, .Dv = 512, .dtype = t};
    Tensor q(s.B * s.H * s.D, t), cache(s.B * s.T * s.D, t), fresh(s.B * s.D, t), out(s.B * s.out_width(), t);
    q.randomize(1), cache.randomize(2), fresh.randomize(3);
    const std::int32_t last = 39;
    const HeadRows<void> rows{cache.data(), s.D};
    attention_decode({}, {.out = out.data(),
                          .qkv = {{q.data(), s.H * s.D}, {fresh.data(), s.D}, {fresh.data(), s.D}},
                          .cached_k = rows,
                          .cached_v = rows,
                          .position = &last,
                          .capacity = s.T,
                          .shape = s});
    std::vector<double> packed, want;
    for (std::int64_t row = 0; row < s.B * s.T; ++row) {
      for (std::int64_t i = 0; i < s.H * s.D; ++i) packed.push_back(q.get(row / s.T * s.H * s.D + i));
      for (std::int64_t i = 0; i < s.D + s.Dv; ++i) packed.push_back(cache.get(row * s.D + i % s.D));
      for (std::int64_t i = 0; row % s.T == last && i < s.D; ++i)
        EXPECT_EQ(cache.get(row * s.D + i), fresh.get(row / s.T * s.D + i)) << "the new token's row";
    }
    const std::vector<double> all = attention_reference(s, packed, {}).out;
    for (std::int64_t b = 0; b < s.B; ++b)
      for (std::int64_t i = 0; i < s.out_width(); ++i) want.push_back(all[z((b * s.T + last) * s.out_width() + i)]);
    EXPECT_LT(relative_error(out.doubles(), want), tolerance(t));
  }
}

TEST(Attention, SameBitsTwice) {
  for (DType t : {DType::f32, DType::bf16}) {
    AttentionShape s{.B = 2, .T = 300, .H = 4, .G = 2, .D = 64, .dtype = t};
    EXPECT_EQ(bits(run(s)), bits(run(s)));
  }
}

TEST(Attention, Digest) {
  test::Sample sample;
  std::string all;
  for (DType t : {DType::f32, DType::bf16, DType::f16})
    for (const AttentionShape& s : sample.some(shapes(t), 6)) all += bits(run(s));
  for (DType t : {DType::f32, DType::bf16, DType::f16})
    for (const AttentionShape& s : sample.some(document_shapes(t), 4)) all += bits(run(s, 1, random_documents(s.B, s.T, 5)));
  for (DType t : {DType::f32, DType::bf16})
    for (const AttentionShape& s : sample.some(attention_window_cases(t), 2)) all += bits(run(s));
  for (DType t : {DType::f32, DType::bf16})
    for (const AttentionShape& s : sample.some(attention_score_cases(t), 2)) all += bits(run(s));
  print_digest(hash_text(all).hex());
}
TEST(Attention, SameBitsForAnyThreadCount) { expect_same_digest("Attention.Digest"); }

}  // namespace
}  // namespace tessera::kernels::attention_test
