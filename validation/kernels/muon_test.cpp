#include "kernels/muon/muon.hpp"

#include "update_cases.hpp"

namespace tessera::kernels::testing::muon_test {
namespace {

constexpr double momentum = 0.8;

/// Jordan's loop, whose gradient the orthogonal factor has taken the place of: it has no scale of gradients' any more.
TEST(Muon, DecaysAndStepsWithTheSameBitsAnywhere) {
  constexpr double grad_scale = 0.25;  // of expect_reference
  UpdateTested{muon, 0,
               [](double& w, double*, double g, int, double lr, double weight_decay) {
                 w *= 1 - lr * weight_decay;
                 w -= lr * (g / grad_scale);
               }}
      .expect_all();
}

/// The momentum of torch's lerp, and beside it what is made orthogonal, in bf16. The weights are left alone.
TEST(Muon, KeepsAMomentumAndLooksAhead) {
  for (const bool nesterov : {false, true})
    for (const std::int64_t n : {std::int64_t{1}, std::int64_t{77}, std::int64_t{9001}}) {
      UpdateState now(n);
      std::fill(now.state[0].begin(), now.state[0].end(), 0.0f);
      const UpdateState before = now;
      std::vector<double> m(now.master.size());
      for (int t = 1; t <= 20; ++t) {
        const auto grad = random_values<float>(n, 100 + static_cast<unsigned>(t));
        const UpdateScalars s = scalars_of_step(t, 3e-3f, 0.25f);
        Update p = now.call();
        p.grad = grad.data(), p.n = n, p.weight_decay = 0.1f, p.scalars = &s;
        nesterov ? muon_nesterov({}, p) : muon_momentum({}, p);
        for (std::size_t i = 0; i < m.size(); ++i) {
          const double g = static_cast<double>(grad[i] * 0.25f);
          m[i] = momentum * m[i] + (1 - momentum) * g;
          const double u = nesterov ? (1 - momentum) * g + momentum * m[i] : m[i];
          ASSERT_NEAR(static_cast<double>(now.state[0][i]), m[i], 1e-6) << i;
          ASSERT_NEAR(static_cast<double>(static_cast<float>(now.param[i])), u, 0.004 * std::abs(u) + 1e-6) << i;
        }
      }
      EXPECT_EQ(digest(now.master, now.state[1]), digest(before.master, before.state[1]));
    }
}

TEST(Muon, LeavesItsMomentumWhereAStepIsSkipped) {
  UpdateState now(77);
  const UpdateState before = now;
  const auto grad = poisoned<float>(77);
  UpdateScalars s = scalars_of_step(1, 3e-3f, 1);
  s.skip = 1;
  Update p = now.call();
  p.grad = grad.data(), p.n = 77, p.scalars = &s;
  muon_nesterov({}, p);
  EXPECT_EQ(digest(now.master, now.state[0]), digest(before.master, before.state[0]));
  for (std::size_t i = 0; i < 77; ++i) EXPECT_EQ(now.param[i], bf16(now.master[i]));
}

TEST(Muon, HasTheMomentumsBitsAnywhere) {
  for (const auto run : {muon_momentum, muon_nesterov}) {
    const UpdateTested tested{run, 1, {}};
    tested.expect_bits_of_any_place();
    tested.expect_any_gradient();
    tested.expect_states_in_bf16();
    tested.expect_bits_of_any_thread_count();
  }
}

}  // namespace
}  // namespace tessera::kernels::testing::muon_test
