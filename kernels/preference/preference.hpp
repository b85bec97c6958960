// Losses of preferences: of pairs of a chosen and a rejected text, of texts with a label, and of scores. A micro-batch's exact
// log-probabilities go in; the loss's derivative by each of them comes out, which the head's second pass reads. The names and formulas are
// those of TRL 1.16; the rows name the differences.
#pragma once
#include "kernels/context.hpp"
#include "kernels/group_losses/group_losses.hpp"

namespace tessera::kernels {

/// The losses of a pair. w is the chosen text, l the rejected one. s is the sum of log p over the n tokens of a completion, a = s / n,
/// r = s - s of the reference, D = r_w - r_l, d = r_w / n_w - r_l / n_l, b = beta, e = label_smoothing, logsig = log sigmoid.
enum class PreferenceLoss : std::uint8_t {
  dpo,           ///< -(1 - e) logsig(b D) - e logsig(-b D) (arXiv:2305.18290; with e Mitchell's cDPO, which TRL ignores)
  robust,        ///< (-(1 - e) logsig(b D) + e logsig(-b D)) / (1 - 2 e) (arXiv:2403.00409)
  hinge,         ///< max(0, 1 - b D) (arXiv:2305.10425)
  ipo,           ///< (d - 1 / (2 b))^2 (arXiv:2310.12036)
  sigmoid_norm,  ///< -logsig(b d)
  apo_zero,      ///< 1 - sigmoid(b r_w) + sigmoid(b r_l) (arXiv:2408.06266)
  apo_down,      ///< sigmoid(b r_w) + 1 - sigmoid(b D) (arXiv:2408.06266)
  simpo,         ///< z = b (a_w - a_l) - gamma: -(1 - e) logsig(z) - e logsig(-z) (arXiv:2405.14734)
  cpo,           ///< z = b (s_w - s_l): -(1 - e) logsig(z) - e logsig(-z), and alpha NLL of the chosen completion (arXiv:2401.08417)
  orpo,          ///< NLL of prompt and completion - lambda logsig(o), o the difference of log(p / (1 - p)) at p = e^a (arXiv:2403.07691)
  kto,           ///< of one text: its weight times 1 - sigmoid(b (r - z)), or 1 - sigmoid(b (z - r)) if undesirable (arXiv:2402.01306)
  reward,        ///< of scores s: -logsig(s_w - s_l - margin) + centering (s_w + s_l)^2
  sft,           ///< NLL of the chosen completion
};
inline constexpr int preference_losses = 13;

/// What a deck says of them: the loss is the sum of all of them, each times its weight.
struct PreferenceRules {
  double weight[preference_losses] = {};  ///< by PreferenceLoss; kto and reward stand alone
  double beta = 0.1;
  double label_smoothing = 0;  ///< in [0, 0.5); read by dpo, robust, simpo, cpo
  double gamma = 0.5;
  double alpha = 1;
  double lambda = 0.1;
  double desirable = 1, undesirable = 1;
  double centering = 0;

