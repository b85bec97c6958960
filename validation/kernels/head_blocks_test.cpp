#include "base/check.hpp"
#include "head_blocks_cases.hpp"

namespace tessera::kernels::testing {
namespace {

template <class T>
HeadResults<T> on_host(const HeadCase& c, std::vector<T> values) {
  HeadResults<T> r{poisoned<T>(c.B * c.T * c.width()), poisoned<T>(c.B * c.T * c.width())};
  HeadBlocks p = shape_of(c, dtype_of<T>());
  p.from = values.data(), p.to = r.blocks.data();
  rows_to_head_blocks({}, p);
  p.to = r.rows.data();
  head_blocks_to_rows({}, p);
  return r;
}

template <class T>
void compare() {
  for (const HeadCase& c : head_cases) {
    SCOPED_TRACE(::testing::Message() << c.B << " x " << c.T << " tokens of " << c.H << " and " << c.G << " heads over " << c.N);
    const auto values = random_values<T>(c.B * c.T * c.width(), 7);
    const HeadResults<T> got = on_host(c, values), expected = by_definition(c, values);
    EXPECT_TRUE(same_values(got.blocks, expected.blocks));
    EXPECT_TRUE(same_values(got.rows, expected.rows));
  }
}
TEST(HeadBlocks, AreTheirDefinitionInFp32) { compare<float>(); }
TEST(HeadBlocks, AreTheirDefinitionInBf16) { compare<bf16>(); }

TEST(HeadBlocks, SameBitsOnAnyThreads) {
  const HeadCase large{2, 1000, 4, 8, 4, 64};
  const auto values = random_values<float>(large.B * large.T * large.width(), 8);
  expect_same_bits([&] {
    const HeadResults<float> r = on_host(large, values);
    return digest(r.blocks, r.rows);
  });
}

TEST(HeadBlocks, HeadsThatDoNotDivideAreRefused) {
  HeadBlocks p = shape_of({1, 1, 2, 3, 2, 2}, DType::f32);
  EXPECT_THROW(host::rows_to_head_blocks({}, p), Error);
}

}  // namespace
}  // namespace tessera::kernels::testing
