// Losses of preferences and their derivatives: the same lines on a host thread and on a GPU thread. All numbers are doubles, and every
// function of them has the same bits on every processor (kernels/exp64.hpp).
#pragma once
#include "kernels/exp64.hpp"
#include "kernels/preference/preference.hpp"

namespace tessera::kernels::preference {

static_assert(sizeof(PreferenceTotals) == preference_sums * sizeof(std::int64_t));
static_assert(sizeof(KlEstimate) == kl_sums * sizeof(std::int64_t));

using doubles::log_sigmoid, doubles::sigmoid;

/// ORPO's log(1 - e^a) is -inf at a = 0. So a counts as this at most, and has no gradient beyond it.
inline constexpr double largest_mean = -1e-6;

/// A completion of a micro-batch.
struct Completion {
  double n = 0;  ///< tokens
  double s = 0;  ///< log-probability
  double r = 0;  ///< s - s of the reference
  TESSERA_BOTH double a() const { return s / n; }
};

/// A loss and its derivatives by s of the chosen and of the rejected completion.
struct Slopes {
  double loss = 0, chosen = 0, rejected = 0;
  TESSERA_BOTH void add(double weight, const Slopes& other) {
    loss += weight * other.loss, chosen += weight * other.chosen, rejected += weight * other.rejected;
  }
};

/// A loss and its derivative by its argument.
struct Slope {
  double loss = 0, by_z = 0;
};
/// If z = rise s_w - fall s_l + a constant.
TESSERA_BOTH inline Slopes by_both(const Slope& of, double rise, double fall) { return {of.loss, of.by_z * rise, -(of.by_z * fall)}; }

/// -(1 - e) logsig(z) - e logsig(-z)
TESSERA_BOTH inline Slope smoothed(double z, double e) { return {-((1 - e) * log_sigmoid(z) + e * log_sigmoid(-z)), e - sigmoid(-z)}; }
TESSERA_BOTH inline Slope robust(double z, double e) {
  const double scale = 1 / (1 - 2 * e);
  return {(e * log_sigmoid(-z) - (1 - e) * log_sigmoid(z)) * scale, -((1 - e) * sigmoid(-z) + e * sigmoid(z)) * scale};
}
TESSERA_BOTH inline Slope hinge(double z) { return z >= 1 ? Slope{} : Slope{1 - z, -1}; }
TESSERA_BOTH inline Slope square(double z) { return {z * z, 2 * z}; }
/// 1 - sigmoid(z) is sigmoid(-z), which keeps its digits.
TESSERA_BOTH inline Slope one_less_sigmoid(double z) { return {sigmoid(-z), -(sigmoid(z) * sigmoid(-z))}; }

/// log(p / (1 - p)) at p = e^a, and its derivative by a, 1 / (1 - e^a).
struct Odds {
  double log = 0, slope = 0;
};
TESSERA_BOTH inline Odds odds_of(double a) {
  if (a > largest_mean) return {largest_mean - doubles::log_one_less_exp(largest_mean), 0};
  return {a - doubles::log_one_less_exp(a), -1 / doubles::exp_less_one(a)};
}

/// A loss of a pair, without the NLL that comes with some of them.
TESSERA_BOTH inline Slopes loss_of_pair(PreferenceLoss loss, const PreferenceRules& rules, const Completion& w, const Completion& l,
                                        double margin) {
  const double b = rules.beta, e = rules.label_smoothing, D = w.r - l.r;
  switch (loss) {
    case PreferenceLoss::dpo:
      return by_both(smoothed(b * D, e), b, b);
    case PreferenceLoss::robust:
      return by_both(robust(b * D, e), b, b);
    case PreferenceLoss::hinge:
      return by_both(hinge(b * D), b, b);
    case PreferenceLoss::ipo:
      return by_both(square(w.r / w.n - l.r / l.n - 1 / (2 * b)), 1 / w.n, 1 / l.n);
    case PreferenceLoss::sigmoid_norm:
      return by_both(smoothed(b * (w.r / w.n - l.r / l.n), 0), b / w.n, b / l.n);
    case PreferenceLoss::apo_zero: {
      const Slope of_w = one_less_sigmoid(b * w.r), of_l = one_less_sigmoid(-b * l.r);
      return {of_w.loss + of_l.loss, of_w.by_z * b, -(of_l.by_z * b)};
    }
    case PreferenceLoss::apo_down: {
      const Slope of_w = one_less_sigmoid(-b * w.r), of_pair = one_less_sigmoid(b * D);
      return {of_w.loss + of_pair.loss, (of_pair.by_z - of_w.by_z) * b, -(of_pair.by_z * b)};
    }
    case PreferenceLoss::simpo:
      return by_both(smoothed(b * (w.a() - l.a()) - rules.gamma, e), b / w.n, b / l.n);
    case PreferenceLoss::cpo:
      return by_both(smoothed(b * (w.s - l.s), e), b, b);
    case PreferenceLoss::orpo: {
      const Odds of_w = odds_of(w.a()), of_l = odds_of(l.a());
      const Slopes slopes = by_both(smoothed(of_w.log - of_l.log, 0), of_w.slope / w.n, of_l.slope / l.n);
      return {rules.lambda * slopes.loss, rules.lambda * slopes.chosen, rules.lambda * slopes.rejected};
    }
    case PreferenceLoss::reward: {
      Slopes slopes = by_both(smoothed(w.s - l.s - margin, 0), 1, 1);
      const Slope off_center = square(w.s + l.s);
      slopes.add(rules.centering, {off_center.loss, off_center.by_z, off_center.by_z});
      return slopes;
    }
    case PreferenceLoss::kto:
    case PreferenceLoss::sft:
      break;
  }
  return {};
}

/// KTO's loss of one text and its derivative by s.
TESSERA_BOTH inline Slope kto_loss(const PreferenceRules& rules, double r, double z, bool desirable) {
  const double sign = desirable ? 1 : -1, weight = desirable ? rules.desirable : rules.undesirable;
  const Slope slope = one_less_sigmoid(sign * (rules.beta * (r - z)));
  return {weight * slope.loss, weight * (sign * rules.beta * slope.by_z)};
}

/// z of KTO.
TESSERA_BOTH inline double divergence(const KlEstimate& kl) {
  const double mean = kl.texts > 0 ? kl.sum.value() / static_cast<double>(kl.texts) : 0;
  return mean < 0 ? 0 : mean;
}

/// What a text's reward is called in TRL's metrics.
TESSERA_BOTH inline double reward_of(const PreferenceRules& rules, const Completion& of) {
  if (rules.of(PreferenceLoss::reward) != 0) return of.s;
  if (rules.of(PreferenceLoss::simpo) != 0) return rules.beta * of.a();
  if (rules.of(PreferenceLoss::orpo) != 0) return rules.lambda * of.a();
  return rules.beta * of.r;
}
TESSERA_BOTH inline double reported_logp(const PreferenceRules& rules, const Completion& of) {
  return rules.of(PreferenceLoss::simpo) != 0 || rules.of(PreferenceLoss::orpo) != 0 ? of.a() : of.s;
}

/// What a thread adds to the step.
struct Added {
  FixedSum loss;
  PreferenceTotals totals;
  bool finite = true;
  TESSERA_BOTH void add(FixedSum& sum, double x) { finite = sum.add(x) && finite; }
};

/// Coefficients and metrics of sequences 2 k and 2 k + 1.
class OfPair {
 public:
  TESSERA_BOTH OfPair(const PreferenceCoefficients& p, std::int64_t k, Added& added) : p_(p), chosen_(2 * k), added_(added) {}
  TESSERA_BOTH void run() const {
    if (p_.rules.of(PreferenceLoss::kto) != 0) {
      one_text(chosen_);
      one_text(chosen_ + 1);
    } else {
      both_texts();
    }
  }

