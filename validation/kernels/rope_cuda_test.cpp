#include "device_array.hpp"
#include "documents.hpp"
#include "kernels/rope/rope.hpp"

namespace tessera::kernels::testing::rope_cuda_test {
namespace {

class RopeCuda : public OnDevice {};

struct Case {
  std::int64_t M, T, heads, D, stride;
};
const Case cases[] = {{1, 1, 1, 2, 2},     {77, 77, 3, 64, 5 * 64}, {24, 8, 4, 128, 6 * 128},
                      {10, 5, 2, 48, 101}, {9, 9, 1, 6, 7},         {3, 16, 5, 18, 96}};

template <class T>
void compare(const Case& c, bool inverse, std::int64_t shift, bool documents = false) {
  SCOPED_TRACE(::testing::Message() << c.M << " rows, T " << c.T << ", heads " << c.heads << ", D " << c.D << ", stride " << c.stride);
  auto x = random_values<T>(c.M * c.stride, 1);
  std::vector<float> table(static_cast<std::size_t>(c.T * c.D));
  rope_table(table.data(), 3, c.T, c.D, 10000, {});
  DeviceArray<T> dx(x, shift);
  DeviceArray<float> device_table(table);
  Rope p{.x = x.data(),
         .table = table.data(),
         .M = c.M,
         .T = c.T,
         .heads = c.heads,
         .D = c.D,
         .stride = c.stride,
         .inverse = inverse,
         .dtype = dtype_of<T>()};
  const std::vector<std::int32_t> starts = random_documents(ceil_div(c.M, c.T), c.T, 3);
  DeviceArray<std::int32_t> device_starts(starts);
  if (documents) p.document_starts = starts.data();
  host::rope({}, p);
  p.x = dx.data(), p.table = device_table.data();
  if (documents) p.document_starts = device_starts.data();
  cuda::rope({}, p);
  EXPECT_EQ(digest(dx.host()).hex(), digest(x).hex());
}

// What lies behind the rotated heads is compared too.
TEST_F(RopeCuda, HasTheBitsOfTheHost) {
  for (const Case& c : cases) {
    for (bool inverse : {false, true}) {
      for (std::int64_t shift : {0, 1}) compare<float>(c, inverse, shift), compare<bf16>(c, inverse, shift);
    }
  }
}

TEST_F(RopeCuda, PositionsRestartWithDocuments) {
  for (const Case& c : cases)
    for (bool inverse : {false, true}) compare<float>(c, inverse, 0, true), compare<bf16>(c, inverse, 0, true);
}

}  // namespace
}  // namespace tessera::kernels::testing::rope_cuda_test
