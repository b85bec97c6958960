#include "kernels/lion/lion.hpp"

#include "update_cases.hpp"

namespace tessera::kernels::testing::lion_test {
namespace {

TEST(Lion, IsItsDefinitionWithTheSameBitsAnywhere) {
  const UpdateTested lion_kernel{lion, 1, [](double& w, double* m, double g, int, double lr, double weight_decay) {
                                   const double mean = update_beta1 * *m + (1 - update_beta1) * g;
                                   w -= lr * weight_decay * w;
                                   w -= lr * (mean > 0 ? 1 : mean < 0 ? -1 : 0);
                                   *m = update_beta2 * *m + (1 - update_beta2) * g;
                                 }};
  lion_kernel.expect_all();
}

TEST(Lion, AMeanOfZeroMovesNothing) {
  UpdateState state(33);
  std::fill(state.state[0].begin(), state.state[0].end(), 0.0f);
  const UpdateState before = state;
  const std::vector<float> grad(33, 0.0f);
  const UpdateScalars s = scalars_of_step(1, 1e-2f, 1);
  Update p = state.call();
  p.grad = grad.data(), p.n = 33, p.scalars = &s;
  lion({}, p);
  EXPECT_EQ(state.master, before.master);
}

}  // namespace
}  // namespace tessera::kernels::testing::lion_test
