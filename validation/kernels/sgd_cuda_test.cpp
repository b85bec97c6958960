#include "kernels/sgd/sgd.hpp"

#include "update_cuda_cases.hpp"

namespace tessera::kernels::testing::sgd_cuda_test {
namespace {

class SgdCuda : public OnDevice {};

TEST_F(SgdCuda, HasTheBitsOfTheHost) { expect_bits_of_the_host(host::sgd, cuda::sgd); }

}  // namespace
}  // namespace tessera::kernels::testing::sgd_cuda_test
