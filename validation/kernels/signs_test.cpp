#include "signs_cases.hpp"

#include <ostream>

namespace tessera::kernels::testing::signs_test {
namespace {

std::vector<float> sums_of(const std::vector<float>& x, const std::vector<float>& error) {
  std::vector<float> v;
  for (std::size_t i = 0; i < error.size(); ++i) v.push_back(x.empty() ? error[i] : x[i] + error[i]);
  return v;
}

/// Blocks of each rank's part, and what is left in `error`.
SignBlocksOf packed(const SignCase& c, const std::vector<float>& x, std::vector<float>& error) {
  SignBlocksOf blocks(c, c.ranks);
  FixedSum sum;
  const float* from = x.empty() ? nullptr : x.data();
  sum_sign_squares({}, {.sum = &sum, .x = from, .error = error.data(), .n = c.n});
  pack_signs({}, {.words = blocks.words.data(),
                  .scale = blocks.scale(blocks.words.data()),
                  .x = from,
                  .error = error.data(),
                  .sum = &sum,
                  .n = c.n,
                  .parts = c.ranks,
                  .part = blocks.part,
                  .step = blocks.step});
  return blocks;
}

TEST(Signs, AreTheirDefinitionAndLeaveWhatTheyTake) {
  for (const SignCase& c : sign_cases)
    for (const bool of_both : {true, false}) {
      SCOPED_TRACE(::testing::Message() << c.n << " numbers for " << c.ranks << " ranks, of both " << of_both);
      const std::vector<float> x = of_both ? signed_numbers(c.n, 1) : std::vector<float>();
      std::vector<float> error = signed_numbers(c.n, 2);
      const SignsByDefinition expected(sums_of(x, error));
      SignBlocksOf blocks = packed(c, x, error);
      EXPECT_EQ(digest(error), digest(expected.left));
      for (std::int64_t part = 0; part < c.ranks; ++part) {
        ASSERT_EQ(*blocks.scale(blocks.words.data(), part), expected.scale);
        ASSERT_EQ(blocks.word(blocks.words.data(), part)[blocks.step - 1], 0xffffffffu) << "another tensor's word";
        for (std::int64_t k = 0; k < blocks.part; ++k) {
          const std::int64_t i = part * blocks.part + k;
          const std::uint32_t bit = blocks.word(blocks.words.data(), part)[k / 32] >> (k % 32) & 1u;
          ASSERT_EQ(bit, i < c.n && expected.up[static_cast<std::size_t>(i)] ? 1u : 0u) << i;
        }
      }
      std::vector<float> back = poisoned<float>(c.n);
      unpack_signs({}, {.x = back.data(),
                        .words = blocks.words.data(),
                        .scale = blocks.scale(blocks.words.data()),
                        .n = c.n,
                        .part = blocks.part,
                        .step = blocks.step});
      for (std::size_t i = 0; i < back.size(); ++i) ASSERT_EQ(back[i], expected.up[i] ? expected.scale : -expected.scale) << i;
    }
}

TEST(Signs, OfMembersAreAddedInTheirOrderBeforeWhatWasLeft) {
  for (const SignCase& c : sign_cases) {
    SCOPED_TRACE(::testing::Message() << c.n << " numbers of " << c.ranks << " members");
    SignCase one{c.n, 1};
    SignBlocksOf all(one, c.ranks);
    std::vector<float> error = signed_numbers(c.n, 7), expected(error.size());
    const std::vector<float> before = error;
    for (int m = 0; m < c.ranks; ++m) {
      std::vector<float> left = signed_numbers(c.n, 20 + static_cast<unsigned>(m), std::ldexp(1.0f, m));
      const SignsByDefinition of(left);
      const SignBlocksOf block = packed(one, {}, left);
      std::copy_n(block.words.begin(), all.step, all.words.begin() + m * all.step);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        const float share = of.scale * (1.0f / static_cast<float>(c.ranks));
        expected[i] += of.up[i] ? share : -share;
      }
    }
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += before[i];
    sum_signs({}, {.error = error.data(),
                   .words = all.words.data(),
                   .scale = all.scale(all.words.data()),
                   .n = c.n,
                   .members = c.ranks,
                   .step = all.step});
    EXPECT_EQ(digest(error), digest(expected));
  }
}

/// Numbers of a large tensor are written around the caches.
TEST(Signs, OfALargeTensorAreThoseOfItsWords) {
  constexpr std::int64_t n = (8 << 20) + 21, words = (n + sign_word - 1) / sign_word;
  std::vector<std::uint32_t> signs(words);
  std::mt19937 random(3);
  for (std::uint32_t& word : signs) word = static_cast<std::uint32_t>(random());
  const float scale = 0.25f;
  std::vector<float> room = poisoned<float>(n + 32);
  auto* x = reinterpret_cast<float*>(round_up(reinterpret_cast<std::intptr_t>(room.data()), 64));
  unpack_signs({}, {.x = x, .words = signs.data(), .scale = &scale, .n = n, .part = words * sign_word});
  for (std::int64_t i = 0; i < n; ++i) ASSERT_EQ(x[i], signs[static_cast<std::size_t>(i / 32)] >> (i % 32) & 1u ? scale : -scale) << i;
  EXPECT_TRUE(std::isnan(x[n]));
}

/// A rank to which nothing of a tensor falls sends words all the same.
TEST(Signs, OfNothingAreZeros) {
  SignBlocksOf block({32, 1}, 1);
  FixedSum sum;
  pack_signs({}, {.words = block.words.data(), .scale = block.scale(block.words.data()), .sum = &sum, .n = 0, .part = 32, .step = 3});
  EXPECT_EQ(block.words, (std::vector<std::uint32_t>{0, 0, 0xffffffffu}));
  sum_signs({}, {});
  unpack_signs({}, {});
}

TEST(Signs, OfNaNAreUp) {
  std::vector<float> error(40, -1.0f);
  error[3] = error[35] = std::numeric_limits<float>::quiet_NaN();
  const SignBlocksOf block = packed({40, 1}, {}, error);
  EXPECT_EQ(block.words[0], 1u << 3);
  EXPECT_EQ(block.words[1], 1u << 3);
}

TEST(Signs, HaveTheSameBitsOverThreads) {
  expect_same_bits([] {
    const SignCase c{100'003, 3};
    std::vector<float> error = signed_numbers(c.n, 2), x = signed_numbers(c.n, 3), mean = signed_numbers(c.n, 4);
    SignBlocksOf blocks = packed(c, x, error);
    unpack_signs({}, {.x = x.data(),
                      .words = blocks.words.data(),
                      .scale = blocks.scale(blocks.words.data()),
                      .n = c.n,
                      .part = blocks.part,
                      .step = blocks.step});
    sum_signs({}, {.error = mean.data(),
                   .words = blocks.words.data(),
                   .scale = blocks.scale(blocks.words.data()),
                   .n = blocks.part,
                   .members = c.ranks,
                   .step = blocks.step});
    return digest(error, x, mean, blocks.words);
  });
}

}  // namespace
}  // namespace tessera::kernels::testing::signs_test
