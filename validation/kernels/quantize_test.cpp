#include "quantize_cases.hpp"

namespace tessera::kernels::testing::quantize_test {
namespace {

std::vector<std::byte> encoded(const void* x, DType dtype, std::int64_t n, Wire wire) {
  auto blocks = poisoned<std::byte>(wire_bytes(wire, n));
  encode_blocks({}, {.blocks = blocks.data(), .x = x, .dtype = dtype, .n = n, .wire = wire});
  return blocks;
}
template <class T>
std::vector<T> decoded(const std::vector<std::byte>& blocks, std::int64_t n, Wire wire) {
  auto x = poisoned<T>(n);
  decode_blocks({}, {.x = x.data(), .blocks = blocks.data(), .dtype = dtype_of<T>(), .n = n, .wire = wire});
  return x;
}

/// The definition, of one block.
template <class T>
void expect_block(const T* x, const T* back, const std::byte* block, Wire wire) {
  float largest = 0, scale = 0;
  for (std::int64_t i = 0; i < wire_block; ++i) largest = std::max(largest, std::abs(static_cast<float>(x[i])));
  if (largest < 0x1p-100f) largest = 0;
  const int most = largest_code(wire);
  std::memcpy(&scale, block, sizeof scale);
  EXPECT_EQ(scale, largest / static_cast<float>(most));
  const double inverse = largest == 0 ? 0 : static_cast<double>(static_cast<float>(most) / largest);
  for (std::int64_t i = 0; i < wire_block; ++i) {
    const double code = std::nearbyint(static_cast<double>(static_cast<float>(x[i])) * inverse);
    ASSERT_LE(std::abs(code), most);
    const auto at = wire == Wire::int8_blocks ? i : i / 32 * 16 + i % 16;
    auto byte = static_cast<std::int8_t>(block[4 + at]);
    if (wire == Wire::int4_blocks) byte = static_cast<std::int8_t>(i % 32 < 16 ? static_cast<std::int8_t>(byte << 4) >> 4 : byte >> 4);
    ASSERT_EQ(byte, code) << i;
    ASSERT_EQ(static_cast<float>(back[i]), static_cast<float>(T(static_cast<float>(code) * scale))) << i;
  }
}

template <class T>
void check_blocks() {
  for (const Wire wire : block_wires)
    for (const std::int64_t n : quantized_lengths) {
      const auto x = block_values<T>(n, 1);
      const auto blocks = encoded(x.data(), dtype_of<T>(), n, wire);
      const auto back = decoded<T>(blocks, n, wire);
      for (std::int64_t at = 0; at < n; at += wire_block)
        expect_block(&x[static_cast<std::size_t>(at)], &back[static_cast<std::size_t>(at)], blocks.data() + wire_bytes(wire, at), wire);
    }
}

TEST(Quantize, BlocksAreTheirDefinition) {
  check_blocks<float>();
  check_blocks<bf16>();
  check_blocks<f16>();
}

TEST(Quantize, ABlockTakes260BytesOr132) {
  EXPECT_EQ(wire_bytes(Wire::int8_blocks, 2 * wire_block), 520);
  EXPECT_EQ(wire_bytes(Wire::int4_blocks, 2 * wire_block), 264);
}

// Whoever owns which blocks, they have the same bytes.
TEST(Quantize, BlocksDoNotDependOnTheirNeighbours) {
  const std::int64_t n = 12 * wire_block;
  const auto x = block_values<float>(n, 2);
  for (const Wire wire : block_wires) {
    const auto whole = encoded(x.data(), DType::f32, n, wire);
    for (const std::int64_t owners : {2, 3, 4}) {
      std::vector<std::byte> parts;
      for (std::int64_t r = 0; r < owners; ++r)
        for (const std::byte b : encoded(&x[static_cast<std::size_t>(r * n / owners)], DType::f32, n / owners, wire)) parts.push_back(b);
      EXPECT_EQ(parts, whole);
    }
  }
}

TEST(Quantize, WhatIsNotFiniteMakesItsBlockNaN) {
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const Wire wire : block_wires)
    for (const float wild : {infinity, -infinity, nan, -nan})
      for (const std::size_t at : {0u, 17u, 255u}) {
        const auto x = block_with(wild, at);
        const auto blocks = encoded(x.data(), DType::f32, 3 * wire_block, wire);
        const auto back = decoded<float>(blocks, 3 * wire_block, wire);
        std::vector<float> sum(x.size(), 1.0f);
        sum_blocks({}, {.sum = sum.data(), .blocks = blocks.data(), .n = 3 * wire_block, .members = 1, .accumulate = true, .wire = wire});
        for (std::size_t i = 0; i < x.size(); ++i) {
          EXPECT_EQ(std::isnan(back[i]), i / 256 == 1) << i;
          EXPECT_EQ(std::isnan(sum[i]), i / 256 == 1) << i;
        }
      }
}

TEST(Quantize, SumsAddMembersInTheirOrder) {
  for (const Wire wire : block_wires)
    for (const int members : {1, 2, 5})
      for (const bool accumulate : {false, true}) {
        const std::int64_t n = 5 * wire_block;
        std::vector<std::byte> blocks;
        auto expected = random_values<float>(n, 9), sum = expected;
        if (!accumulate) expected.assign(expected.size(), 0.0f), sum = poisoned<float>(n);
        for (int m = 0; m < members; ++m) {
          const auto x = random_values<float>(n, static_cast<unsigned>(m));
          const auto one = encoded(x.data(), DType::f32, n, wire);
          blocks.insert(blocks.end(), one.begin(), one.end());
          for (std::int64_t i = 0; i < n; ++i) {
            float scale;
            std::memcpy(&scale, one.data() + wire_bytes(wire, i / wire_block * wire_block), sizeof scale);
            const float code = std::nearbyint(decoded<float>(one, n, wire)[static_cast<std::size_t>(i)] / scale);
            float& at = expected[static_cast<std::size_t>(i)];
            at = std::fma(code, scale, at);
          }
        }
        sum_blocks({}, {.sum = sum.data(), .blocks = blocks.data(), .n = n, .members = members, .accumulate = accumulate, .wire = wire});
        EXPECT_EQ(sum, expected) << members;
      }
}

/// The definition in fp64, near: what was kept, decoded, and what the wire has now.
void expect_errors(const std::vector<float>& x, const std::vector<float>& before, const std::vector<std::byte>& blocks,
                   const std::vector<float>& after, const EncodeWithError& p) {
  const double scale = p.loss_scale ? *p.loss_scale : 1;
  const bool anew = p.updates && *p.updates % p.interval == 0;
  const auto sent = decoded<float>(blocks, p.n, p.wire);
  for (std::size_t at = 0; at < x.size(); at += wire_block) {
    double step = 0, kept = 0;
    std::vector<double> error(wire_block);
    for (std::size_t i = 0; i < wire_block; ++i) {
      const double e = anew ? 0 : before[at + i] * scale, v = static_cast<double>(x[at + i]) + e;
      step = std::max(step, std::abs(v) / largest_code(p.wire));
      error[i] = p.beta * e + (1.0 - static_cast<double>(p.beta)) * (v - static_cast<double>(sent[at + i]));
      kept = std::max(kept, std::abs(error[i]) / 127);
    }
    for (std::size_t i = 0; i < wire_block; ++i) {
      const double e = anew ? 0 : before[at + i] * scale;
      ASSERT_NEAR(sent[at + i], static_cast<double>(x[at + i]) + e, 0.50001 * step + 1e-30) << at + i;
      ASSERT_NEAR(after[at + i] * scale, error[i], 0.501 * kept + 1e-5 * step + 1e-30) << at + i;
    }
  }
}

TEST(Quantize, ErrorsAreKeptAsDefined) {
  for (const Wire wire : block_wires)
    for (const std::int64_t n : quantized_lengths)
      for (const ErrorCase& c : error_cases) {
        EncodeWithError p = error_call(c);
        auto kept = random_values<float>(n, 11);
        for (float& e : kept) e *= 0.05f;
        auto error = encoded(kept.data(), DType::f32, n, Wire::int8_blocks);
        for (const unsigned seed : {1u, 12u}) {
          const auto x = block_values<float>(n, seed);
          const auto before = decoded<float>(error, n, Wire::int8_blocks);
          auto blocks = poisoned<std::byte>(wire_bytes(wire, n));
          p.blocks = blocks.data(), p.error = error.data(), p.x = x.data(), p.n = n, p.wire = wire;
          encode_with_error({}, p);
          expect_errors(x, before, blocks, decoded<float>(error, n, Wire::int8_blocks), p);
        }
      }
}

// One that is kept is sent later: over many rounds of one gradient the sum of what was sent is that of what was asked.
TEST(Quantize, WhatIsKeptComesLater) {
  const std::int64_t n = 4 * wire_block;
  const auto x = random_values<float>(n, 13);
  std::vector<std::byte> error(static_cast<std::size_t>(wire_bytes(Wire::int8_blocks, n))),
      blocks(static_cast<std::size_t>(wire_bytes(Wire::int4_blocks, n)));
  std::vector<double> sent(x.size()), plain(x.size());
  constexpr int rounds = 200;
  for (int round = 0; round < rounds; ++round) {
    encode_with_error({}, {.blocks = blocks.data(), .error = error.data(), .x = x.data(), .n = n});
    const auto now = decoded<float>(blocks, n, Wire::int4_blocks);
    const auto without = decoded<float>(encoded(x.data(), DType::f32, n, Wire::int4_blocks), n, Wire::int4_blocks);
    for (std::size_t i = 0; i < x.size(); ++i) sent[i] += now[i] / rounds, plain[i] += without[i] / rounds;
  }
  double with = 0, none = 0;
  for (std::size_t i = 0; i < x.size(); ++i) with += std::pow(sent[i] - x[i], 2), none += std::pow(plain[i] - x[i], 2);
  EXPECT_LT(with, 0.5 * none) << with << " " << none;
}

TEST(Quantize, AnErrorThatIsNotFiniteIsDropped) {
  const std::int64_t n = 3 * wire_block;
  for (const float wild : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    const auto x = block_with(wild, 40);
    auto error = encoded(random_values<float>(n, 14).data(), DType::f32, n, Wire::int8_blocks);
    auto blocks = poisoned<std::byte>(wire_bytes(Wire::int4_blocks, n));
    encode_with_error({}, {.blocks = blocks.data(), .error = error.data(), .x = x.data(), .n = n});
    const auto sent = decoded<float>(blocks, n, Wire::int4_blocks), kept = decoded<float>(error, n, Wire::int8_blocks);
    for (std::size_t i = 0; i < x.size(); ++i) {
      EXPECT_EQ(std::isnan(sent[i]), i / 256 == 1) << i;
      EXPECT_TRUE(i / 256 == 1 ? kept[i] == 0 : std::isfinite(kept[i])) << i;
    }
  }
}

TEST(Quantize, TheSameBitsOverThreads) {
  expect_same_bits([] {
    const std::int64_t n = 300 * wire_block;
    const auto x = block_values<float>(n, 4);
    const auto blocks = encoded(x.data(), DType::f32, n, Wire::int4_blocks);
    std::vector<float> sum(x.size(), 0.0f);
    sum_blocks({}, {.sum = sum.data(), .blocks = blocks.data(), .n = n / 2, .members = 2, .wire = Wire::int4_blocks});
    auto error = encoded(x.data(), DType::f32, n, Wire::int8_blocks), again = blocks;
    encode_with_error({}, {.blocks = again.data(), .error = error.data(), .x = x.data(), .n = n});
    return digest(blocks, error, again, sum, decoded<bf16>(blocks, n, Wire::int4_blocks));
  });
}

}  // namespace
}  // namespace tessera::kernels::testing::quantize_test
