#include "router_cases.hpp"

#include <limits>
#include <numeric>

#include "base/check.hpp"
#include "validation/unit/sample.hpp"

namespace tessera::kernels::testing::router_test {
namespace {

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
  double all_choices() const {
    double sum = 0;
    for (const std::int32_t of_expert : counts) sum += of_expert;
    return sum;
  }
  static double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
  double sum_of_sigmoids(const double* l) const {
    double sum = 0;
    for (std::int64_t e = 0; e < s.E; ++e) sum += sigmoid(l[e]);
    return sum;
  }
  /// Of an expert before it is normalized or scaled.
  double score(const double* l, std::int64_t e) const { return s.sigmoid ? sigmoid(l[e]) : std::exp(l[e] - log_sum(l)); }
  /// Experts that may be chosen by these scores.
  std::vector<bool> open(const std::vector<double>& scores) const {
    const std::int64_t n = s.E / s.groups;
    std::vector<std::pair<double, std::int64_t>> best;
    for (std::int64_t group = 0; group < s.groups; ++group) {
      std::vector<double> mine(scores.begin() + group * n, scores.begin() + (group + 1) * n);
      std::ranges::sort(mine, std::greater());
      best.emplace_back(-(n > 1 ? mine[0] + mine[1] : mine[0]), group);
    }
    std::ranges::sort(best);
    std::vector<bool> found(size(s.E));
    for (std::int64_t j = 0; j < s.top_groups; ++j)
      for (std::int64_t e = 0; e < n; ++e) found[size(best[size(j)].second * n + e)] = true;
    return found;
  }
  std::vector<double> weights(const std::vector<double>& logits) const {
    std::vector<double> w;
    for (std::int64_t m = 0; m < s.M; ++m) {
      const double* l = row(logits, m);
      const std::int32_t* chosen = experts.data() + m * s.k;
      double sum = 0;
      for (std::int64_t j = 0; j < s.k; ++j) sum += score(l, chosen[j]);
      for (std::int64_t j = 0; j < s.k; ++j) w.push_back(score(l, chosen[j]) / (s.normalized ? sum : 1) * static_cast<double>(s.scale));
      if (s.shared) w.push_back(sigmoid(l[s.E]));
    }
    return w;
  }
  std::vector<double> balance(const std::vector<double>& logits) const {
    std::vector<double> losses(size(s.M), 0.0);
    for (std::int64_t m = 0; m < s.M; ++m) {
      const double* l = row(logits, m);
      const double all = s.sigmoid ? sum_of_sigmoids(l) : 1;
      for (std::int64_t e = 0; e < s.E; ++e) losses[size(m)] += static_cast<double>(s.E) * choices(e) / all_choices() * score(l, e) / all;
    }
    return losses;
  }
  std::vector<double> z(const std::vector<double>& logits) const {
    std::vector<double> losses;
    for (std::int64_t m = 0; m < s.M; ++m) losses.push_back(std::pow(log_sum(row(logits, m)), 2));
    return losses;
  }
};

struct Trial : RouterInputs {
  RouterShape s;
  std::vector<float> weights, balance, z;
  std::vector<std::int32_t> experts;
  bool biased = false, padded = false;
  explicit Trial(const RouterShape& s)
      : RouterInputs(s),
        s(s),
        weights(poisoned<float>(s.M * s.slots())),
        balance(poisoned<float>(s.M)),
        z(poisoned<float>(s.M)),
        experts(poisoned<std::int32_t>(s.M * s.k)) {}
  void forward() {
    router_forward({}, {.experts = experts.data(),
                        .weights = weights.data(),
                        .logits = logits.data(),
                        .bias = biased ? bias.data() : nullptr,
                        .padding = padded ? padding.data() : nullptr,
                        .shape = s});
    std::fill_n(counts.begin() + (s.parts - 1) * s.E, s.E, 0);
    for (const std::int32_t e : experts)
      if (!padded || e < s.E) ++counts.at(size((s.parts - 1) * s.E + e));  // this part is the last
  }
  void losses() {
    router_losses({}, {.balance = balance.data(),
                       .z = z.data(),
                       .logits = logits.data(),
                       .experts = experts.data(),
                       .counts = counts.data(),
                       .shape = s});
  }
  template <class T>
  std::vector<T> backward(float balance_scale, float z_scale) {
    const float scale = 0.25f;
    auto d = poisoned<T>(s.M * s.columns());
    router_backward({}, {.d_logits = d.data(),
                         .d_weights = d_weights.data(),
                         .weights = weights.data(),
                         .experts = experts.data(),
                         .logits = logits.data(),
                         .counts = counts.data(),
                         .weight = &weight,
                         .grad_scale = &scale,
                         .balance = balance_scale / scale,
                         .z = z_scale / scale,
                         .shape = s,
                         .dtype = dtype_of<T>()});
    return d;
  }
};

TEST(Router, ChoosesTheLargestLogitsAndOfEqualOnesTheLower) {
  for (const RouterShape& s : router_cases) {
    if (s.groups > 1) continue;
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
  for (const RouterShape& s : router_cases) {
    SCOPED_TRACE(describe(s));
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
  for (const RouterShape& s : test::Sample().some(router_cases, 4)) {
    if (s.M * s.columns() > 1000) continue;  // of so many logits differences take long
    SCOPED_TRACE(describe(s));
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

// Tokens among padding have the bits that they have without it, and padding has none.
TEST(Router, PaddingCountsInNothing) {
  for (const RouterShape& s : router_cases) {
    SCOPED_TRACE(describe(s));
    Trial all(s);
    all.padded = true;
    all.forward(), all.losses();
    const std::vector<float> d_all = all.backward<float>(0.7f, 0.3f);
    RouterShape some = s;
    some.M = std::ranges::count(all.padding, 0);
    Trial real(some);
    const auto take = [&](auto& to, const auto& from, std::int64_t columns) {
      to.clear();
      for (std::int64_t m = 0; m < s.M; ++m)
        if (!all.padding[size(m)]) to.insert(to.end(), from.begin() + m * columns, from.begin() + (m + 1) * columns);
    };
    take(real.logits, all.logits, s.columns()), take(real.d_weights, all.d_weights, s.slots());
    real.forward(), real.losses();
    const std::vector<float> d_real = real.backward<float>(0.7f, 0.3f);
    EXPECT_EQ(all.counts, real.counts);
    std::vector<float> weights, balance, z, d;
    std::vector<std::int32_t> experts;
    take(weights, all.weights, s.slots()), take(balance, all.balance, 1), take(z, all.z, 1), take(d, d_all, s.columns());
    take(experts, all.experts, s.k);
    EXPECT_EQ(weights, real.weights);
    EXPECT_EQ(balance, real.balance);
    EXPECT_EQ(z, real.z);
    EXPECT_EQ(d, d_real);
    EXPECT_EQ(experts, real.experts);
    for (std::int64_t m = 0; m < s.M; ++m) {
      if (!all.padding[size(m)]) continue;
      for (std::int64_t j = 0; j < s.k; ++j) EXPECT_EQ(all.experts[size(m * s.k + j)], s.E);
      for (std::int64_t j = 0; j < s.slots(); ++j) EXPECT_EQ(all.weights[size(m * s.slots() + j)], 0);
      for (std::int64_t j = 0; j < s.columns(); ++j) EXPECT_EQ(d_all[size(m * s.columns() + j)], 0);
      EXPECT_EQ(all.balance[size(m)], 0);
      EXPECT_EQ(all.z[size(m)], 0);
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

// A choice by score and bias, in fp64: none that was left out is better than one that was taken, of groups that are chosen alike. Weights
// know no bias.
TEST(Router, ABiasMovesChoicesAndNotWeights) {
  for (const RouterShape& s : router_cases) {
    SCOPED_TRACE(describe(s));
    Trial run(s);
    run.forward();
    const auto unbiased = run.experts;
    run.biased = true;
    run.forward();
    EXPECT_TRUE(run.experts != unbiased || s.k == s.E);
    const Reference reference{s, run.experts, run.counts};
    const auto logits = doubles(run.logits);
    EXPECT_LT(relative_error(run.weights, reference.weights(logits)), 2e-6);
    for (std::int64_t m = 0; m < s.M; ++m) {
      const double* l = reference.row(logits, m);
      const auto score = [&](std::int64_t e) { return reference.score(l, e) + static_cast<double>(run.bias[size(e)]); };
      std::vector<double> scores;
      for (std::int64_t e = 0; e < s.E; ++e) scores.push_back(score(e));
      const std::vector<bool> open = reference.open(scores);
      std::vector<bool> taken(size(s.E));
      for (std::int64_t j = 0; j < s.k; ++j) {
        const std::int32_t expert = run.experts[size(m * s.k + j)];
        EXPECT_FALSE(taken[size(expert)]) << "twice";
        EXPECT_TRUE(open[size(expert)]) << "of a group that is not";
        taken[size(expert)] = true;
        if (j > 0) {
          EXPECT_GE(score(run.experts[size(m * s.k + j - 1)]), score(expert) - 1e-6) << "the best first";
        }
      }
      const double last = score(run.experts[size(m * s.k + s.k - 1)]);
      for (std::int64_t e = 0; e < s.E; ++e)
        if (!taken[size(e)] && open[size(e)]) {
          EXPECT_LE(score(e), last + 1e-6);
        }
    }
  }
}

TEST(Router, OfEqualScoresTheLowerExpertIsTaken) {
  Trial run({.M = 3, .E = 6, .k = 2});
  std::ranges::fill(run.logits, 0.5f);
  run.biased = true;
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
  run.biased = true;
  run.bias = {0, 3, 2, 0};
  run.forward();
  EXPECT_EQ(run.experts, (std::vector<std::int32_t>{1, 2}));
  EXPECT_NEAR(static_cast<double>(run.weights[0]), 1 / (1 + std::exp(1.0)), 1e-6);
  EXPECT_NEAR(static_cast<double>(run.weights[1]), 1 / (1 + std::exp(-1.0)), 1e-6);
}

TEST(Router, BiasesMoveTowardsEqualLoads) {
  UpdateScalars scalars;
  for (const BalanceRoutersCase& c : balance_routers_cases())
    for (const int skip : {1, 0}) {
      std::vector<float> biases = c.biases;
      scalars.skip = skip;
      balance_routers({}, {.biases = biases.data(),
                           .loads = c.loads.data(),
                           .scalars = &scalars,
                           .rate = balance_rate,
                           .layers = c.layers,
                           .E = c.E,
                           .stride = c.stride});
      const std::vector<float> expected = skip ? c.biases : balanced_by_definition(c);
      for (std::size_t i = 0; i < biases.size(); ++i) EXPECT_EQ(biases[i], expected[i]) << c.E << " experts, skip " << skip << ", at " << i;
    }
  EXPECT_THROW(balance_routers({}, {.scalars = &scalars, .E = 3, .stride = 2}), Error);
}

// Sigmoids of such logits are far below what is added to their sum; those of the largest are 1.
TEST(Router, SigmoidsThatAreNothingCountForNothing) {
  Trial run({.M = 2, .E = 4, .k = 2, .sigmoid = true, .scale = 2});
  run.logits = {-200, -300, -400, -300, 100, 200, -1, 0};
  run.forward();
  EXPECT_EQ(run.experts, (std::vector<std::int32_t>{0, 1, 0, 1}));
  for (const std::size_t none : {0, 1}) EXPECT_LT(run.weights[none], 1e-15f);
  EXPECT_EQ(run.weights[2], 1);
  EXPECT_EQ(run.weights[3], 1);
  run.losses();
  for (const float g : run.backward<float>(0.1f, 0)) EXPECT_TRUE(std::isfinite(g));
}

TEST(Router, SigmoidsOfWhatIsNoNumberGiveExpertsThatExistAndWeightsThatAreNone) {
  Trial run({.M = 3, .E = 6, .k = 3, .sigmoid = true, .groups = 3, .top_groups = 2});
  run.logits[2] = std::numeric_limits<float>::quiet_NaN();
  for (std::int64_t e = 0; e < 6; ++e) run.logits[size(run.s.columns() + e)] = std::numeric_limits<float>::quiet_NaN();
  run.forward();
  for (const std::int32_t e : run.experts) EXPECT_TRUE(e >= 0 && e < 6);
  for (std::int64_t m = 0; m < 3; ++m) EXPECT_EQ(std::isnan(run.weights[size(m * run.s.slots())]), m < 2) << m;
}

TEST(Router, RefusesMoreChoicesThanExpertsAndGroupsThatAreNone) {
  EXPECT_THROW(router_forward({}, {.shape = {.M = 1, .E = 2, .k = 3}}), Error);
  for (const auto& [groups, top] : {std::pair{3, 2}, {4, 2}, {2, 3}, {2, 0}})
    EXPECT_THROW(router_forward({}, {.shape = {.M = 1, .E = 4, .k = 2, .sigmoid = true, .groups = groups, .top_groups = top}}), Error);
  EXPECT_THROW(router_forward({}, {.shape = {.M = 1, .E = 8, .k = 3, .sigmoid = true, .groups = 4, .top_groups = 1}}), Error);
  EXPECT_THROW(router_forward({}, {.shape = {.M = 1, .E = 4, .k = 1, .groups = 2}}), Error);
}

TEST(Router, SameBitsForAnyThreadCount) {
  expect_same_bits([] {
    Trial run({.M = 1500, .E = 12, .k = 3, .shared = true, .normalized = false});
    run.forward(), run.losses();
    return digest(run.experts, run.weights, run.balance, run.z, run.backward<bf16>(0.1f, 0.01f));
  });
}

}  // namespace
}  // namespace tessera::kernels::testing::router_test
