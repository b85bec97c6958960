#include "device_array.hpp"
#include "head_blocks_cases.hpp"

namespace tessera::kernels::testing {
namespace {

class HeadBlocksCuda : public OnDevice {};

template <class T>
HeadResults<T> on_device(const HeadCase& c, const std::vector<T>& values, std::int64_t shift = 0) {
  const std::int64_t n = c.B * c.T * c.width();
  DeviceArray<T> from(values, shift), blocks(n, shift), rows(n, shift);
  HeadBlocks p = shape_of(c, dtype_of<T>());
  p.from = from.data(), p.to = blocks.data();
  cuda::rows_to_head_blocks({}, p);
  p.to = rows.data();
  cuda::head_blocks_to_rows({}, p);
  return {blocks.host(), rows.host()};
}

// Whole sixteen bytes where heads have them, single elements elsewhere and where operands lie anyhow.
template <class T>
void compare() {
  for (const HeadCase& c : head_cases)
    for (const std::int64_t shift : {0, 1}) {
      SCOPED_TRACE(::testing::Message() << c.B << " x " << c.T << " tokens of " << c.H << " and " << c.G << " heads over " << c.N
                                        << ", shifted by " << shift);
      const auto values = random_values<T>(c.B * c.T * c.width(), 7);
      const HeadResults<T> got = on_device(c, values, shift), expected = by_definition(c, values);
      EXPECT_TRUE(same_values(got.blocks, expected.blocks));
      EXPECT_TRUE(same_values(got.rows, expected.rows));
    }
}
TEST_F(HeadBlocksCuda, AreTheirDefinitionInFp32) { compare<float>(); }
TEST_F(HeadBlocksCuda, AreTheirDefinitionInBf16) { compare<bf16>(); }

}  // namespace
}  // namespace tessera::kernels::testing
