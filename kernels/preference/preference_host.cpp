#include "base/check.hpp"
#include "kernels/preference/preference_code.hpp"

namespace tessera::kernels::host {
namespace {

void add(PreferenceTotals& to, const PreferenceTotals& from) {
  to.chosen_rewards.add(from.chosen_rewards), to.rejected_rewards.add(from.rejected_rewards);
  to.chosen_logps.add(from.chosen_logps), to.rejected_logps.add(from.rejected_logps);
  to.nll.add(from.nll);
  to.chosen += from.chosen, to.rejected += from.rejected, to.accurate += from.accurate, to.nll_tokens += from.nll_tokens;
}

}  // namespace

void preference_coefficients(const Context&, const PreferenceCoefficients& p) {
  TESSERA_REQUIRE(p.S >= 0 && p.S % 2 == 0, "sequences of a micro-batch come in pairs, and {} are given", p.S);
  preference::Added added;
  for (std::int64_t k = 0; k < p.S / 2; ++k) preference::OfPair(p, k, added).run();
  if (p.loss) p.loss->add(added.loss);
  if (p.totals) add(*p.totals, added.totals);
  if (!added.finite) *p.not_finite = 1;
}

void preference_row_weights(const Context&, const PreferenceRowWeights& p) {
  for (std::int64_t row = 0; row < p.M; ++row) p.weights[row] = preference::row_weight(p, row);
}

void sequence_log_probabilities(const Context&, const SequenceLogProbabilities& p) {
  for (std::int64_t i = 0; i < p.S; ++i)
    if (!preference::log_probability(p, i)) *p.not_finite = 1;
}

void add_kl(const Context&, const AddKl& p) {
  for (std::int64_t i = 0; i < p.S; ++i)
    if (!preference::add_kl(p, i, *p.kl)) *p.not_finite = 1;
}

}  // namespace tessera::kernels::host
