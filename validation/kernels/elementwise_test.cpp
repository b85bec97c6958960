#include "elementwise_cases.hpp"

#include "base/check.hpp"
#include "kernels/elementwise/philox.hpp"
#include "kernels/vector/vector.hpp"

namespace tessera::kernels::testing::elementwise_test {
namespace {

template <class T>
void check_add() {
  for (std::int64_t n : elementwise_lengths) {
    auto x = random_values<T>(n, 1), y = random_values<T>(n, 2), out = poisoned<T>(n), expected = out;
    for (std::size_t i = 0; i < x.size(); ++i) expected[i] = T(static_cast<float>(x[i]) + static_cast<float>(y[i]));
    add({}, out.data(), x.data(), y.data(), n, dtype_of<T>());
    EXPECT_EQ(out, expected);
    auto in_place = x;
    add({}, in_place.data(), in_place.data(), y.data(), n, dtype_of<T>());
    EXPECT_EQ(in_place, expected);
    in_place = y;
    add({}, in_place.data(), x.data(), in_place.data(), n, dtype_of<T>());
    EXPECT_EQ(in_place, expected);
  }
}
TEST(Elementwise, AddRoundsOnce) {
  check_add<float>();
  check_add<bf16>();
  check_add<f16>();
}

template <class T>
void check_add_scaled() {
  for (std::int64_t n : elementwise_lengths)
    for (const float scale : {1.0f, 0.22f, -3.0f}) {
      auto x = random_values<T>(n, 1), y = random_values<T>(n, 2), out = poisoned<T>(n), expected = out, alone = out;
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double product = static_cast<double>(scale) * static_cast<double>(static_cast<float>(y[i]));
        expected[i] = T(std::fma(scale, static_cast<float>(y[i]), static_cast<float>(x[i])));
        alone[i] = T(static_cast<float>(product));
      }
      const auto run = [&](T* to, const T* a, const T* b) {
        add_scaled({}, {.out = to, .x = a, .y = b, .scale = scale, .n = n, .dtype = dtype_of<T>()});
      };
      run(out.data(), x.data(), y.data());
      EXPECT_EQ(out, expected) << n << ", " << scale;
      auto in_place = x;
      run(in_place.data(), in_place.data(), y.data());
      EXPECT_EQ(in_place, expected) << "in the place of x";
      in_place = y;
      run(in_place.data(), x.data(), in_place.data());
      EXPECT_EQ(in_place, expected) << "in the place of y";
      run(out.data(), nullptr, y.data());
      EXPECT_EQ(out, alone) << "without x";
      in_place = y;
      run(in_place.data(), nullptr, in_place.data());
      EXPECT_EQ(in_place, alone) << "without x in place";
      if (scale != 1) continue;
      add({}, out.data(), x.data(), y.data(), n, dtype_of<T>());
      EXPECT_EQ(out, expected) << "a sum by 1 is a sum";
    }
}
TEST(Elementwise, AddScaledRoundsOnce) {
  check_add_scaled<float>();
  check_add_scaled<bf16>();
  check_add_scaled<f16>();
  float one = 1;
  EXPECT_THROW(add_scaled({}, {.out = &one, .x = &one, .y = &one, .n = 1, .dtype = DType::i64}), Error);
}

TEST(Elementwise, FillZeroFillsItsBytesAlone) {
  for (std::int64_t n : elementwise_lengths) {
    auto bytes = poisoned<char>(n + 1);
    fill_zero({}, bytes.data(), static_cast<std::size_t>(n));
    EXPECT_EQ(std::count(bytes.begin(), bytes.end(), '\0'), n);
    EXPECT_EQ(bytes.back(), '\xff');
  }
}

template <class T>
void check_sum_in_order() {
  for (const SumInOrderCase& c : sum_in_order_cases) {
    const SumInOrderInputs<T> in(c);
    auto out = in.before;
    sum_in_order({}, in.arguments(c, out.data(), in.parts.data()));
    EXPECT_EQ(digest(out).hex(), digest(in.expected).hex()) << c;
  }
}
TEST(Elementwise, SumInOrderRoundsOnce) {
  check_sum_in_order<float>();
  check_sum_in_order<bf16>();
  check_sum_in_order<f16>();
}

template <class T>
void check_column_sums() {
  for (const ColumnSumsCase& c : column_sums_cases) {
    const ColumnSumsInputs<T> in(c);
    auto sum = in.sum;
    std::vector<double> expected = doubles(sum);
    for (std::size_t i = 0; i < in.x.size(); ++i)
      expected[i % static_cast<std::size_t>(c.N)] += static_cast<double>(static_cast<float>(in.x[i]));
    Workspace workspace(column_sums_workspace_bytes({.M = c.M, .N = c.N}));
    column_sums(workspace.context(), {sum.data(), in.x.data(), c.M, c.N, dtype_of<T>()});
    EXPECT_LT(relative_error(sum, expected), 2e-6) << c;
  }
  float one = 1;
  EXPECT_THROW(column_sums({}, {&one, &one, 1, 1, DType::f32}), Error) << "no workspace";
}
TEST(Elementwise, ColumnSumsMatchReference) {
  check_column_sums<float>();
  check_column_sums<bf16>();
  check_column_sums<f16>();
}

/// Floats of every exponent, ties between two bf16 values, subnormals, infinities, NaNs.
std::vector<float> awkward_floats() {
  std::vector<float> x;
  std::mt19937 engine(1);
  for (std::uint32_t high = 0; high < 0x10000; high += 7) {
    for (std::uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu, static_cast<std::uint32_t>(engine()) & 0xffffu}) {
      x.push_back(std::bit_cast<float>(high << 16 | low));
    }
  }
  for (std::uint32_t bits : {0x7f800000u, 0xff800000u, 0x7f800001u, 0xffffffffu, 0x7f7fffffu, 0x80000001u})
    x.push_back(std::bit_cast<float>(bits));
  return x;
}

