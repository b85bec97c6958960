#include "device_array.hpp"
#include "rope_cases.hpp"

namespace tessera::kernels::testing::rope_cuda_test {
namespace {

class RopeCuda : public OnDevice {};

template <class T>
void compare(const RopeCase& c, bool inverse, std::int64_t shift, bool documents = false) {
  SCOPED_TRACE(::testing::Message() << c << ", inverse " << inverse << ", shift " << shift);
  RopeInputs<T> in(c);
  DeviceArray<T> dx(in.x, shift);
  DeviceArray<float> device_table(in.table);
  const std::vector<std::int32_t> starts = in.starts();
  DeviceArray<std::int32_t> device_starts(starts);
  Rope p = in.arguments(inverse);
  if (documents) p.document_starts = starts.data();
  host::rope({}, p);
  p.x = dx.data(), p.table = device_table.data();
  if (documents) p.document_starts = device_starts.data();
  cuda::rope({}, p);
  EXPECT_EQ(digest(dx.host()).hex(), digest(in.x).hex());
}

// What lies behind the rotated heads is compared too.
TEST_F(RopeCuda, HasTheBitsOfTheHost) {
  for (const RopeCase& c : rope_cases) {
    for (bool inverse : {false, true}) {
      for (std::int64_t shift : {0, 1})
        compare<float>(c, inverse, shift), compare<bf16>(c, inverse, shift), compare<f16>(c, inverse, shift);
    }
  }
}

TEST_F(RopeCuda, PositionsRestartWithDocuments) {
  for (const RopeCase& c : rope_cases)
    for (bool inverse : {false, true})
      compare<float>(c, inverse, 0, true), compare<bf16>(c, inverse, 0, true), compare<f16>(c, inverse, 0, true);
}

}  // namespace
}  // namespace tessera::kernels::testing::rope_cuda_test
