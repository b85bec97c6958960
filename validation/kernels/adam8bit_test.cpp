#include "adam8bit_cases.hpp"
#include "kernels/update/eight_bits_host.hpp"

namespace tessera::kernels::testing::adam8bit_test {
namespace {

/// bitsandbytes' create_dynamic_map, written out.
TEST(EightBits, AreTheDynamicMap) {
  for (const bool has_signs : {true, false}) {
    std::vector<double> values = {0, 1};
    for (int i = 0; i < 7; ++i) {
      const int cells = 1 << (has_signs ? i : i + 1);
      for (int j = 0; j < cells; ++j) {
        const double low = 0.1 + 0.9 * j / cells, high = 0.1 + 0.9 * (j + 1) / cells, value = std::pow(10.0, i - 6) * (low + high) / 2;
        values.push_back(value);
        if (has_signs) values.push_back(-value);
      }
    }
    std::ranges::sort(values);
    const EightBitMap& map = has_signs ? signed_eight_bits : unsigned_eight_bits;
    ASSERT_EQ(values.size(), 256u);
    for (std::size_t code = 0; code < 256; ++code)
      EXPECT_NEAR(static_cast<double>(map.value[code]), values[code], 1e-6 * std::abs(values[code])) << code;
    EXPECT_EQ(map.value[static_cast<std::size_t>(map.zero)], 0);
  }
}

/// Against all 256 values, around each border too.
TEST(EightBits, ACodeIsTheNearestValue) {
  for (const bool has_signs : {true, false}) {
    const EightBitMap& map = has_signs ? signed_eight_bits : unsigned_eight_bits;
    const EightBitSearch& search = has_signs ? signed_search : unsigned_search;
    std::vector<float> numbers = {0, 1, 1e-9f, 1e-7f, 0x1p-23f};
    for (std::size_t code = 0; code + 1 < 256; ++code) {
      const float border = (map.value[code] + map.value[code + 1]) / 2;
      for (const float x : {map.value[code], border, std::nextafter(border, 2.0f), std::nextafter(border, -2.0f)}) numbers.push_back(x);
    }
    for (const float x : random_values<float>(20000, 5, 6.0f))
      numbers.push_back((x < 0 && has_signs ? -1.0f : 1.0f) * std::pow(10.0f, -std::abs(x)));
    for (const float x : numbers) {
      double nearest = 2;
      for (const float value : map.value) nearest = std::min(nearest, std::abs(static_cast<double>(value) - static_cast<double>(x)));
      const std::uint32_t code = encode_eight_bits(search.row.data(), map.zero, x, 1);
      EXPECT_EQ(std::abs(static_cast<double>(map.value[code]) - static_cast<double>(x)), nearest) << x;
    }
  }
}

/// As many numbers at once as kernels encode: around each border, whatever the scale is, and where it has no inverse.
template <bool has_signs>
void expect_codes_of_blocks() {
  const EightBitMap& map = has_signs ? signed_eight_bits : unsigned_eight_bits;
  const EightBitSearch& search = has_signs ? signed_search : unsigned_search;
  for (const float scale : {1.0f, 0.7f, -0.3f, 1.9999999f, 3e-20f, 1e-37f, 0x1p-140f, 1e30f, 3e38f, 0.0f}) {
    if (!has_signs && scale < 0) continue;
    std::vector<float> numbers = {0, scale, -0.0f};
    const auto add = [&](float x) {
      numbers.push_back(x);
      if (has_signs) numbers.push_back(-x);
    };
    for (std::size_t code = static_cast<std::size_t>(map.zero); code + 1 < 256; ++code) {
      float x = scale * ((map.value[code] + map.value[code + 1]) / 2);
      for (int i = 0; i < 8; ++i) x = std::nextafter(x, 0.0f);
      for (int i = 0; i < 16; ++i) add(x = std::nextafter(x, scale));
      add(scale * map.value[code]);
    }
    for (const float x : random_values<float>(20000, 6, 6.0f)) add(scale * std::pow(10.0f, -std::abs(x)));
    numbers.resize(static_cast<std::size_t>(round_up(std::ssize(numbers), state_block)));
    std::uint8_t codes[state_block];
    for (std::size_t first = 0; first < numbers.size(); first += state_block) {
      host::update_detail::encode_block<has_signs>(codes, &numbers[first], scale);
      for (std::size_t i = 0; i < state_block; ++i)
        ASSERT_EQ(codes[i], encode_eight_bits(search.row.data(), map.zero, numbers[first + i], scale))
            << numbers[first + i] << " by " << scale << ", signs " << has_signs;
    }
  }
}
TEST(EightBits, BlocksHaveTheCodesOfTheirNumbers) {
  expect_codes_of_blocks<true>();
  expect_codes_of_blocks<false>();
}

/// What a checkpoint holds in fp32 comes back as the bits that were saved, whatever sign the largest number has.
TEST(EightBits, WhatWasDecodedIsEncodedToTheSameBits) {
  for (const StateType type : {StateType::signed_blocks, StateType::unsigned_blocks})
    for (const std::int64_t n : {1, 255, 256, 1000})
      for (unsigned seed = 1; seed <= 20; ++seed) {
        std::vector<float> values = random_values<float>(n, seed, seed % 3 == 0 ? 1e-30f : 1e-4f);
        for (float& x : values) x = type == StateType::unsigned_blocks ? x * x : seed % 2 == 0 ? -std::abs(x) : x;
        if (seed == 20) std::ranges::fill(values, 0.0f);
        std::vector<std::uint8_t> once(static_cast<std::size_t>(state_bytes(type, n)), 0xcc), twice(once.size(), 0xdd);
        encode_state(type, once.data(), values.data(), n);
        std::vector<float> decoded(values.size());
        decode_state(type, decoded.data(), once.data(), n);
        encode_state(type, twice.data(), decoded.data(), n);
        ASSERT_EQ(once, twice) << n << " numbers, seed " << seed;
        for (std::size_t i = 0; i < values.size(); ++i) {
          const std::size_t block = i / state_block * state_block;
          float most = 0;
          for (std::size_t k = block; k < std::min(values.size(), block + state_block); ++k) most = std::max(most, std::abs(values[k]));
          EXPECT_LE(std::abs(decoded[i] - values[i]), 0.0071f * most) << i;
        }
      }
  std::vector<std::uint8_t> cleared(state_block_bytes);
  std::vector<float> zeros(state_block, 1.0f);
  decode_state(StateType::signed_blocks, zeros.data(), cleared.data(), state_block);
  for (const float x : zeros) EXPECT_EQ(std::bit_cast<std::uint32_t>(x), 0u) << "a run begins with state of zero";
}

template <class Grad>
void expect_steps_by_the_definition(std::int64_t n, bool copy) {
  SCOPED_TRACE(::testing::Message() << n << " parameters, copy " << copy);
  BlockState expected(n), result(n);
  for (int t = 1; t <= 4; ++t) {
    const auto grad = update_gradients<Grad>(n, 10 + static_cast<unsigned>(t));
    UpdateScalars s = scalars_of_step(t, 3e-3f, 0.7f);
    s.skip = t == 3;
    Update p = result.call(copy);
    p.grad = grad.data(), p.grad_dtype = dtype_of<Grad>(), p.n = n, p.rate_scale = 0.6f, p.weight_decay = 0.1f, p.scalars = &s;
    adam8bit({}, p);
    step_in_blocks(expected, p);
    ASSERT_EQ(result.hash(), expected.hash()) << "step " << t;
  }
}

TEST(Adam8bit, IsAdamWBetweenItsCodes) {
  for (const std::int64_t n : block_counts)
    for (const bool copy : {true, false}) {
      expect_steps_by_the_definition<float>(n, copy);
      expect_steps_by_the_definition<bf16>(n, copy);
      expect_steps_by_the_definition<std::int64_t>(n, copy);
    }
}

TEST(Adam8bit, HasItsBitsOnAnyThreads) {
  expect_same_bits([] {
    BlockState state(100003);
    const auto grad = random_values<float>(100003, 9);
    const UpdateScalars s = scalars_of_step(1, 1e-2f, 1);
    Update p = state.call(true);
    p.grad = grad.data(), p.n = std::ssize(grad), p.scalars = &s;
    adam8bit({}, p);
    return state.hash();
  });
}

}  // namespace
}  // namespace tessera::kernels::testing::adam8bit_test