TEST(Elementwise, CastHasTheBitsOfTheScalarConversion) {
  std::vector<float> x = awkward_floats();
  auto n = static_cast<std::int64_t>(x.size());
  auto half = poisoned<bf16>(n);
  auto ieee = poisoned<f16>(n);
  auto back = poisoned<float>(n), copy = back, from_ieee = back;
  cast({}, half.data(), DType::bf16, x.data(), DType::f32, n);
  cast({}, back.data(), DType::f32, half.data(), DType::bf16, n);
  cast({}, ieee.data(), DType::f16, x.data(), DType::f32, n);
  cast({}, from_ieee.data(), DType::f32, ieee.data(), DType::f16, n);
  cast({}, copy.data(), DType::f32, x.data(), DType::f32, n);
  for (std::size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(half[i].bits, bf16(x[i]).bits) << std::hex << std::bit_cast<std::uint32_t>(x[i]);
    ASSERT_EQ(std::bit_cast<std::uint32_t>(back[i]), static_cast<std::uint32_t>(half[i].bits) << 16);
    ASSERT_EQ(ieee[i].bits, f16(x[i]).bits) << std::hex << std::bit_cast<std::uint32_t>(x[i]);
    ASSERT_EQ(std::bit_cast<std::uint32_t>(from_ieee[i]), std::bit_cast<std::uint32_t>(static_cast<float>(ieee[i])));
  }
  EXPECT_EQ(digest(copy).hex(), digest(x).hex());
  EXPECT_THROW(cast({}, back.data(), DType::i64, x.data(), DType::f32, 1), Error);
}

TEST(Elementwise, CopyRowsLeavesWhatLiesBetween) {
  for (const CopyRowsCase& c : copy_rows_cases) {
    CopiedRows rows(c);
    copy_rows({}, copy_of(c, rows.to.data(), rows.from.data()));
    EXPECT_EQ(digest(rows.to).hex(), digest(rows.expected).hex()) << c;
  }
}

