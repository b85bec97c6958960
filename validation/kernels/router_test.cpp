#include "kernels/router/router.hpp"

#include <limits>
#include <numeric>

#include "base/check.hpp"
#include "same_bits.hpp"

namespace tessera::kernels::testing::router_test {
namespace {

const RouterShape shapes[] = {{.M = 1, .E = 1, .k = 1},
                              {.M = 33, .E = 8, .k = 2},
                              {.M = 21, .E = 7, .k = 3, .normalized = false},
                              {.M = 11, .E = 60, .k = 4, .shared = true, .normalized = false},
                              {.M = 9, .E = 5, .k = 5, .shared = true},
                              {.M = 12, .E = 6, .k = 2, .parts = 4}};

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

/// All of it in fp64 from logits, for the experts that are given.
struct Reference {
  RouterShape s;
  std::vector<std::int32_t> experts, counts;
  const double* row(const std::vector<double>& logits, std::int64_t m) const { return logits.data() + m * s.columns(); }
  double log_sum(const double* l) const {
    double sum = 0;
    for (std::int64_t e = 0; e < s.E; ++e) sum += std::exp(l[e]);
    return std::log(sum);
  }
  double choices(std::int64_t e) const {
    double sum = 0;
    for (std::int64_t part = 0; part < s.parts; ++part) sum += counts[size(part * s.E + e)];
    return sum;
  }
  std::vector<double> weights(const std::vector<double>& logits) const {
    std::vector<double> w;
    for (std::int64_t m = 0; m < s.M; ++m) {
      const double* l = row(logits, m);
      const std::int32_t* chosen = experts.data() + m * s.k;
      double sum = 0;
      for (std::int64_t j = 0; j < s.k; ++j) sum += std::exp(l[chosen[j]]);
      for (std::int64_t j = 0; j < s.k; ++j) w.push_back(s.normalized ? std::exp(l[chosen[j]]) / sum : std::exp(l[chosen[j]] - log_sum(l)));
      if (s.shared) w.push_back(1 / (1 + std::exp(-l[s.E])));
    }
    return w;
  }
  std::vector<double> balance(const std::vector<double>& logits) const {
    std::vector<double> losses(size(s.M), 0.0);
    for (std::int64_t m = 0; m < s.M; ++m)
      for (std::int64_t e = 0; e < s.E; ++e)
        losses[size(m)] += static_cast<double>(s.E) * choices(e) / static_cast<double>(s.k * s.M * s.parts) *
                           std::exp(row(logits, m)[e] - log_sum(row(logits, m)));
    return losses;
  }
  std::vector<double> z(const std::vector<double>& logits) const {
    std::vector<double> losses;
    for (std::int64_t m = 0; m < s.M; ++m) losses.push_back(std::pow(log_sum(row(logits, m)), 2));
    return losses;
  }
};

struct Trial {
  RouterShape s;
  std::vector<float> logits, weights, balance, z, d_weights, bias;
  std::vector<std::int32_t> experts, counts;
  double weight = 1;
  explicit Trial(const RouterShape& s)
      : s(s),
        logits(random_values<float>(s.M * s.columns(), 1, 2)),
        weights(poisoned<float>(s.M * s.slots())),
        balance(poisoned<float>(s.M)),
        z(poisoned<float>(s.M)),
        d_weights(random_values<float>(s.M * s.slots(), 2)),
        experts(poisoned<std::int32_t>(s.M * s.k)),
        counts(size(s.parts * s.E), 0) {
    for (std::int64_t m = 0; m + 1 < s.M; m += 5) logits[size(m * s.columns())] = logits[size(m * s.columns() + s.E - 1)];  // equal ones
  }
  void forward() {
    router_forward({}, {.experts = experts.data(),
                        .weights = weights.data(),
                        .logits = logits.data(),
                        .bias = bias.empty() ? nullptr : bias.data(),
                        .shape = s});
    std::ranges::fill(counts, 0);
    for (const std::int32_t e : experts) ++counts.at(size((s.parts - 1) * s.E + e));  // this part is the last
    for (std::int64_t i = 0; i < (s.parts - 1) * s.E; ++i) counts[size(i)] = static_cast<std::int32_t>(5 * i % 7);
  }
  void losses() {
    router_losses({}, {.balance = balance.data(), .z = z.data(), .logits = logits.data(), .counts = counts.data(), .shape = s});
  }
  template <class T>
  std::vector<T> backward(float balance_scale, float z_scale) {
    auto d = poisoned<T>(s.M * s.columns());
    router_backward({}, {.d_logits = d.data(),
                         .d_weights = d_weights.data(),
                         .weights = weights.data(),
                         .experts = experts.data(),
                         .logits = logits.data(),
                         .counts = counts.data(),
                         .weight = &weight,
                         .balance_scale = balance_scale,
                         .z_scale = z_scale,
                         .shape = s,
                         .dtype = dtype_of<T>()});
    return d;
  }
};

TEST(Router, ChoosesTheLargestLogitsAndOfEqualOnesTheLower) {
  for (const RouterShape& s : shapes) {
    Trial run(s);
    run.forward();
    for (std::int64_t m = 0; m < s.M; ++m) {
      std::vector<std::int32_t> order(size(s.E));
      std::iota(order.begin(), order.end(), 0);
      std::ranges::stable_sort(
          order, [&](auto a, auto b) { return run.logits[size(m * s.columns() + a)] > run.logits[size(m * s.columns() + b)]; });
      for (std::int64_t j = 0; j < s.k; ++j) EXPECT_EQ(run.experts[size(m * s.k + j)], order[size(j)]) << m << ", choice " << j;
    }
  }
}

TEST(Router, MatchesReference) {
  for (const RouterShape& s : shapes) {
    SCOPED_TRACE(::testing::Message() << s.E << " experts");
    Trial run(s);
    run.forward(), run.losses();
    const Reference reference{s, run.experts, run.counts};
    const auto logits = doubles(run.logits);
    EXPECT_LT(relative_error(run.weights, reference.weights(logits)), 2e-6);
    EXPECT_LT(relative_error(run.balance, reference.balance(logits)), 2e-6);
    EXPECT_LT(relative_error(run.z, reference.z(logits)), 4e-6);
  }
}

TEST(Router, BackwardIsTheGradientOfWeightsAndLosses) {
  constexpr float balance_scale = 0.7f, z_scale = 0.3f;
  for (const RouterShape& s : shapes) {
    SCOPED_TRACE(::testing::Message() << s.E << " experts");
    Trial run(s);
    run.forward();
    const Reference reference{s, run.experts, run.counts};  // choices stay as they are
    const auto d_weights = doubles(run.d_weights);
    const auto loss = [&](const std::vector<double>& logits) {
      double sum = dot(d_weights, reference.weights(logits));
      for (const double b : reference.balance(logits)) sum += run.weight * balance_scale * b;
      for (const double z : reference.z(logits)) sum += run.weight * z_scale * z;
      return sum;
    };
    for (const double weight : {1.0, 0.0}) {
      run.weight = weight;
      const auto expected = finite_differences(doubles(run.logits), loss);
      EXPECT_LT(relative_error(run.backward<float>(balance_scale, z_scale), expected, 0.1), 5e-6);
      EXPECT_LT(relative_error(run.backward<bf16>(balance_scale, z_scale), expected, 0.1), tolerance<bf16>());
    }
  }
}

TEST(Router, ABalancedRouterLosesOne) {
  Trial run({.M = 24, .E = 6, .k = 2});
  std::ranges::fill(run.logits, 0.25f);
  run.forward();
  std::ranges::fill(run.counts, 8);
  run.losses();
  for (const float b : run.balance) EXPECT_NEAR(static_cast<double>(b), 1, 1e-6);
}

TEST(Router, LogitsThatAreNoNumbersGiveExpertsThatExistAndWeightsThatAreNone) {
  Trial run({.M = 4, .E = 5, .k = 3, .shared = true});
  run.logits[0] = std::numeric_limits<float>::quiet_NaN();
  run.logits[size(run.s.columns()) + 2] = std::numeric_limits<float>::quiet_NaN();
  for (std::int64_t e = 0; e < 5; ++e) run.logits[size(2 * run.s.columns() + e)] = std::numeric_limits<float>::quiet_NaN();
  run.forward();
  for (const std::int32_t e : run.experts) EXPECT_TRUE(e >= 0 && e < 5);
  for (std::int64_t m = 0; m < 3; ++m) EXPECT_TRUE(std::isnan(run.weights[size(m * run.s.slots())])) << m;
  EXPECT_FALSE(std::isnan(run.weights[size(3 * run.s.slots())]));
}

TEST(Router, TotalsCountOnlyWhatHasAWeight) {
  const std::vector<std::int32_t> counts{3, 0, 5}, offsets{0, 3, 3, 6};
  std::vector<std::int64_t> loads{10, 20, 30};
  RouterTotals totals;
  double balance = 2.5, z = 0.75, weight = 0;
  std::int32_t not_finite = 0;
  const AddRouterTotals p{.totals = &totals,
                          .loads = loads.data(),
                          .balance = &balance,
                          .z = &z,
                          .weight = &weight,
                          .counts = counts.data(),
                          .offsets = offsets.data(),
                          .not_finite = &not_finite,
                          .E = 3};
  add_router_totals({}, p);
  EXPECT_EQ(totals.dropped, 0);
  EXPECT_EQ(loads, (std::vector<std::int64_t>{10, 20, 30}));
  weight = 1;
  add_router_totals({}, p);
  EXPECT_EQ(totals.balance.value(), 2.5);
  EXPECT_EQ(totals.z.value(), 0.75);
  EXPECT_EQ(totals.dropped, 2);
  EXPECT_EQ(loads, (std::vector<std::int64_t>{13, 20, 35}));
  EXPECT_EQ(not_finite, 0);
  z = std::numeric_limits<double>::quiet_NaN();
  add_router_totals({}, p);
  EXPECT_EQ(not_finite, 1);
}

// A choice by probability and bias, in fp64: none that was left out is better than one that was taken. Weights know no bias.
TEST(Router, ABiasMovesChoicesAndNotWeights) {
  for (const RouterShape& s : shapes) {
    SCOPED_TRACE(::testing::Message() << s.E << " experts");
    Trial run(s);
    run.forward();
    const auto unbiased = run.experts;
    run.bias = random_values<float>(s.E, 9, 0.3);
    run.forward();
    EXPECT_TRUE(run.experts != unbiased || s.k == s.E);
    const Reference reference{s, run.experts, run.counts};
    const auto logits = doubles(run.logits);
    EXPECT_LT(relative_error(run.weights, reference.weights(logits)), 2e-6);
    for (std::int64_t m = 0; m < s.M; ++m) {
      const double* l = reference.row(logits, m);
      const auto score = [&](std::int64_t e) { return std::exp(l[e] - reference.log_sum(l)) + static_cast<double>(run.bias[size(e)]); };
      std::vector<bool> taken(size(s.E));
      for (std::int64_t j = 0; j < s.k; ++j) {
        const std::int32_t expert = run.experts[size(m * s.k + j)];
        EXPECT_FALSE(taken[size(expert)]) << "twice";
        taken[size(expert)] = true;
        if (j > 0) {
          EXPECT_GE(score(run.experts[size(m * s.k + j - 1)]), score(expert) - 1e-6) << "the best first";
        }
      }
      const double last = score(run.experts[size(m * s.k + s.k - 1)]);
      for (std::int64_t e = 0; e < s.E; ++e)
        if (!taken[size(e)]) {
          EXPECT_LE(score(e), last + 1e-6);
        }
    }
  }
}

TEST(Router, OfEqualScoresTheLowerExpertIsTaken) {
  Trial run({.M = 3, .E = 6, .k = 2});
  std::ranges::fill(run.logits, 0.5f);
  run.bias = {0.25f, 0.5f, 0.125f, 0.5f, 0.5f, 0};
  run.forward();
  for (std::int64_t m = 0; m < 3; ++m) {
    EXPECT_EQ(run.experts[size(2 * m)], 1);
    EXPECT_EQ(run.experts[size(2 * m + 1)], 3);
  }
}

// All that a bias has chosen may be as good as impossible: what they count for still adds up to 1.
TEST(Router, WeightsOfUnlikelyExpertsAddUp) {
  Trial run({.M = 1, .E = 4, .k = 2});
  run.logits = {200, 0, 1, -150};
  run.bias = {0, 3, 2, 0};
  run.forward();
  EXPECT_EQ(run.experts, (std::vector<std::int32_t>{1, 2}));
  EXPECT_NEAR(static_cast<double>(run.weights[0]), 1 / (1 + std::exp(1.0)), 1e-6);
  EXPECT_NEAR(static_cast<double>(run.weights[1]), 1 / (1 + std::exp(-1.0)), 1e-6);
}

TEST(Router, BiasesMoveTowardsEqualLoads) {
  constexpr float rate = 0.25f;
  // The mean of the second layer is no integer; the third has nothing to do.
  const std::vector<std::int64_t> loads = {4, 9, 2, 1, 1, 2, 5, 5, 5};
  const std::vector<float> before = {0, 1, -1, 7, 0.5f, -0.5f, 0.125f, 0.375f, 7, 1, 2, 3};
  std::vector<float> biases = before;
  AdamwScalars scalars{.skip = 1};
  const BalanceRouters p{
      .biases = biases.data(), .loads = loads.data(), .scalars = &scalars, .rate = rate, .layers = 3, .E = 3, .stride = 4};
  balance_routers({}, p);
  EXPECT_EQ(biases, before) << "a skipped step";
  scalars.skip = 0;
  balance_routers({}, p);
  for (std::size_t layer = 0; layer < 3; ++layer) {
    const double mean = static_cast<double>(loads[3 * layer] + loads[3 * layer + 1] + loads[3 * layer + 2]) / 3;
    for (std::size_t e = 0; e < 4; ++e) {
      const double lacks = e < 3 ? mean - static_cast<double>(loads[3 * layer + e]) : 0;  // the last of a row is no bias
      const double moved = std::abs(lacks) < 1e-9 ? 0 : std::copysign(static_cast<double>(rate), lacks);
      EXPECT_EQ(static_cast<double>(biases[4 * layer + e]), static_cast<double>(before[4 * layer + e]) + moved) << layer << " " << e;
    }
  }
  EXPECT_THROW(balance_routers({}, {.scalars = &scalars, .E = 3, .stride = 2}), Error);
}

TEST(Router, RefusesMoreChoicesThanExperts) { EXPECT_THROW(router_forward({}, {.shape = {.M = 1, .E = 2, .k = 3}}), Error); }

TEST(Router, SameBitsForAnyThreadCount) {
  expect_same_bits([] {
    Trial run({.M = 1500, .E = 12, .k = 3, .shared = true, .normalized = false});
    run.forward(), run.losses();
    return digest(run.experts, run.weights, run.balance, run.z, run.backward<bf16>(0.1f, 0.01f));
  });
}

}  // namespace
}  // namespace tessera::kernels::testing::router_test