 private:
  /// Groups lack tokens whose losses are not finite.
  TESSERA_BOTH bool whole(std::int64_t group) const { return p_.sums[group].targets == p_.counts[group]; }
  TESSERA_BOTH Completion completion(std::int64_t i) const {
    const double s = -p_.sums[i].loss.value();
    return {static_cast<double>(p_.counts[i]), s, p_.reference ? s - p_.reference[i] : s};
  }
  TESSERA_BOTH void write(std::int64_t group, double derivative) const {
    if (p_.coefficients) p_.coefficients[group] = static_cast<float>(derivative);
  }

  TESSERA_BOTH void one_text(std::int64_t i) const {
    if (p_.counts[i] <= 0) return write(i, 0);
    const Completion of = completion(i);
    const bool desirable = p_.labels[i] != 0;
    const double weight = p_.rules.of(PreferenceLoss::kto);
    const Slope slope = kto_loss(p_.rules, of.r, divergence(*p_.kl), desirable);
    write(i, weight * slope.by_z * p_.scale->pair);
    added_.finite = added_.finite && whole(i);
    added_.add(added_.loss, weight * slope.loss);
    count(of, desirable);
  }

  TESSERA_BOTH void both_texts() const {
    const std::int64_t w = chosen_, l = chosen_ + 1, prompt = p_.S + w;
    const bool there = p_.counts[w] > 0 && p_.counts[l] > 0;
    const double text_nll = p_.rules.text_nll();
    // Each token's log p is part of the NLL once, with this weight.
    const double of_text = there ? text_nll * p_.scale->text : 0;
    if (text_nll != 0) write(prompt, -of_text), write(prompt + 1, 0);
    if (!there) return write(w, 0), write(l, 0);

    const Completion chosen = completion(w), rejected = completion(l);
    const double margin = p_.margins ? static_cast<double>(p_.margins[w / 2]) : 0;
    Slopes slopes;
    for (int i = 0; i < preference_losses; ++i)
      if (p_.rules.weight[i] != 0)
        slopes.add(p_.rules.weight[i], loss_of_pair(static_cast<PreferenceLoss>(i), p_.rules, chosen, rejected, margin));
    const double completion_nll = p_.rules.completion_nll();
    const double of_completion = completion_nll != 0 ? completion_nll * p_.scale->completion : 0;
    write(w, slopes.chosen * p_.scale->pair - (of_completion + of_text));
    write(l, slopes.rejected * p_.scale->pair);

    added_.finite = added_.finite && whole(w) && whole(l) && (text_nll == 0 || whole(prompt));
    const double prompt_nll = text_nll != 0 ? p_.sums[prompt].loss.value() : 0;
    const double nll = of_completion * -chosen.s + of_text * (prompt_nll - chosen.s);
    added_.add(added_.loss, slopes.loss + nll / p_.scale->pair);
    if (completion_nll != 0 || text_nll != 0) count_nll(text_nll != 0 ? prompt : -1);
    count(chosen, true);
    count(rejected, false);
    added_.totals.accurate += reward_of(p_.rules, chosen) > reward_of(p_.rules, rejected);
  }