template <class Out, class In>
void check_cast() {
  for (std::int64_t n : elementwise_lengths) {
    const auto x = values_to_cast<In>(n);
    std::vector<Out> out = poisoned<Out>(n), expected;
    for (In v : x) expected.push_back(Out(static_cast<float>(v)));
    cast({}, out.data(), dtype_of<Out>(), x.data(), dtype_of<In>(), n);
    EXPECT_EQ(digest(out).hex(), digest(expected).hex()) << n;
  }
}
TEST(Elementwise, CastOfAnyLengthHasTheBitsOfTheScalarConversion) {
  check_cast<bf16, float>(), check_cast<float, bf16>(), check_cast<float, float>(), check_cast<bf16, bf16>();
  check_cast<f16, float>(), check_cast<float, f16>(), check_cast<f16, f16>(), check_cast<bf16, f16>(), check_cast<f16, bf16>();
}

TEST(Elementwise, CastOfManyElementsStreamsTheSameBits) {
  constexpr std::int64_t n = (17 << 20) + 5;
  std::vector<float> x = awkward_floats();
  std::vector<float> wide(n);
  for (std::size_t i = 0; i < wide.size(); ++i) wide[i] = x[i % x.size()];
  auto memory = poisoned<bf16>(n + 32);
  bf16* half = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64 / 2;
  cast({}, half, DType::bf16, wide.data(), DType::f32, n);
  for (std::size_t i = 0; i < wide.size(); ++i) ASSERT_EQ(half[i].bits, bf16(wide[i]).bits) << i;
}

/// The known answers published with Random123 (kat_vectors, philox4x32 10).
TEST(Philox, MatchesThePublishedAnswers) {
  struct Known {
    std::uint32_t counter[4], key[2], answer[4];
  };
  const Known known[] = {
      {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}, {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}};
  for (const Known& k : known) {
    std::uint32_t words[4] = {k.counter[0], k.counter[1], k.counter[2], k.counter[3]};
    u32x16 many[4] = {words[0], words[1], words[2], words[3]};
    philox4x32(words, k.key[0], k.key[1]);
    philox4x32(many, k.key[0], k.key[1]);
    for (int w = 0; w < 4; ++w) {
      EXPECT_EQ(words[w], k.answer[w]);
      for (int lane : {0, 1, 15}) EXPECT_EQ(many[w][lane], k.answer[w]);
    }
  }
}

std::vector<float> normals(std::int64_t n, std::uint64_t first, float std = 1, std::uint64_t seed = 42, std::uint64_t stream = 7) {
  auto x = poisoned<float>(n);
  normal({}, x.data(), n, std, seed, stream, first);
  return x;
}

// The definition: words 4 c .. 4 c + 3 of counter c make elements 4 c .. 4 c + 3 as two pairs of Box and Muller.
TEST(Normal, MatchesTheDefinitionInFp64) {
  constexpr std::uint64_t seed = 0x123456789abcdef0u, stream = 0xfedcba9876543210u;
  auto x = normals(4001, 0xfffffff0u * std::uint64_t{4}, 1.5f, seed, stream);  // the counter's second word comes into use
  for (std::size_t i = 0; i + 1 < x.size(); i += 2) {
    std::uint64_t c = 0xfffffff0u + std::uint64_t{i / 4};
    std::uint32_t w[4] = {static_cast<std::uint32_t>(c), static_cast<std::uint32_t>(c >> 32), 0x76543210u, 0xfedcba98u};
    philox4x32(w, 0x9abcdef0u, 0x12345678u);
    double u = (static_cast<double>(w[i % 4]) + 0.5) * 0x1p-32, angle = 2 * M_PI * static_cast<double>(w[i % 4 + 1]) * 0x1p-32;
    double radius = 1.5 * std::sqrt(-2 * std::log(u));
    // Near u = 1 the radius feels the rounding of u to fp32.
    double allowed = 2e-6 + 1.5 * 0x1p-23 / std::max(radius, 1e-3);
    ASSERT_NEAR(static_cast<double>(x[i]), radius * std::cos(angle), allowed) << i;
    ASSERT_NEAR(static_cast<double>(x[i + 1]), radius * std::sin(angle), allowed) << i;
  }
}

