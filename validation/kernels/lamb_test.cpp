#include "kernels/update/update_host.hpp"
#include "lamb_cases.hpp"

namespace tessera::kernels::testing::lamb_test {
namespace {

void whole_tensor(const Context&, const Update& p) {
  FixedSum sums[2];
  lamb_of_tensor(lamb_moments, lamb, sums, p);
}
const UpdateTested lamb_kernel{whole_tensor, 2, {}};

TEST(Lamb, TakesEveryGradientAndCopyWithTheSameBitsOnAnyThreads) {
  lamb_kernel.expect_copies_in_fp16();
  lamb_kernel.expect_any_gradient();
  lamb_kernel.expect_bits_of_any_thread_count();
}

TEST(Lamb, IsItsDefinition) {
  for (const UpdateCase& c : update_cases)
    for (const float weight_decay : {0.0f, 0.1f}) {
      SCOPED_TRACE(::testing::Message() << c << ", weight decay " << weight_decay);
      UpdateState now(c.n);
      for (auto& values : now.state) std::fill(values.begin(), values.end(), 0.0f);
      UpdateState before = now;
      std::vector<double> w = doubles(now.master), m(w.size()), v(w.size()), u(w.size());
      for (int t = 1; t <= 20; ++t) {
        const auto grad = c.skip ? poisoned<float>(c.n) : random_values<float>(c.n, 100 + static_cast<unsigned>(t));
        UpdateScalars s = scalars_of_step(t, 3e-3f, 0.25f);
        s.skip = c.skip;
        lamb_kernel.step(now, grad.data(), DType::f32, s, weight_decay, 0, -1, 0.3f, c.copy);
        double of_weights = 0, of_update = 0;
        for (std::size_t i = 0; i < grad.size(); ++i) {
          const auto g = static_cast<double>(grad[i] * 0.25f);
          m[i] = update_beta1 * m[i] + (1 - update_beta1) * g;
          v[i] = update_beta2 * v[i] + (1 - update_beta2) * g * g;
          u[i] = m[i] / (std::sqrt(v[i]) + 1e-8) + static_cast<double>(weight_decay) * w[i];
          of_weights += w[i] * w[i], of_update += u[i] * u[i];
        }
        const double trust = std::clamp(std::sqrt(of_weights / of_update), 0.01, 10.0);
        const double rate = 3e-3 * 0.3 * std::sqrt(1 - std::pow(update_beta2, t)) / (1 - std::pow(update_beta1, t));
        for (std::size_t i = 0; i < w.size(); ++i) w[i] -= rate * trust * u[i];
      }
      if (c.skip) {
        if (c.copy) before.param = std::vector<bf16>(before.master.begin(), before.master.end());
        EXPECT_EQ(now.hash(), before.hash());
        continue;
      }
      for (std::size_t i = 0; i < w.size(); ++i) {
        ASSERT_NEAR(static_cast<double>(now.master[i]), w[i], 2e-6 + 1e-6 * std::abs(w[i])) << i;
        ASSERT_NEAR(static_cast<double>(now.state[0][i]), m[i], 1e-6 * (1 + std::abs(m[i]))) << i;
        ASSERT_NEAR(static_cast<double>(now.state[1][i]), v[i], 1e-6 * v[i]) << i;
        if (c.copy) {
          ASSERT_EQ(now.param[i], bf16(now.master[i])) << i;
        }
      }
    }
}

/// Whatever the pieces, also those that begin inside a vector: the sums are those of one square after the other.
TEST(Lamb, SumsDoNotKnowHowATensorIsCut) {
  constexpr std::int64_t n = 5003;
  const auto grad = random_values<float>(n, 9);
  const UpdateScalars s = scalars_of_step(7, 1e-2f, 0.7f);
  UpdateState before(n);
  before.master = weights_of_all_sizes(n);
  double of_updates = 0;
  for (const std::int64_t piece : {n, std::int64_t{256}, std::int64_t{1000}, std::int64_t{17}, std::int64_t{1}}) {
    UpdateState now = before;
    FixedSum sums[2];
    for (std::int64_t i = 0; i < n; i += piece) {
      Update p = now.call(i, false);
      p.grad = grad.data() + i, p.n = std::min(piece, n - i), p.weight_decay = 0.1f, p.scalars = &s, p.sums = sums;
      lamb_moments({}, p);
    }
    EXPECT_EQ(now.master, before.master);
    EXPECT_EQ(sums[0].value(), sum_of_each_square(before.master).value()) << piece;
    if (piece == n) of_updates = sums[1].value();
    EXPECT_EQ(sums[1].value(), of_updates) << piece;
  }
  EXPECT_GT(of_updates, 0);
}

TEST(Lamb, TrustHasBoundsAndIsOneWhereANormIsZero) {
  const auto moved = [](double of_weights, double of_update, float least, float most) {
    UpdateState state(33);
    const UpdateState before = state;
    UpdateScalars s = scalars_of_step(3, 1e-2f, 1);
    s.least_trust = least, s.most_trust = most;
    FixedSum sums[2];
    sums[0].add(of_weights), sums[1].add(of_update);
    Update p = state.call(0, false);
    p.n = 33, p.scalars = &s, p.sums = sums;
    lamb({}, p);
    const float u = before.state[0][5] / (std::sqrt(before.state[1][5]) + 1e-8f);
    const double rate = 1e-2 * std::sqrt(1 - std::pow(update_beta2, 3)) / (1 - std::pow(update_beta1, 3));
    return static_cast<double>(before.master[5] - state.master[5]) / (rate * static_cast<double>(u));
  };
  EXPECT_NEAR(moved(9, 4, 0.01f, 10), 1.5, 1e-4);
  EXPECT_NEAR(moved(1e6, 1, 0.01f, 10), 10, 1e-3);
  EXPECT_NEAR(moved(1, 1e6, 0.01f, 10), 0.01, 1e-4);
  EXPECT_NEAR(moved(1, 1e6, 0.5f, 10), 0.5, 1e-4);
  EXPECT_NEAR(moved(0, 4, 2, 10), 1, 1e-4);
  EXPECT_NEAR(moved(4, 0, 2, 10), 1, 1e-4);
}

/// Small, large and tiny ones, whole vectors and a remainder.
TEST(Lamb, SquaresAreSummedAsOneByOne) {
  using host::update_detail::ExactSquares;
  for (const float most : {1e-5f, 1.0f, 10.0f}) {
    const std::vector<float> x = random_values<float>(1003, 3, most);
    FixedSum expected, sum;
    ExactSquares::Room room;
    ExactSquares squares(room);
    for_vectors(0, std::ssize(x), [&](std::int64_t i, auto n) { squares.add(load(&x[static_cast<std::size_t>(i)], n), n); });
    squares.add_to(sum);
    for (const float v : x) expected.add(static_cast<double>(v) * static_cast<double>(v));
    EXPECT_EQ(sum.value(), expected.value());
  }
}

}  // namespace
}  // namespace tessera::kernels::testing::lamb_test
