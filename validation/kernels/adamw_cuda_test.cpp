#include "kernels/adamw/adamw.hpp"

#include "update_cuda_cases.hpp"

namespace tessera::kernels::testing::adamw_cuda_test {
namespace {

class AdamwCuda : public OnDevice {};

TEST_F(AdamwCuda, HasTheBitsOfTheHost) { expect_bits_of_the_host(host::adamw, cuda::adamw); }

}  // namespace
}  // namespace tessera::kernels::testing::adamw_cuda_test
