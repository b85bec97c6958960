#include "preference_cases.hpp"

namespace tessera::kernels::testing::preference_test {
namespace {

using Real = long double;
using enum PreferenceLoss;

Real logistic(Real x) { return 1 / (1 + std::exp(-x)); }
Real minus_log_logistic(Real x) { return x > 0 ? std::log1p(std::exp(-x)) : std::log1p(std::exp(x)) - x; }

/// log of the odds of a mean log-probability, which counts as -1e-6 at most.
Real log_odds(Real a) {
  a = std::min(a, static_cast<Real>(-1e-6));
  return a - std::log(-std::expm1(a));
}

/// The step's loss as a function of the log-probability of each group: a row of the table of losses a line.
Real by_definition(const PreferenceInputs& in, const std::vector<Real>& s) {
  const PreferenceRules& rules = in.of.rules;
  const auto at = [](std::int64_t i) { return static_cast<std::size_t>(i); };
  const Real b = static_cast<Real>(rules.beta), e = static_cast<Real>(rules.label_smoothing), lambda = static_cast<Real>(rules.lambda);
  const auto smooth = [&](Real x) { return (1 - e) * minus_log_logistic(x) + e * minus_log_logistic(-x); };
  Real pairs = 0, completions = 0, texts = 0;
  const auto part = [&](PreferenceLoss loss, Real value) {
    if (rules.of(loss) != 0) pairs += static_cast<Real>(rules.of(loss)) * value;
  };
  if (rules.of(kto) != 0) {
    const Real z = std::max<Real>(0, static_cast<Real>(in.kl.sum.value()) / static_cast<Real>(in.kl.texts));
    for (std::int64_t i = 0; i < in.S; ++i) {
      if (in.counts[at(i)] == 0) continue;
      const Real r = s[at(i)] - (in.of.reference ? static_cast<Real>(in.reference[at(i)]) : 0);
      part(kto, in.labels[at(i)] ? static_cast<Real>(rules.desirable) * (1 - logistic(b * (r - z)))
                                 : static_cast<Real>(rules.undesirable) * (1 - logistic(b * (z - r))));
    }
    return pairs * static_cast<Real>(in.scale.pair);
  }
  for (std::int64_t w = 0; w < in.S; w += 2) {
    const std::int64_t l = w + 1;
    if (in.counts[at(w)] == 0 || in.counts[at(l)] == 0) continue;
    const Real nw = static_cast<Real>(in.counts[at(w)]), nl = static_cast<Real>(in.counts[at(l)]), sw = s[at(w)], sl = s[at(l)];
    const Real rw = sw - (in.of.reference ? static_cast<Real>(in.reference[at(w)]) : 0);
    const Real rl = sl - (in.of.reference ? static_cast<Real>(in.reference[at(l)]) : 0);
    const Real m = in.of.margins ? static_cast<Real>(in.margins[at(w / 2)]) : 0;
    part(dpo, smooth(b * (rw - rl)));
    part(robust, ((1 - e) * minus_log_logistic(b * (rw - rl)) - e * minus_log_logistic(-b * (rw - rl))) / (1 - 2 * e));
    part(hinge, std::max<Real>(0, 1 - b * (rw - rl)));
    part(ipo, std::pow(rw / nw - rl / nl - 1 / (2 * b), 2));
    part(sigmoid_norm, minus_log_logistic(b * (rw / nw - rl / nl)));
    part(apo_zero, 1 - logistic(b * rw) + logistic(b * rl));
    part(apo_down, logistic(b * rw) + 1 - logistic(b * (rw - rl)));
    part(simpo, smooth(b * (sw / nw - sl / nl) - static_cast<Real>(rules.gamma)));
    part(cpo, smooth(b * (sw - sl)));
    if (rules.of(orpo) != 0) part(orpo, lambda * minus_log_logistic(log_odds(sw / nw) - log_odds(sl / nl)));
    part(reward, minus_log_logistic(sw - sl - m) + static_cast<Real>(rules.centering) * std::pow(sw + sl, 2));
    completions -= sw;
    if (rules.of(orpo) != 0) texts -= sw + s[at(in.S + w)];
  }
  return pairs * static_cast<Real>(in.scale.pair) +
         completions * static_cast<Real>(in.scale.completion) * static_cast<Real>(rules.of(cpo) * rules.alpha + rules.of(sft)) +
         texts * static_cast<Real>(in.scale.text) * static_cast<Real>(rules.of(orpo));
}

std::vector<Real> log_probabilities_of(const PreferenceInputs& in) {
  std::vector<Real> s;
  for (std::int64_t group = 0; group < in.groups(); ++group) s.push_back(in.s(group));
  return s;
}

TEST(Preference, LossesAreTheirDefinition) {
  for (const PreferenceCase& c : preference_cases()) {
    SCOPED_TRACE(::testing::Message() << c);
    const PreferenceInputs in = preference_inputs(c);
    const PreferenceResult result = preference_on_host(in);
    const Real expected = by_definition(in, log_probabilities_of(in));
    EXPECT_NEAR(result.loss.value() * in.scale.pair, static_cast<double>(expected),
                1e-13 * std::max(1.0, std::abs(static_cast<double>(expected))));
    EXPECT_EQ(result.not_finite, 0);
  }
}

TEST(Preference, CoefficientsAreTheDerivatives) {
  for (const PreferenceCase& c : preference_cases()) {
    SCOPED_TRACE(::testing::Message() << c);
    const PreferenceInputs in = preference_inputs(c);
    const PreferenceResult result = preference_on_host(in);
    std::vector<Real> s = log_probabilities_of(in);
    int zeros = 0;
    for (std::size_t group = 0; group < s.size(); ++group) {
      constexpr Real h = 1e-5L;
      const Real before = s[group];
      s[group] = before + h;
      const Real above = by_definition(in, s);
      s[group] = before - h;
      const Real below = by_definition(in, s);
      s[group] = before;
      const auto expected = static_cast<double>((above - below) / (2 * h));
      EXPECT_NEAR(static_cast<double>(result.coefficients[group]), expected, 1e-9 + 1e-6 * std::abs(expected)) << "group " << group;
      zeros += expected == 0;
    }
    EXPECT_LT(zeros, std::ssize(s)) << "the case shows nothing";
  }
}

/// One pair of texts of 4 and 5 tokens with these log-probabilities.
PreferenceResult of_pair(const PreferenceCase& c, double chosen, double rejected, std::int32_t n_chosen = 4, std::int32_t n_rejected = 5) {
  PreferenceInputs in = preference_inputs(c, 2);
  in.set(0, n_chosen, -chosen), in.set(1, n_rejected, -rejected);
  if (c.rules.text_nll() != 0) in.set(2, 3, 6), in.set(3, 3, 7);
  in.scale = {.pair = 1, .completion = 1, .text = 1};
  return preference_on_host(in);
}

TEST(Preference, APairThatDoesNotDiffer) {
  const PreferenceResult result = of_pair({"dpo", rules_of({{dpo, 1}}), false}, -20, -20);
  EXPECT_DOUBLE_EQ(result.loss.value(), std::log(2.0));
  EXPECT_EQ(result.coefficients, (std::vector<float>{-0.05f, 0.05f}));
  EXPECT_EQ(result.totals.accurate, 0) << "the chosen text has no larger reward";
  EXPECT_EQ(result.totals.margins(), 0);
}

TEST(Preference, PairsThatDifferByFarStayFinite) {
  for (const PreferenceLoss loss : {dpo, cpo, hinge}) {
    PreferenceRules rules = rules_of({{loss, 1}}, {.beta = 1, .alpha = 0});
    const PreferenceResult wrong = of_pair({"wrong", rules, false}, -1e4, 0), right = of_pair({"right", rules, false}, 0, -1e4);
    EXPECT_EQ(wrong.loss.value(), loss == hinge ? 10001 : 10000);
    EXPECT_EQ(wrong.coefficients, (std::vector<float>{-1, 1}));
    EXPECT_EQ(right.loss.value(), 0);
    EXPECT_EQ(right.coefficients[0], 0);
    EXPECT_EQ(right.coefficients[1], 0);
    EXPECT_EQ(right.totals.accurate, 1);
    EXPECT_EQ(wrong.totals.accurate, 0);
  }
  PreferenceRules smooth = rules_of({{dpo, 1}}, {.beta = 1, .label_smoothing = 0.25});
  const PreferenceResult right = of_pair({"smooth", smooth, false}, 0, -1e4);
  EXPECT_EQ(right.loss.value(), 2500);
  EXPECT_EQ(right.coefficients, (std::vector<float>{0.25f, -0.25f})) << "cDPO pulls a pair back";
}

TEST(Preference, AHingeHasNoSlopeWhereItCloses) {
  const PreferenceRules rules = rules_of({{hinge, 1}}, {.beta = 0.5});
  const PreferenceResult closed = of_pair({"closed", rules, false}, -18, -20), open = of_pair({"open", rules, false}, -18, -19.9375);
  EXPECT_EQ(closed.loss.value(), 0);
  EXPECT_EQ(closed.coefficients, (std::vector<float>{0, 0}));
  EXPECT_EQ(open.loss.value(), 0.03125);
  EXPECT_EQ(open.coefficients, (std::vector<float>{-0.5f, 0.5f}));
}

// log(1 - e^a) is -inf at a = 0: the mean counts as -1e-6 there, and pulls at nothing.
TEST(Preference, OddsOfCertainTextsAreClamped) {
  const PreferenceCase c{"orpo", rules_of({{orpo, 1}}, {.lambda = 0.5}), false};
  const PreferenceResult chosen = of_pair(c, 0, -10), rejected = of_pair(c, -10, 0), far = of_pair(c, -4e-6 - 1e-12, -10);
  EXPECT_EQ(chosen.not_finite, 0);
  EXPECT_EQ(chosen.coefficients[0], -1) << "the NLL alone";
  EXPECT_LT(rejected.coefficients[0], -1);
  EXPECT_EQ(rejected.coefficients[1], 0);
  // log odds of the rejected text are a million to one: sigmoid(-o) is 1, and the slope by a is 1 / (1 - e^-2.5).
  EXPECT_NEAR(rejected.coefficients[0], -1 - 0.5 / (1 - std::exp(-2.5)) / 4, 1e-5);
  EXPECT_NEAR(far.loss.value(), chosen.loss.value(), 1e-5);
  EXPECT_LT(far.coefficients[0], -1) << "below the clamp there is a slope";
}

TEST(Preference, PromptsCountInTheLossOfOrpoAlone) {
  const PreferenceResult result = of_pair({"orpo", rules_of({{orpo, 1}}), false}, -8, -15);
  EXPECT_EQ(result.coefficients[2], -1) << "the chosen prompt";
  EXPECT_EQ(result.coefficients[3], 0) << "the rejected prompt";
  EXPECT_EQ(result.totals.nll.value(), 14);
  EXPECT_EQ(result.totals.nll_tokens, 7);
  EXPECT_EQ(result.totals.chosen_logps.value(), -2) << "means, as TRL reports them";
  const PreferenceResult cpo_alone = of_pair({"cpo", rules_of({{cpo, 1}}), false}, -8, -15);
  EXPECT_EQ(cpo_alone.totals.nll.value(), 8);
  EXPECT_EQ(cpo_alone.totals.nll_tokens, 4);
  EXPECT_EQ(cpo_alone.totals.chosen_logps.value(), -8);
  EXPECT_EQ(of_pair({"dpo", rules_of({{dpo, 1}}), false}, -8, -15).totals.nll_tokens, 0);
}

TEST(Preference, PlacesWithoutAPairAddNothing) {
  for (const PreferenceCase& c : preference_cases()) {
    SCOPED_TRACE(::testing::Message() << c);
    const PreferenceInputs in = preference_inputs(c);
    const PreferenceResult result = preference_on_host(in);
    const bool is_kto = c.rules.of(kto) != 0;
    EXPECT_EQ(result.coefficients[2], 0);
    EXPECT_EQ(result.coefficients[3], 0);
    EXPECT_EQ(result.coefficients[7], 0);
    EXPECT_EQ(result.coefficients[6] == 0, !is_kto) << "a text alone is no pair";
    EXPECT_EQ(result.totals.chosen + result.totals.rejected, is_kto ? 9 : 8);
  }
}

TEST(Preference, MetricsAreMeansOfRewardsAndLogProbabilities) {
  const PreferenceInputs in = preference_inputs({"dpo", rules_of({{dpo, 1}}, {.beta = 0.25})});
  const PreferenceResult result = preference_on_host(in);
  double chosen = 0, rejected = 0, logps = 0;
  std::int64_t accurate = 0;
  for (const std::size_t w : {0u, 4u, 8u, 10u}) {
    const double r_w = -in.sums[w].loss.value() - in.reference[w], r_l = -in.sums[w + 1].loss.value() - in.reference[w + 1];
    chosen += 0.25 * r_w, rejected += 0.25 * r_l, logps -= in.sums[w].loss.value();
    accurate += r_w > r_l;
  }
  EXPECT_NEAR(result.totals.chosen_rewards.value(), chosen, 1e-12);
  EXPECT_NEAR(result.totals.rejected_rewards.value(), rejected, 1e-12);
  EXPECT_NEAR(result.totals.margins(), chosen - rejected, 1e-12);
  EXPECT_NEAR(result.totals.chosen_logps.value(), logps, 1e-12);
  EXPECT_EQ(result.totals.accurate, accurate);
  EXPECT_EQ(result.totals.chosen, 4);
  EXPECT_EQ(result.totals.rejected, 4);
}

TEST(Preference, KtosDivergenceIsNeverNegative) {
  PreferenceInputs in = preference_inputs({"kto", rules_of({{kto, 1}})});
  in.kl = {}, in.kl.sum.add(-5), in.kl.texts = 4;
  const Hash128 negative = preference_on_host(in).hash();
  in.kl = {}, in.kl.texts = 4;
  const Hash128 zero = preference_on_host(in).hash();
  in.kl = {};
  EXPECT_EQ(negative.hex(), zero.hex());
  EXPECT_EQ(preference_on_host(in).hash().hex(), zero.hex()) << "no mismatched texts";
  in.kl.sum.add(5), in.kl.texts = 4;
  EXPECT_NE(preference_on_host(in).hash().hex(), zero.hex());
}

TEST(Preference, LossesThatAreNoNumberAreTold) {
  PreferenceInputs in = preference_inputs(preference_cases()[0]);
  in.sums[8].targets -= 1;  // as add_group_losses leaves a group with a token whose loss is no number
  EXPECT_EQ(preference_on_host(in).not_finite, 1);
  in = preference_inputs(preference_cases()[0]);
  in.reference[9] = std::nan("");
  EXPECT_EQ(preference_on_host(in).not_finite, 1);
}

// Pairs in another order, and over two micro-batches of which one has empty places: the same bits.
TEST(Preference, SumsDoNotDependOnWherePairsLie) {
  for (const PreferenceCase& c : preference_cases()) {
    SCOPED_TRACE(::testing::Message() << c);
    const PreferenceInputs in = preference_inputs(c);
    const PreferenceResult whole = preference_on_host(in);
    PreferenceResult parts;
    for (const std::vector<std::size_t>& pairs : {std::vector<std::size_t>{5, 0, 1}, std::vector<std::size_t>{2, 4, 3, 1}}) {
      PreferenceInputs part = in;
      part.S = 2 * std::ssize(pairs);
      const std::size_t halves = in.sums.size() / static_cast<std::size_t>(in.S);
      part.sums.clear(), part.counts.clear(), part.reference.clear(), part.labels.clear(), part.margins.clear();
      for (std::size_t half = 0; half < halves; ++half)
        for (const std::size_t pair : pairs)
          for (const std::size_t i :
               {half * static_cast<std::size_t>(in.S) + 2 * pair, half * static_cast<std::size_t>(in.S) + 2 * pair + 1}) {
            part.sums.push_back(in.sums[i]), part.counts.push_back(in.counts[i]);
            if (half == 0) part.reference.push_back(in.reference[i]), part.labels.push_back(in.labels[i]);
          }
      for (const std::size_t pair : pairs) part.margins.push_back(in.margins[pair]);
      const PreferenceResult result = preference_on_host(part);
      parts.loss.add(result.loss);
      const auto add = [](FixedSum& to, const FixedSum& from) { to.add(from); };
      add(parts.totals.chosen_rewards, result.totals.chosen_rewards), add(parts.totals.rejected_rewards, result.totals.rejected_rewards);
      add(parts.totals.chosen_logps, result.totals.chosen_logps), add(parts.totals.rejected_logps, result.totals.rejected_logps);
      add(parts.totals.nll, result.totals.nll);
      parts.totals.chosen += result.totals.chosen, parts.totals.rejected += result.totals.rejected;
      parts.totals.accurate += result.totals.accurate, parts.totals.nll_tokens += result.totals.nll_tokens;
      for (std::size_t k = 0; k < pairs.size(); ++k) {
        EXPECT_EQ(result.coefficients[2 * k], whole.coefficients[2 * pairs[k]]);
        EXPECT_EQ(result.coefficients[2 * k + 1], whole.coefficients[2 * pairs[k] + 1]);
      }
    }
    EXPECT_EQ(parts.sums_hash().hex(), whole.sums_hash().hex());
    expect_same_bits([&] { return preference_on_host(in).hash(); });
  }
}

TEST(PreferenceRowWeights, AreTheirGroupsCoefficientsTurned) {
  const std::vector<float> coefficients{0.5f, -2, 0};
  const std::vector<std::int32_t> groups{1, -1, 0, 2, 3, 1};
  auto weights = poisoned<float>(6);
  preference_row_weights({},
                         {.weights = weights.data(), .coefficients = coefficients.data(), .groups = groups.data(), .M = 6, .number = 3});
  EXPECT_EQ(weights, (std::vector<float>{2, 0, -0.5f, 0, 0, 2}));
  EXPECT_FALSE(std::signbit(weights[3]));
}

TEST(SequenceLogProbabilities, AreExactSumsTurned) {
  const PreferenceInputs in = preference_inputs(preference_cases()[0]);
  auto found = poisoned<double>(in.S);
  std::int32_t not_finite = 0;
  SequenceLogProbabilities p{
      .log_probabilities = found.data(), .not_finite = &not_finite, .sums = in.sums.data(), .counts = in.counts.data(), .S = in.S};
  sequence_log_probabilities({}, p);
  for (std::int64_t i = 0; i < in.S; ++i) EXPECT_EQ(found[static_cast<std::size_t>(i)], static_cast<double>(in.s(i)));
  EXPECT_FALSE(std::signbit(found[2])) << "an empty place";
  EXPECT_EQ(not_finite, 0);
  std::vector<GroupTotals> sums = in.sums;
  sums[0].targets = 0;
  p.sums = sums.data();
  sequence_log_probabilities({}, p);
  EXPECT_EQ(not_finite, 1);
}

TEST(AddKl, AddsDifferencesOfTheTextsThatAreThere) {
  const PreferenceInputs in = preference_inputs(preference_cases()[0]);
  KlEstimate kl;
  std::int32_t not_finite = 0;
  const AddKl p{.kl = &kl,
                .not_finite = &not_finite,
                .sums = in.sums.data(),
                .counts = in.counts.data(),
                .reference = in.reference.data(),
                .S = in.S};
  add_kl({}, p), add_kl({}, p);
  double expected = 0;
  for (std::size_t i = 0; i < in.reference.size(); ++i)
    if (in.counts[i] > 0) expected += 2 * (-in.sums[i].loss.value() - in.reference[i]);
  EXPECT_NEAR(kl.sum.value(), expected, 1e-11);
  EXPECT_EQ(kl.texts, 18);
  EXPECT_EQ(not_finite, 0);
}

}  // namespace
}  // namespace tessera::kernels::testing::preference_test
