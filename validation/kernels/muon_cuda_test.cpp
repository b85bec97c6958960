#include "kernels/muon/muon.hpp"

#include "update_cuda_cases.hpp"

namespace tessera::kernels::testing::muon_cuda_test {
namespace {

class MuonCuda : public OnDevice {};

TEST_F(MuonCuda, HasTheBitsOfTheHost) {
  expect_bits_of_the_host(host::muon_momentum, cuda::muon_momentum);
  expect_bits_of_the_host(host::muon_nesterov, cuda::muon_nesterov);
  expect_bits_of_the_host(host::muon, cuda::muon);
}

}  // namespace
}  // namespace tessera::kernels::testing::muon_cuda_test