  TESSERA_BOTH double of(PreferenceLoss loss) const { return weight[static_cast<int>(loss)]; }
  /// The weight of the mean NLL over chosen completions, and over chosen texts from their first prompt token on.
  TESSERA_BOTH double completion_nll() const { return of(PreferenceLoss::cpo) * alpha + of(PreferenceLoss::sft); }
  TESSERA_BOTH double text_nll() const { return of(PreferenceLoss::orpo); }
};

/// What derivatives are multiplied by. All are means over the whole step, so it comes from the whole step's counts. If the gradients are
/// divided by the pairs elsewhere, all three are times the pairs.
struct PreferenceScale {
  double pair = 1;        ///< 1 / pairs (kto: texts)
  double completion = 0;  ///< 1 / tokens of chosen completions; read if completion_nll() is not 0
  double text = 0;        ///< 1 / tokens of chosen prompts and completions that are predicted; read if text_nll() is not 0
};

/// KTO's estimate of the divergence from the reference: the mean of s - s of the reference over mismatched texts. int64 alone, so that
/// ranks add it in one all-reduce.
struct KlEstimate {
  FixedSum sum;
  std::int64_t texts = 0;
};
inline constexpr std::int64_t kl_sums = 5;  ///< int64 of a KlEstimate

/// Sums for a step's metrics, int64 alone. Rewards are b r; without a reference b s; of simpo b a, of orpo lambda a, of reward the scores.
/// Log-probabilities are s; of simpo and orpo a, as TRL reports them.
struct PreferenceTotals {
  FixedSum chosen_rewards, rejected_rewards;
  FixedSum chosen_logps, rejected_logps;
  FixedSum nll;                           ///< of the chosen tokens whose NLL the loss takes
  std::int64_t chosen = 0, rejected = 0;  ///< texts; a pair has one of both
  std::int64_t accurate = 0;              ///< pairs whose chosen text has the larger reward, strictly
  std::int64_t nll_tokens = 0;
  /// Of chosen_rewards - rejected_rewards, rounded once.
  double margins() const {
    FixedSum difference = chosen_rewards;
    for (int i = 0; i < 4; ++i) difference.limb[i] -= rejected_rewards.limb[i];
    return difference.value();
  }
};
inline constexpr std::int64_t preference_sums = 24;  ///< int64 of a PreferenceTotals

/// The derivatives and metrics of a micro-batch with places for S sequences, S even. Sequence 2 k is chosen and 2 k + 1 rejected; kto takes
/// each by itself and reads its label. Group i < S has the completion tokens of sequence i, and group S + i the predicted tokens of its
/// prompt if text_nll() is not 0: there are S groups, or 2 S. A pair counts if both its completions have tokens. Pairs add up exactly, so
/// no sum depends on their order or on which micro-batch or rank has them.
struct PreferenceCoefficients {
  float* coefficients = nullptr;         ///< (groups) overwritten: d loss / d log p of each token of the group; null in an evaluation
  FixedSum* loss = nullptr;              ///< added to: losses of pairs (kto: texts), whose mean over the step is the loss
  PreferenceTotals* totals = nullptr;    ///< added to; null, and loss null, on ranks whose sequences another rank counts
  std::int32_t* not_finite = nullptr;    ///< set to 1 if a loss is not finite, or if `sums` lacks tokens since their losses were not
  const GroupTotals* sums = nullptr;     ///< (groups) of NLL over tokens with weight 1; of reward the score times -1, at one token
  const std::int32_t* counts = nullptr;  ///< (groups): tokens, 0 for empty places
  const double* reference = nullptr;     ///< (S) log-probabilities of completions, or null: 0
  const float* margins = nullptr;        ///< (S/2), read by reward, or null: 0
  const std::uint8_t* labels = nullptr;  ///< (S), read by kto: 1 is desirable
  const KlEstimate* kl = nullptr;        ///< of the whole step, read by kto; z is its mean, at least 0
  const PreferenceScale* scale = nullptr;
  PreferenceRules rules = {};
  std::int64_t S = 0;
};
TESSERA_OP(preference_coefficients, (const Context& context, const PreferenceCoefficients& arguments), (context, arguments))

/// weights[i] = -coefficients[groups[i]], 0 for rows of no group: what (softmax - onehot) of each row is multiplied by, of either sign.
struct PreferenceRowWeights {
  float* weights = nullptr;              ///< (M)
  const float* coefficients = nullptr;   ///< (number)
  const std::int32_t* groups = nullptr;  ///< (M)
  std::int64_t M = 0, number = 0;
};
TESSERA_OP(preference_row_weights, (const Context& context, const PreferenceRowWeights& arguments), (context, arguments))

/// log_probabilities[i] = the sum of log p over sequence i, 0 for empty places: what a reference's forward pass leaves.
struct SequenceLogProbabilities {
  double* log_probabilities = nullptr;   ///< (S)
  std::int32_t* not_finite = nullptr;    ///< set to 1 if `sums` lacks tokens
  const GroupTotals* sums = nullptr;     ///< (S) of NLL
  const std::int32_t* counts = nullptr;  ///< (S)
  std::int64_t S = 0;
};
TESSERA_OP(sequence_log_probabilities, (const Context& context, const SequenceLogProbabilities& arguments), (context, arguments))

/// A micro-batch of mismatched texts joins KTO's estimate.
struct AddKl {
  KlEstimate* kl = nullptr;
  std::int32_t* not_finite = nullptr;    ///< set to 1 if a difference is not finite, or if `sums` lacks tokens
  const GroupTotals* sums = nullptr;     ///< (S) of NLL
  const std::int32_t* counts = nullptr;  ///< (S)
  const double* reference = nullptr;     ///< (S) log-probabilities, or null: 0
  std::int64_t S = 0;
};
TESSERA_OP(add_kl, (const Context& context, const AddKl& arguments), (context, arguments))

}  // namespace tessera::kernels