TEST(Normal, DoesNotDependOnHowTheRangeIsCut) {
  auto whole = normals(1013, 0);
  for (std::int64_t piece : {1, 3, 4, 63, 64, 65, 500}) {
    for (std::int64_t i = 0; i < 1013; i += piece) {
      std::int64_t n = std::min(piece, 1013 - i);
      auto part = normals(n, static_cast<std::uint64_t>(i));
      ASSERT_EQ(std::memcmp(part.data(), whole.data() + i, static_cast<std::size_t>(n) * sizeof(float)), 0) << piece << " " << i;
    }
  }
}

TEST(Normal, HasTheMomentsOfANormalAndIndependentStreams) {
  constexpr std::int64_t n = 1 << 20;
  auto x = normals(n, 0), other = normals(n, 0, 1, 42, 8), seeded = normals(n, 0, 1, 43);
  double moment[5] = {}, with_other = 0, with_seeded = 0, with_next = 0;
  std::int64_t beyond_two = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    double v = static_cast<double>(x[i]);
    ASSERT_TRUE(std::isfinite(v));
    for (int k = 1; k < 5; ++k) moment[k] += std::pow(v, k) / n;
    with_other += v * static_cast<double>(other[i]) / n;
    with_seeded += v * static_cast<double>(seeded[i]) / n;
    with_next += v * static_cast<double>(x[(i + 1) % x.size()]) / n;
    beyond_two += std::abs(v) > 2;
  }
  // Five standard deviations of each estimate.
  constexpr double deviation = 5.0 / 1024;
  EXPECT_NEAR(moment[1], 0, deviation);
  EXPECT_NEAR(moment[2], 1, deviation * std::sqrt(2));
  EXPECT_NEAR(moment[3], 0, deviation * std::sqrt(15));
  EXPECT_NEAR(moment[4], 3, deviation * std::sqrt(96));
  EXPECT_NEAR(with_other, 0, deviation);
  EXPECT_NEAR(with_seeded, 0, deviation);
  EXPECT_NEAR(with_next, 0, deviation);
  EXPECT_NEAR(static_cast<double>(beyond_two) / n, 0.0455, 0.001);
}

// Weights of old runs must be found again: these bits are frozen.
TEST(Normal, BitsAreFrozen) {
  EXPECT_EQ(digest(normals(1000, 0, 0.02f)).hex(), "2ec336966408a22750b5e835ea4243aa");
  EXPECT_EQ(counter_random(1, 2, 3), 4596455677072177004u);
}

TEST(CounterRandom, DependsOnEachArgument) {
  std::uint64_t base = counter_random(1, 2, 3);
  EXPECT_EQ(counter_random(1, 2, 3), base);
  for (int shift : {0, 31, 32, 63}) {
    std::uint64_t bit = std::uint64_t{1} << shift;
    EXPECT_NE(counter_random(1 ^ bit, 2, 3), base);
    EXPECT_NE(counter_random(1, 2 ^ bit, 3), base);
    EXPECT_NE(counter_random(1, 2, 3 ^ bit), base);
  }
}

TEST(Elementwise, SameBitsForAnyThreadCount) {
  expect_same_bits([] {
    constexpr std::int64_t M = 1200, N = 77, n = M * N;
    auto x = random_values<float>(n, 1), out = poisoned<float>(n), sum = std::vector<float>(N, 0.5f);
    auto half = poisoned<bf16>(n);
    Workspace workspace(column_sums_workspace_bytes({.M = M, .N = N}));
    column_sums(workspace.context(), {sum.data(), x.data(), M, N, DType::f32});
    add({}, out.data(), x.data(), x.data(), n, DType::f32);
    add({}, out.data(), out.data(), x.data(), n, DType::f32);
    add_scaled({}, {.out = out.data(), .x = out.data(), .y = x.data(), .scale = 0.3f, .n = n});
    cast({}, half.data(), DType::bf16, out.data(), DType::f32, n);
    fill_zero({}, x.data(), static_cast<std::size_t>(n) * 3);
    return digest(sum, out, half, x, normals(n, 12345));
  });
}

}  // namespace
}  // namespace tessera::kernels::testing::elementwise_test
