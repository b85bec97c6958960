#include "base/check.hpp"
#include "head_blocks_cases.hpp"

namespace tessera::kernels::testing::head_blocks_test {
namespace {

template <class T>
HeadBlocksResults<T> on_host(const HeadBlocksCase& c, const std::vector<T>& rows, const std::vector<T>& blocks) {
  HeadBlocksResults<T> r{poisoned<T>(c.blocks()), poisoned<T>(c.rows())};
  HeadBlocks p = shape_of(c, dtype_of<T>());
  p.from = rows.data(), p.to = r.blocks.data();
  rows_to_head_blocks({}, p);
  p.from = blocks.data(), p.to = r.rows.data();
  head_blocks_to_rows({}, p);
  return r;
}

template <class T>
void compare() {
  for (const HeadBlocksCase& c : head_blocks_cases) {
    SCOPED_TRACE(::testing::Message() << c.B << " x " << c.T << " tokens of " << c.H << " and " << c.G << " heads over " << c.N);
    const auto rows = random_values<T>(c.rows(), 7), blocks = random_values<T>(c.blocks(), 8);
    const HeadBlocksResults<T> got = on_host(c, rows, blocks), expected = by_definition(c, rows, blocks);
    EXPECT_TRUE(same_values(got.blocks, expected.blocks));
    EXPECT_TRUE(same_values(got.rows, expected.rows));
  }
}
TEST(HeadBlocks, AreTheirDefinitionInFp32) { compare<float>(); }
TEST(HeadBlocks, AreTheirDefinitionInBf16) { compare<bf16>(); }
TEST(HeadBlocks, AreTheirDefinitionInFp16) { compare<f16>(); }

TEST(HeadBlocks, SameBitsOnAnyThreads) {
  const HeadBlocksCase large{2, 1000, 4, 8, 2, 64};
  const auto rows = random_values<float>(large.rows(), 8), blocks = random_values<float>(large.blocks(), 9);
  expect_same_bits([&] {
    const HeadBlocksResults<float> r = on_host(large, rows, blocks);
    return digest(r.blocks, r.rows);
  });
}

TEST(HeadBlocks, HeadsThatDoNotDivideAreRefused) {
  for (const HeadBlocksCase& c : {HeadBlocksCase{1, 1, 2, 3, 2, 2}, HeadBlocksCase{1, 1, 4, 12, 6, 2}}) {
    EXPECT_THROW(host::rows_to_head_blocks({}, shape_of(c, DType::f32)), Error);
    EXPECT_THROW(host::head_blocks_to_rows({}, shape_of(c, DType::f32)), Error);
  }
}

}  // namespace
}  // namespace tessera::kernels::testing::head_blocks_test
