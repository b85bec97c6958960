#include "gemm_cases.hpp"

#include <cstring>
#include <dnnl.hpp>
#include <thread>

#include "base/hash.hpp"
#include "kernels/gemm/matmul_host.hpp"
#include "validation/kernels/gemm_test_support.hpp"

namespace tessera::kernels::gemm_test {
namespace {
using namespace testing;

struct Case {
  std::int64_t M, N, K;
  bool at = false, bt = false, accumulate = false, bias = false, packed = false;
  DType in = DType::f32, out = DType::f32;
  bool addend = false;
};

constexpr std::pair<DType, DType> type_pairs[] = {
    {DType::f32, DType::f32}, {DType::bf16, DType::bf16}, {DType::bf16, DType::f32}, {DType::f16, DType::f16}, {DType::f16, DType::f32}};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  std::vector<GemmSize> sizes(std::begin(gemm_sizes), std::end(gemm_sizes));
  // Several tiles of the host's, and depths that it splits.
  sizes.insert(sizes.end(),
               {{3, 1013, 48}, {600, 33, 20}, {40, 101, 513}, {66, 390, 515}, {5, 3, 4096}, {1, 70, 34}, {1, 33, 1046}, {1, 3, 515}});
  for (GemmSize s : sizes)
    for (auto [in, out] : type_pairs)
      for (int flags = 0; flags < 32; ++flags) {
        Case c{s.M, s.N, s.K, (flags & 1) != 0, (flags & 2) != 0, (flags & 4) != 0, (flags & 8) != 0, (flags & 16) != 0, in, out};
        if (c.packed && c.at) continue;
        c.addend = !c.accumulate && (flags + s.K) % 2 == 0;
        // Making a primitive costs milliseconds: a third of the combinations for each size, another third for the next.
        if ((flags + flags / 4 + static_cast<int>(s.M + s.N)) % 3 == 0) cases.push_back(c);
      }
  return cases;
}

std::vector<double> reference(const Case& s, const Tensor& a, const Tensor& b, const Tensor& bias, const std::vector<double>& c) {
  std::vector<double> da = a.doubles(), db = b.doubles(), r(static_cast<std::size_t>(s.M * s.N));
  for (std::int64_t i = 0; i < s.M; ++i)
    for (std::int64_t j = 0; j < s.N; ++j) {
      double sum = s.bias ? bias.get(j) : 0;
      for (std::int64_t k = 0; k < s.K; ++k)
        sum +=
            da[static_cast<std::size_t>(s.at ? k * s.M + i : i * s.K + k)] * db[static_cast<std::size_t>(s.bt ? j * s.K + k : k * s.N + j)];
      auto at = static_cast<std::size_t>(i * s.N + j);
      r[at] = s.accumulate || s.addend ? c[at] + sum : sum;
    }
  return r;
}

// Runs the case and returns c; `expected` is filled where asked for.
Tensor run(const Case& s, bool reproducible, std::vector<double>* expected = nullptr) {
  Tensor a(s.M * s.K, s.in), b(s.K * s.N, s.in), bias(s.N, s.in), c(s.M * s.N, s.out), addend(s.addend ? s.M * s.N : 0, s.out);
  a.randomize(1);
  b.randomize(2);
  bias.randomize(3);
  if (s.accumulate) c.randomize(4);
  if (s.addend) addend.randomize(5);
  if (expected) *expected = reference(s, a, b, bias, (s.addend ? addend : c).doubles());
  Gemm g{.c = c.data(),
         .a = a.data(),
         .b = b.data(),
         .M = s.M,
         .N = s.N,
         .K = s.K,
         .a_transposed = s.at,
         .b_transposed = s.bt,
         .accumulate = s.accumulate,
         .in = s.in,
         .out = s.out,
         .bias = s.bias ? bias.data() : nullptr,
         .addend = s.addend ? addend.data() : nullptr};
  std::unique_ptr<Workspace> packed;
  if (s.packed && gemm_packed_bytes(g) > 0) {
    Workspace for_packing(0);
    packed = std::make_unique<Workspace>(gemm_packed_bytes(g));
    gemm_pack_b(for_packing.context(), packed->context().workspace.data(), g);
    g.b = packed->context().workspace.data();
    g.b_packed = true;
  }
  Workspace w(gemm_workspace_bytes(g));
  gemm(w.context(reproducible), g);
  EXPECT_TRUE(w.intact());
  return c;
}

TEST(Gemm, MatchesFp64) {
  unsigned index = 0;
  for (const Case& s : all_cases()) {
    bool reproducible = (++index * 2654435761u >> 16 & 1) != 0;  // half the cases each way, without a pattern
    std::vector<double> expected;
    Tensor c = run(s, reproducible, &expected);
    EXPECT_LT(relative_error(c.doubles(), expected), tolerance(s.out))
        << s.M << "x" << s.N << "x" << s.K << " at " << s.at << " bt " << s.bt << " accumulate " << s.accumulate << " bias " << s.bias
        << " packed " << s.packed << " " << name_of(s.in) << " -> " << name_of(s.out) << " reproducible " << reproducible;
  }
}

/// Rows of `columns` values as columns from `first` on of rows of `step`.
Tensor widened(const Tensor& dense, std::int64_t columns, std::int64_t step, std::int64_t first) {
  Tensor wide(dense.size() / columns * step, dense.type());
  for (std::int64_t i = 0; i < dense.size(); ++i) wide.set(i / columns * step + first + i % columns, dense.get(i));
  return wide;
}

// Values beside the columns are not numbers: none of them may be read, and all must stay.
// One column and one row are shapes of their own: oneDNN 3.7 took the elements of a column, or of a row of a matrix that is stored the
// other way round, for neighbours.
class WiderMatrices : public ::testing::TestWithParam<GemmSize> {};
INSTANTIATE_TEST_SUITE_P(Gemm, WiderMatrices,
                         ::testing::Values(GemmSize{77, 48, 130}, GemmSize{77, 1, 130}, GemmSize{1, 48, 130}, GemmSize{1, 1, 33},
                                           GemmSize{40, 1, 7}, GemmSize{257, 129, 20}),
                         [](const auto& info) { return fmt::format("{}x{}x{}", info.param.M, info.param.N, info.param.K); });
TEST_P(WiderMatrices, AreScaledColumns) {
  for (auto [in, out] : type_pairs)
    for (int flags = 0; flags < 12; ++flags) {
      Case s{GetParam().M, GetParam().N, GetParam().K, (flags & 1) != 0, (flags & 2) != 0, flags / 4 == 1, false,
             false,        in,           out,          flags / 4 == 2};
      const std::int64_t a_columns = s.at ? s.M : s.K, a_step = a_columns + 24, c_step = s.N + 40;
      const double scale = flags % 3 == 0 ? 1 : 0.75, addend_scale = -1.5;
      Tensor a(s.M * s.K, in), b(s.K * s.N, in), c(s.M * s.N, out), addend(s.M * s.N, out);
      a.randomize(1), b.randomize(2), addend.randomize(5);
      if (s.accumulate) c.randomize(4);
      std::vector<double> expected = reference(s, a, b, b, (s.addend ? addend : c).doubles());
      for (std::int64_t i = 0; i < c.size(); ++i) {
        const double start = s.accumulate ? c.get(i) : s.addend ? addend.get(i) : 0;
        double& value = expected[static_cast<std::size_t>(i)];
        value = (s.addend ? addend_scale : 1) * start + scale * (value - start);
      }
      const Tensor wide_a = widened(a, a_columns, a_step, 8), wide_addend = widened(addend, s.N, c_step, 16);
      Tensor wide_c = widened(c, s.N, c_step, 16);
      const std::size_t skip = 16 * size_of(out);
      Gemm g{.c = wide_c.as<std::byte>() + skip,
             .a = wide_a.bytes().data() + 8 * size_of(in),
             .b = b.data(),
             .M = s.M,
             .N = s.N,
             .K = s.K,
             .a_transposed = s.at,
             .b_transposed = s.bt,
             .accumulate = s.accumulate,
             .in = in,
             .out = out,
             .addend = s.addend ? wide_addend.bytes().data() + skip : nullptr,
             .scale = static_cast<float>(scale),
             .addend_scale = static_cast<float>(addend_scale),
             .a_stride = a_step,
             .c_stride = c_step};
      Workspace w(gemm_workspace_bytes(g));
      gemm(w.context(flags % 2 == 0), g);
      EXPECT_TRUE(w.intact());
      std::vector<double> columns;
      for (std::int64_t i = 0; i < wide_c.size(); ++i) {
        const std::int64_t column = i % c_step - 16;
        if (column >= 0 && column < s.N)
          columns.push_back(wide_c.get(i));
        else
          ASSERT_TRUE(std::isnan(wide_c.get(i))) << "beside the columns, at " << i;
      }
      EXPECT_LT(relative_error(columns, expected), tolerance(out)) << name_of(in) << name_of(out) << flags;
    }
}

TEST(Gemm, AddsToCOrAnAddendThatLiesElsewhere) {
  Tensor a(4, DType::f32), b(4, DType::f32), c(4, DType::f32), stream(4, DType::f32);
  Gemm g{.c = c.data(), .a = a.data(), .b = b.data(), .M = 2, .N = 2, .K = 2, .addend = c.data()};
  Workspace w(0);
  EXPECT_ANY_THROW(gemm(w.context(), g));
  g.addend = stream.data(), g.accumulate = true;
  EXPECT_ANY_THROW(gemm(w.context(), g));
  g.addend = nullptr, g.c_stride = 1;
  EXPECT_ANY_THROW(gemm(w.context(), g)) << "rows that lie over each other";
}

TEST(Gemm, EmptyOutputIsLeftAlone) {
  Workspace w(0);
  gemm(w.context(), {.M = 0, .N = 4, .K = 3});
  EXPECT_ANY_THROW(gemm(w.context(), {.M = 1, .N = 4, .K = 0}));
}

TEST(Gemm, SameBitsTwice) {
  for (Case s : {Case{77, 101, 4096}, Case{300, 768, 513, true, false, true}})
    for (bool reproducible : {false, true}) {
      s.in = DType::bf16;
      EXPECT_EQ(run(s, reproducible).bytes(), run(s, reproducible).bytes());
      s.in = DType::f32;
      EXPECT_EQ(run(s, reproducible).bytes(), run(s, reproducible).bytes());
    }
}

// gemm takes oneDNN's bf16 product only on processors where it is the faster way; it must be right on every one that has it.
TEST(Gemm, Bf16ProductOfOneDnn) {
  constexpr std::int64_t M = 77, N = 65, K = 130;
  if (!has_bf16_product()) GTEST_SKIP() << "no bf16 product on this processor";
  Case s{M, N, K, false, true, false, true, false, DType::bf16, DType::bf16};
  Tensor a(M * K, s.in), b(K * N, s.in), bias(N, s.in), c(M * N, s.out);
  a.randomize(1);
  b.randomize(2);
  bias.randomize(3);
  std::vector<double> expected = reference(s, a, b, bias, {});
  Matmul m{
      .M = M, .N = N, .K = K, .a_stride = K, .b_stride = K, .c_stride = N, .b_transposed = true, .bias = true, .in = s.in, .out = s.out};
  for (bool packed : {false, true}) {
    Workspace weights(matmul_packed_bytes(m));
    const void* b_data = b.data();
    m.b_packed = packed;
    if (packed) {
      matmul_pack(m, weights.context().workspace.data(), b.data(), 2);
      b_data = weights.context().workspace.data();
    }
    for (int threads : {1, 2}) {
      c.poison();
      Workspace w(matmul_scratch_bytes(m, threads));
      run_matmul(m, {.c = c.data(), .a = a.data(), .b = b_data, .bias = bias.data(), .scratch = w.context().workspace.data()}, threads);
      EXPECT_TRUE(w.intact());
      EXPECT_LT(relative_error(c.doubles(), expected), 1e-2) << packed << threads;
    }
  }
}

TEST(Gemm, OtherThreads) {
  Case s{129, 300, 1025, false, true};
  std::vector<double> expected;
  Tensor c = run(s, false, &expected);
  std::vector<std::byte> reproducible = run(s, true).bytes();
  std::thread other([&] {
    EXPECT_LT(relative_error(run(s, false).doubles(), expected), 1e-5);
    EXPECT_EQ(run(s, true).bytes(), reproducible);
  });
  other.join();
}

// Printed by this very binary under 1, 2 and 3 threads. The shapes are those whose K oneDNN splits over threads, and more.
TEST(Gemm, Digest) {
  constexpr DType types[] = {DType::f32, DType::bf16, DType::f16};
  Hasher h;
  for (std::int64_t M : {1, 77, 300})
    for (std::int64_t N : {1, 3, 64, 768})
      for (std::int64_t K : {17, 4096})
        for (int flags = 0; flags < 12; ++flags) {
          if (M * N * K > 21'000'000) continue;
          Case s{M, N, K, (flags & 1) != 0, (flags & 2) != 0, false, false, flags == 2 || flags == 4, types[flags / 4]};
          Tensor c = run(s, true);
          h.update(c.data(), c.bytes().size());
        }
  print_digest(h.digest().hex());
}
TEST(Gemm, SameBitsForAnyThreadCount) { expect_same_digest("Gemm.Digest"); }

// oneDNN's cache does not tell strides of a single row apart, and chooses other code for each: a run's products would depend on what its
// process made before, another deck or another stage of a pipeline.
TEST(Gemm, BitsOfASingleRowAreThoseOfItsShape) {
  constexpr std::int64_t N = 259, K = 32;
  Tensor a(K, DType::f32), b(K * N, DType::f32);
  a.randomize(1);
  b.randomize(2);
  const auto product = [&](std::int64_t a_stride, std::int64_t c_stride, bool b_transposed, bool accumulate) {
    const Matmul m{.M = 1,
                   .N = N,
                   .K = K,
                   .a_stride = a_stride,
                   .b_stride = b_transposed ? K : N,
                   .c_stride = c_stride,
                   .b_transposed = b_transposed,
                   .accumulate = accumulate};
    Tensor scratch(ceil_div(static_cast<std::int64_t>(matmul_scratch_bytes(m, 1)), std::int64_t{4}), DType::f32);
    std::vector<float> c(static_cast<std::size_t>(N), 0.1F);
    run_matmul(m, {.c = c.data(), .a = a.data(), .b = b.data(), .scratch = scratch.data()}, 1);
    return c;
  };
  const int capacity = dnnl::get_primitive_cache_capacity();
  dnnl::set_primitive_cache_capacity(0);  // each is made anew
  for (const bool b_transposed : {false, true})
    for (const bool accumulate : {false, true}) {
      const std::vector<float> alone = product(K, N, b_transposed, accumulate);
      EXPECT_EQ(product(4 * K, N, b_transposed, accumulate), alone);
      EXPECT_EQ(product(K, 4 * N, b_transposed, accumulate), alone);
    }
  dnnl::set_primitive_cache_capacity(capacity);
}

}  // namespace
}  // namespace tessera::kernels::gemm_test
