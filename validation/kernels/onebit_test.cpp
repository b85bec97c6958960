#include "onebit_cases.hpp"

namespace tessera::kernels::testing::onebit_test {
namespace {

/// DeepSpeed's OnebitAdam before freeze_step: its step, its decay, no bias correction.
TEST(OnebitWarmup, IsAdamWithoutBiasCorrectionWithTheSameBitsAnywhere) {
  const UpdateTested warmup{onebit_warmup, 2, [](double& w, double* state, double g, int, double lr, double weight_decay) {
                              auto& [m, v] = *reinterpret_cast<double(*)[2]>(state);
                              m = update_beta1 * m + (1 - update_beta1) * g;
                              v = update_beta2 * v + (1 - update_beta2) * g * g;
                              w -= lr * (m / (std::sqrt(v) + 1e-8) + weight_decay * w);
                            }};
  warmup.expect_all();
}

TEST(OnebitFrozen, LeavesTheMeanOfSquaresAsItIs) {
  for (const UpdateCase& c : update_cases) {
    SCOPED_TRACE(::testing::Message() << c);
    UpdateState now(c.n);
    const UpdateState before = now;
    std::vector<double> w = doubles(now.master), m = doubles(now.state[0]);
    const std::vector<double> v = doubles(now.state[1]);
    constexpr float lr = 3e-3f, decay = 0.1f;
    for (int t = 1; t <= 5; ++t) {
      const auto grad = c.skip ? poisoned<float>(c.n) : random_values<float>(c.n, 100 + static_cast<unsigned>(t), 1e-3f);
      UpdateScalars s = scalars_of_step(t, lr, 0.25f);
      s.skip = c.skip;
      Update p = now.call(0, c.copy);
      p.grad = grad.data(), p.n = c.n, p.weight_decay = decay, p.scalars = &s;
      frozen_step(onebit_momentum, onebit_frozen, p);
      for (std::size_t i = 0; i < grad.size(); ++i) {
        m[i] = update_beta1 * m[i] + (1 - update_beta1) * static_cast<double>(grad[i] * 0.25f);
        w[i] -= static_cast<double>(lr) * (m[i] / (std::sqrt(v[i]) + 1e-8) + static_cast<double>(decay) * w[i]);
      }
    }
    EXPECT_EQ(digest(now.state[1]), digest(before.state[1]));
    if (c.skip) {
      EXPECT_EQ(digest(now.master, now.state[0]), digest(before.master, before.state[0]));
      continue;
    }
    EXPECT_LT(relative_error(now.master, w), 1e-6);
    EXPECT_LT(relative_error(now.state[0], m), 1e-6);
    for (std::size_t i = 0; i < w.size() && c.copy; ++i) ASSERT_EQ(now.param[i], bf16(now.master[i])) << i;
  }
}

}  // namespace
}  // namespace tessera::kernels::testing::onebit_test
