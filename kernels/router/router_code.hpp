// What the router does with a token: the same lines on a host thread and on a GPU thread, so that the bits are the same.
#pragma once
#include <cstddef>

#include "kernels/exp.hpp"
#include "kernels/router/router.hpp"

namespace tessera::kernels::router {

static_assert(offsetof(RouterTotals, dropped) == (router_sums - 1) * sizeof(std::int64_t) &&
              sizeof(RouterTotals) == router_sums * sizeof(std::int64_t));

/// The largest logit and the sum of e^(logit - largest). NaN logits give a sum that is NaN.
struct Softmax {
  float most, sum;
  TESSERA_BOTH float probability(float logit) const { return exp_nonpositive(logit - most) / sum; }
  /// log sum exp of the logits.
  TESSERA_BOTH float log_sum() const { return most + log_of_normal(sum); }
};
TESSERA_BOTH inline Softmax softmax_of(const float* logits, std::int64_t E) {
  Softmax s{logits[0], 0};
  for (std::int64_t e = 1; e < E; ++e) s.most = logits[e] > s.most ? logits[e] : s.most;
  for (std::int64_t e = 0; e < E; ++e) s.sum += exp_nonpositive(logits[e] - s.most);
  return s;
}

/// What a token's experts are chosen by: their logits, or with a bias their probabilities and it.
struct Scores {
  const float *logits, *bias;
  Softmax softmax;
  TESSERA_BOTH float of(std::int64_t e) const { return bias ? softmax.probability(logits[e]) + bias[e] : logits[e]; }
};

/// The expert that comes after (score, expert) in order: falling scores, and of equal ones rising numbers. -1: none does.
TESSERA_BOTH inline std::int32_t next_expert(const Scores& scores, std::int64_t E, float score, std::int32_t expert) {
  std::int32_t best = -1;
  float most = 0;
  for (std::int32_t e = 0; e < E; ++e) {
    const float mine = scores.of(e);
    const bool later = mine < score || (mine == score && e > expert);
    if (later && (best < 0 || mine > most)) best = e, most = mine;
  }
  return best;
}

TESSERA_BOTH inline void forward(const RouterForward& p, std::int64_t m) {
  const RouterShape& s = p.shape;
  const float* logits = p.logits + m * s.columns();
  std::int32_t* experts = p.experts + m * s.k;
  float* weights = p.weights + m * s.slots();
  const Scores scores{logits, p.bias, softmax_of(logits, s.E)};
  float last = __builtin_inff(), most = -__builtin_inff(), sum = 0;
  std::int32_t expert = -1;
  for (std::int64_t j = 0; j < s.k; ++j) {
    expert = next_expert(scores, s.E, last, expert);
    if (expert < 0) expert = static_cast<std::int32_t>(j);  // of NaN
    last = scores.of(expert);
    most = logits[expert] > most ? logits[expert] : most;
    experts[j] = expert;
  }
  // A bias may choose experts whose logits are all far below the largest of all: weights begin at the largest of theirs.
  for (std::int64_t j = 0; j < s.k; ++j) {
    const float logit = logits[experts[j]];
    weights[j] = s.normalized ? exp_nonpositive(logit - most) : scores.softmax.probability(logit);
    sum += weights[j];
  }
  for (std::int64_t j = 0; s.normalized && j < s.k; ++j) weights[j] = scores.softmax.sum > 0 ? weights[j] / sum : scores.softmax.sum;
  if (s.shared) weights[s.k] = sigmoid(logits[s.E]);
}

/// E f_e of each choice that fell on an expert.
TESSERA_BOTH inline float share_of_a_choice(const RouterShape& s) {
  return static_cast<float>(s.E) / (static_cast<float>(s.k) * static_cast<float>(s.M * s.parts));
}

/// Choices of all parts that fell on an expert.
TESSERA_BOTH inline float choices_of(const std::int32_t* counts, const RouterShape& s, std::int64_t e) {
  std::int32_t choices = 0;
  for (std::int64_t part = 0; part < s.parts; ++part) choices += counts[part * s.E + e];
  return static_cast<float>(choices);
}

TESSERA_BOTH inline void losses(const RouterLosses& p, std::int64_t m) {
  const RouterShape& s = p.shape;
  const float* logits = p.logits + m * s.columns();
  const Softmax softmax = softmax_of(logits, s.E);
  float balance = 0;
  for (std::int64_t e = 0; e < s.E; ++e) balance += softmax.probability(logits[e]) * choices_of(p.counts, s, e);
  const float log_sum = softmax.log_sum();
  p.balance[m] = balance * share_of_a_choice(s);
  p.z[m] = log_sum * log_sum;
}

/// What the loss gains by the probability of an expert: by its share of choices, and where weights are probabilities by its weight.
TESSERA_BOTH inline float by_probability(const RouterBackward& p, std::int64_t m, std::int64_t e, float balance_scale) {
  const RouterShape& s = p.shape;
  float d = balance_scale * choices_of(p.counts, s, e);
  for (std::int64_t j = 0; !s.normalized && j < s.k; ++j)
    if (p.experts[m * s.k + j] == e) d += p.d_weights[m * s.slots() + j];
  return d;
}

/// The gradient of a token's logits.
class TokenGradient {
 public:
  TESSERA_BOTH TokenGradient(const RouterBackward& p, std::int64_t m)
      : p_(p), m_(m), logits_(p.logits + m * p.shape.columns()), softmax_(softmax_of(logits_, p.shape.E)) {
    const RouterShape& s = p.shape;
    const auto counted = static_cast<float>(*p.weight);
    balance_scale_ = counted * (p.balance * *p.grad_scale) * share_of_a_choice(s);
    z_ = 2 * counted * (p.z * *p.grad_scale) * softmax_.log_sum();
    for (std::int64_t e = 0; e < s.E; ++e) mean_ += softmax_.probability(logits_[e]) * by_probability(p, m, e, balance_scale_);
    for (std::int64_t j = 0; s.normalized && j < s.k; ++j) chosen_mean_ += weights()[j] * d_weights()[j];
  }
  TESSERA_BOTH float of(std::int64_t column) const {
    const RouterShape& s = p_.shape;
    if (column == s.E) return d_weights()[s.k] * weights()[s.k] * (1.0f - weights()[s.k]);
    float d = softmax_.probability(logits_[column]) * (by_probability(p_, m_, column, balance_scale_) - mean_ + z_);
    for (std::int64_t j = 0; s.normalized && j < s.k; ++j)
      if (p_.experts[m_ * s.k + j] == column) d += weights()[j] * (d_weights()[j] - chosen_mean_);
    return d;
  }

