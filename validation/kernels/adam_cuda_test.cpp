#include "kernels/adam/adam.hpp"

#include "update_cuda_cases.hpp"

namespace tessera::kernels::testing::adam_cuda_test {
namespace {

class AdamCuda : public OnDevice {};

TEST_F(AdamCuda, HasTheBitsOfTheHost) { expect_bits_of_the_host(host::adam, cuda::adam); }

}  // namespace
}  // namespace tessera::kernels::testing::adam_cuda_test
