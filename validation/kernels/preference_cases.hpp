// Micro-batches of pairs: what the tests of both backends make coefficients of, and their losses by definition.
#pragma once
#include <cmath>
#include <ostream>
#include <random>
#include <vector>

#include "kernels/preference/preference.hpp"
#include "same_bits.hpp"

namespace tessera::kernels::testing {

/// Losses with their weights.
inline PreferenceRules rules_of(std::initializer_list<std::pair<PreferenceLoss, double>> weights, PreferenceRules rules = {}) {
  for (const auto& [loss, weight] : weights) rules.weight[static_cast<int>(loss)] = weight;
  return rules;
}

struct PreferenceCase {
  const char* name;
  PreferenceRules rules;
  bool reference = true, margins = false;
  double spread = 3;  ///< of what a text's log-probability differs from the reference's
};
inline std::ostream& operator<<(std::ostream& out, const PreferenceCase& c) { return out << c.name; }

inline std::vector<PreferenceCase> preference_cases() {
  using enum PreferenceLoss;
  return {
      {"dpo", rules_of({{dpo, 1}})},
      {"dpo, far from the reference", rules_of({{dpo, 1}}, {.beta = 2}), true, false, 3000},
      {"dpo without a reference", rules_of({{dpo, 1}}), false},
      {"cDPO", rules_of({{dpo, 1}}, {.beta = 0.3, .label_smoothing = 0.1})},
      {"cDPO, half", rules_of({{dpo, 1}}, {.label_smoothing = 0.49})},
      {"robust", rules_of({{robust, 1}}, {.label_smoothing = 0.2})},
      {"robust, half", rules_of({{robust, 1}}, {.label_smoothing = 0.49})},
      {"hinge", rules_of({{hinge, 1}}, {.beta = 0.5})},
      {"ipo", rules_of({{ipo, 1}})},
      {"sigmoid_norm", rules_of({{sigmoid_norm, 1}}, {.beta = 5})},
      {"apo_zero", rules_of({{apo_zero, 1}})},
      {"apo_down", rules_of({{apo_down, 1}})},
      {"simpo", rules_of({{simpo, 1}}, {.beta = 2, .gamma = 1.2}), false},
      {"cpo", rules_of({{cpo, 1}}, {.alpha = 0.7}), false},
      {"cpo, smoothed and without NLL", rules_of({{cpo, 1}}, {.label_smoothing = 0.1, .alpha = 0}), false},
      {"orpo", rules_of({{orpo, 1}}, {.lambda = 0.25}), false},
      {"kto", rules_of({{kto, 1}}, {.desirable = 1.1, .undesirable = 0.8})},
      {"reward", rules_of({{reward, 1}}, {.centering = 0.01}), false, true},
      {"sft", rules_of({{sft, 1}})},
      {"dpo, apo_zero and sft", rules_of({{dpo, 0.8}, {apo_zero, 0.2}, {sft, 1}}, {.beta = 0.2})},
  };
}

struct PreferenceInputs {
  PreferenceCase of;
  std::int64_t S = 0;
  std::vector<GroupTotals> sums;     ///< (groups)
  std::vector<std::int32_t> counts;  ///< (groups)
  std::vector<double> reference;     ///< (S)
  std::vector<float> margins;        ///< (S/2)
  std::vector<std::uint8_t> labels;  ///< (S)
  KlEstimate kl;
  PreferenceScale scale;

  std::int64_t groups() const { return std::ssize(sums); }
  PreferenceCoefficients arguments() const {
    return {.sums = sums.data(),
            .counts = counts.data(),
            .reference = of.reference ? reference.data() : nullptr,
            .margins = of.margins ? margins.data() : nullptr,
            .labels = labels.data(),
            .kl = &kl,
            .scale = &scale,
            .rules = of.rules,
            .S = S};
  }
  /// Log-probability of a group, as the exact sum has it.
  long double s(std::int64_t group) const { return -static_cast<long double>(sums[static_cast<std::size_t>(group)].loss.value()); }
  void set(std::int64_t group, std::int32_t tokens, double loss) {
    const auto at = static_cast<std::size_t>(group);
    sums[at] = {}, counts[at] = tokens;
    sums[at].loss.add(loss), sums[at].targets = tokens;
  }
};

/// Texts of 1 to 40 tokens; one pair is empty, one lacks its rejected text.
inline PreferenceInputs preference_inputs(const PreferenceCase& c, std::int64_t S = 12) {
  PreferenceInputs in{.of = c, .S = S, .sums = {}, .counts = {}, .reference = {}, .margins = {}, .labels = {}, .kl = {}, .scale = {}};
  std::mt19937 random(11 + test_seed());
  std::normal_distribution<double> normal;
  const auto groups = static_cast<std::size_t>(c.rules.text_nll() != 0 ? 2 * S : S);
  in.sums.resize(groups), in.counts.resize(groups);
  const bool scores = c.rules.of(PreferenceLoss::reward) != 0;
  for (std::int64_t i = 0; i < std::ssize(in.sums); ++i) {
    const auto tokens = scores ? 1 : 1 + static_cast<std::int32_t>(random() % 40);
    const double loss = scores ? normal(random) : tokens * (0.05 + std::abs(normal(random)));
    const std::int64_t text = i % S;
    const bool is_empty = (S > 4 && text / 2 == 1) || (S > 6 && text == 7);
    in.set(i, is_empty ? 0 : tokens, is_empty ? 0 : loss);
    if (i < S) in.reference.push_back(-loss + c.spread * normal(random)), in.labels.push_back(static_cast<std::uint8_t>(random() % 2));
    if (i < S && i % 2 == 0) in.margins.push_back(static_cast<float>(normal(random)));
  }
  in.kl.sum.add(3.25), in.kl.texts = 8;
  in.scale = {.pair = 1.0 / 7, .completion = 1.0 / 93, .text = 1.0 / 181};
  return in;
}

struct PreferenceResult {
  std::vector<float> coefficients;
  FixedSum loss;
  PreferenceTotals totals;
  std::int32_t not_finite = 0;
  Hash128 sums_hash() const { return hash_text(hash_bytes(&loss, sizeof loss).hex() + hash_bytes(&totals, sizeof totals).hex()); }
  Hash128 hash() const { return hash_text(sums_hash().hex() + digest(coefficients).hex()); }
};

inline PreferenceResult preference_on_host(const PreferenceInputs& in) {
  PreferenceResult result{poisoned<float>(in.groups()), {}, {}};
  PreferenceCoefficients p = in.arguments();
  p.coefficients = result.coefficients.data(), p.loss = &result.loss, p.totals = &result.totals, p.not_finite = &result.not_finite;
  host::preference_coefficients({}, p);
  return result;
}

}  // namespace tessera::kernels::testing