 private:
  TESSERA_BOTH const float* weights() const { return p_.weights + m_ * p_.shape.slots(); }
  TESSERA_BOTH const float* d_weights() const { return p_.d_weights + m_ * p_.shape.slots(); }

  const RouterBackward& p_;
  std::int64_t m_;
  const float* logits_;
  Softmax softmax_;
  float balance_scale_ = 0, z_ = 0;
  float mean_ = 0, chosen_mean_ = 0;  // of what the loss gains: over experts by probability, over chosen ones by weight
};

TESSERA_BOTH inline void add_totals(const AddRouterTotals& p) {
  if (*p.weight == 0) return;
  const bool balance = p.totals->balance.add(*p.balance), z = p.totals->z.add(*p.z);
  if (!balance || !z) *p.not_finite = 1;
  std::int64_t choices = 0;
  for (std::int64_t e = 0; e < p.E; ++e) p.loads[e] += p.counts[e], choices += p.counts[e];
  p.totals->dropped += choices - p.offsets[p.E];
}

/// One expert of one layer.
TESSERA_BOTH inline void balance(const BalanceRouters& p, std::int64_t layer, std::int64_t e) {
  if (p.scalars->skip) return;
  const std::int64_t* loads = p.loads + layer * p.E;
  std::int64_t all = 0;
  for (std::int64_t other = 0; other < p.E; ++other) all += loads[other];
  const std::int64_t lacks = all - p.E * loads[e];  // E times the mean less its load
  float& bias = p.biases[layer * p.stride + e];
  if (lacks != 0) bias += lacks > 0 ? p.rate : -p.rate;
}

}  // namespace tessera::kernels::router
