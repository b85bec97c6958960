#include "kernels/lion/lion.hpp"

#include "update_cuda_cases.hpp"

namespace tessera::kernels::testing::lion_cuda_test {
namespace {

class LionCuda : public OnDevice {};

TEST_F(LionCuda, HasTheBitsOfTheHost) { expect_bits_of_the_host(host::lion, cuda::lion); }

}  // namespace
}  // namespace tessera::kernels::testing::lion_cuda_test
