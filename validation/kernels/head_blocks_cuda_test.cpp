#include "device_array.hpp"
#include "head_blocks_cases.hpp"

namespace tessera::kernels::testing::head_blocks_cuda_test {
namespace {

class HeadBlocksCuda : public OnDevice {};

template <class T>
HeadBlocksResults<T> on_device(const HeadBlocksCase& c, const std::vector<T>& of_rows, const std::vector<T>& of_blocks,
                               std::int64_t shift) {
  DeviceArray<T> from_rows(of_rows, shift), from_blocks(of_blocks, shift), blocks(c.blocks(), shift), rows(c.rows(), shift);
  HeadBlocks p = shape_of(c, dtype_of<T>());
  p.from = from_rows.data(), p.to = blocks.data();
  cuda::rows_to_head_blocks({}, p);
  p.from = from_blocks.data(), p.to = rows.data();
  cuda::head_blocks_to_rows({}, p);
  return {blocks.host(), rows.host()};
}

// Whole sixteen bytes where heads have them, single elements elsewhere and where operands lie anyhow.
template <class T>
void compare() {
  for (const HeadBlocksCase& c : head_blocks_cases)
    for (const std::int64_t shift : {0, 1}) {
      SCOPED_TRACE(::testing::Message() << c.B << " x " << c.T << " tokens of " << c.H << " and " << c.G << " heads over " << c.N
                                        << ", shifted by " << shift);
      const auto rows = random_values<T>(c.rows(), 7), blocks = random_values<T>(c.blocks(), 8);
      const HeadBlocksResults<T> got = on_device(c, rows, blocks, shift), expected = by_definition(c, rows, blocks);
      EXPECT_TRUE(same_values(got.blocks, expected.blocks));
      EXPECT_TRUE(same_values(got.rows, expected.rows));
    }
}
TEST_F(HeadBlocksCuda, AreTheirDefinitionInFp32) { compare<float>(); }
TEST_F(HeadBlocksCuda, AreTheirDefinitionInBf16) { compare<bf16>(); }
TEST_F(HeadBlocksCuda, AreTheirDefinitionInFp16) { compare<f16>(); }

}  // namespace
}  // namespace tessera::kernels::testing::head_blocks_cuda_test
