#include "lamb_cases.hpp"
#include "update_cuda_cases.hpp"

namespace tessera::kernels::testing::lamb_cuda_test {
namespace {

class LambCuda : public OnDevice {};

void on_host(const Context&, const Update& p) {
  FixedSum sums[2];
  lamb_of_tensor(host::lamb_moments, host::lamb, sums, p);
}
void on_device(const Context&, const Update& p) {
  DeviceArray<FixedSum> sums(std::vector<FixedSum>(2));
  lamb_of_tensor(cuda::lamb_moments, cuda::lamb, sums.data(), p);
}

TEST_F(LambCuda, HasTheBitsOfTheHost) { expect_bits_of_the_host(on_host, on_device); }

TEST_F(LambCuda, SumsSquaresOfAllSizesExactly) {
  constexpr std::int64_t n = 9003;
  const std::vector<float> weights = weights_of_all_sizes(n), grad = random_values<float>(n, 9);
  UpdateState state(n);
  DeviceArray<float> master(weights), m(state.state[0]), v(state.state[1]), g(grad);
  DeviceArray<UpdateScalars> scalars(std::vector<UpdateScalars>{scalars_of_step(7, 1e-2f, 0.7f)});
  DeviceArray<FixedSum> sums(std::vector<FixedSum>(2));
  cuda::lamb_moments(
      {},
      {.master = master.data(), .state = {m.data(), v.data()}, .grad = g.data(), .n = n, .scalars = scalars.data(), .sums = sums.data()});
  EXPECT_EQ(sums.host()[0].value(), sum_of_each_square(weights).value());
}

}  // namespace
}  // namespace tessera::kernels::testing::lamb_cuda_test
