#include "onebit_cases.hpp"
#include "update_cuda_cases.hpp"

namespace tessera::kernels::testing::onebit_cuda_test {
namespace {

class OnebitCuda : public OnDevice {};

TEST_F(OnebitCuda, WarmsUpWithTheBitsOfTheHost) { expect_bits_of_the_host(host::onebit_warmup, cuda::onebit_warmup); }

TEST_F(OnebitCuda, StepsFrozenWithTheBitsOfTheHost) {
  expect_bits_of_the_host([](const Context&, const Update& p) { frozen_step(host::onebit_momentum, host::onebit_frozen, p); },
                          [](const Context&, const Update& p) { frozen_step(cuda::onebit_momentum, cuda::onebit_frozen, p); });
}

}  // namespace
}  // namespace tessera::kernels::testing::onebit_cuda_test