  TESSERA_BOTH void count(const Completion& of, bool chosen) const {
    PreferenceTotals& totals = added_.totals;
    ++(chosen ? totals.chosen : totals.rejected);
    added_.add(chosen ? totals.chosen_rewards : totals.rejected_rewards, reward_of(p_.rules, of));
    added_.add(chosen ? totals.chosen_logps : totals.rejected_logps, reported_logp(p_.rules, of));
  }
  TESSERA_BOTH void count_nll(std::int64_t prompt) const {
    PreferenceTotals& totals = added_.totals;
    totals.nll.add(p_.sums[chosen_].loss), totals.nll_tokens += p_.counts[chosen_];
    if (prompt >= 0) totals.nll.add(p_.sums[prompt].loss), totals.nll_tokens += p_.counts[prompt];
  }

  const PreferenceCoefficients& p_;
  std::int64_t chosen_;
  Added& added_;
};

TESSERA_BOTH inline float row_weight(const PreferenceRowWeights& p, std::int64_t row) {
  const std::int32_t group = p.groups[row];
  return group >= 0 && group < p.number ? 0 - p.coefficients[group] : 0;
}

/// Of sequence i; whether no token of it is missing.
TESSERA_BOTH inline bool log_probability(const SequenceLogProbabilities& p, std::int64_t i) {
  p.log_probabilities[i] = p.counts[i] > 0 ? -p.sums[i].loss.value() : 0;
  return p.sums[i].targets == p.counts[i];
}

/// Sequence i joins the estimate; whether its difference is finite.
TESSERA_BOTH inline bool add_kl(const AddKl& p, std::int64_t i, KlEstimate& kl) {
  if (p.counts[i] <= 0) return true;
  ++kl.texts;
  return kl.sum.add(-p.sums[i].loss.value() - (p.reference ? p.reference[i] : 0)) && p.sums[i].targets == p.counts[i];
}

}  // namespace tessera::kernels::preference
