// What the router does with a token: the same lines on a host thread and on a GPU thread, so that the bits are the same.
#pragma once
#include <cstddef>
#include <type_traits>

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

/// The sum of all sigmoids: NaN where a logit is.
TESSERA_BOTH inline float sum_of_sigmoids(const float* logits, std::int64_t E) {
  float sum = 0;
  for (std::int64_t e = 0; e < E; ++e) sum += sigmoid(logits[e]);
  return sum;
}

/// Sums of sigmoids may be 0; what is divided by them is then too.
inline constexpr float least_sum = 1e-20f;

/// What a token's experts are chosen by: their logits, or with a bias their probabilities and it; by sigmoids always these.
template <bool by_sigmoid>
struct Scores {
  const float *logits, *bias;
  Softmax softmax;                         // unless by_sigmoid
  std::int64_t of_group;                   // experts
  std::uint64_t open = ~std::uint64_t{0};  // groups whose experts may be chosen
  TESSERA_BOTH float of(std::int64_t e) const {
    if constexpr (by_sigmoid) return sigmoid(logits[e]) + (bias ? bias[e] : 0.0f);
    return bias ? softmax.probability(logits[e]) + bias[e] : logits[e];
  }
  TESSERA_BOTH bool may(std::int64_t e) const {
    if constexpr (by_sigmoid) return (open >> (e / of_group) & 1) != 0;
    return true;
  }
};

/// The expert that comes after (score, expert) in order: falling scores, and of equal ones rising numbers. -1: none does.
template <bool by_sigmoid>
TESSERA_BOTH inline std::int32_t next_expert(const Scores<by_sigmoid>& scores, std::int64_t E, float score, std::int32_t expert) {
  std::int32_t best = -1;
  float most = 0;
  for (std::int32_t e = 0; e < E; ++e) {
    if (!scores.may(e)) continue;
    const float mine = scores.of(e);
    const bool later = mine < score || (mine == score && e > expert);
    if (later && (best < 0 || mine > most)) best = e, most = mine;
  }
  return best;
}

/// A bit for each of the top_groups groups.
TESSERA_BOTH inline std::uint64_t open_groups(const Scores<true>& scores, const RouterShape& s) {
  std::uint64_t open = 0;
  for (std::int64_t j = 0; j < s.top_groups; ++j) {
    std::int64_t best = -1;
    float most = 0;
    for (std::int64_t group = 0; group < s.groups; ++group) {
      if ((open >> group & 1) != 0) continue;
      float first = -__builtin_inff(), second = first;
      for (std::int64_t e = group * scores.of_group; e < (group + 1) * scores.of_group; ++e) {
        const float mine = scores.of(e);
        if (mine > first)
          second = first, first = mine;
        else if (mine > second)
          second = mine;
      }
      if (best < 0 || first + second > most) best = group, most = first + second;
    }
    open |= std::uint64_t{1} << best;
  }
  return open;
}

template <bool by_sigmoid>
TESSERA_BOTH inline Scores<by_sigmoid> scores_of(const RouterForward& p, const float* logits) {
  Scores<by_sigmoid> scores{.logits = logits, .bias = p.bias, .softmax = {}, .of_group = p.shape.E / p.shape.groups};
  if constexpr (by_sigmoid) {
    if (p.shape.groups > 1) scores.open = open_groups(scores, p.shape);
  } else {
    scores.softmax = softmax_of(logits, p.shape.E);
  }
  return scores;
}

/// A token's choices say whether it is padding.
TESSERA_BOTH inline bool is_padding(const std::int32_t* experts, const RouterShape& s, std::int64_t m) { return experts[m * s.k] == s.E; }

template <bool by_sigmoid>
TESSERA_BOTH inline void forward(const RouterForward& p, std::int64_t m) {
  const RouterShape& s = p.shape;
  const float* logits = p.logits + m * s.columns();
  std::int32_t* experts = p.experts + m * s.k;
  float* weights = p.weights + m * s.slots();
  if (p.padding && p.padding[m] != 0) {
    for (std::int64_t j = 0; j < s.k; ++j) experts[j] = static_cast<std::int32_t>(s.E);
    for (std::int64_t j = 0; j < s.slots(); ++j) weights[j] = 0;
    return;
  }
  const auto scores = scores_of<by_sigmoid>(p, logits);
  float last = __builtin_inff(), most = -__builtin_inff(), sum = 0;
  std::int32_t expert = -1;
  for (std::int64_t j = 0; j < s.k; ++j) {
    expert = next_expert(scores, s.E, last, expert);
    if (expert < 0) expert = static_cast<std::int32_t>(j);  // of NaN
    last = scores.of(expert);
    most = logits[expert] > most ? logits[expert] : most;
    experts[j] = expert;
  }
  if constexpr (by_sigmoid) {
    const float all = sum_of_sigmoids(logits, s.E);
    for (std::int64_t j = 0; j < s.k; ++j) weights[j] = sigmoid(logits[experts[j]]), sum += weights[j];
    sum += least_sum;
    for (std::int64_t j = 0; j < s.k; ++j) weights[j] = all >= 0 ? (s.normalized ? weights[j] / sum : weights[j]) * s.scale : all;
  } else {
    // A bias may choose experts whose logits are all far below the largest of all: weights begin at the largest of theirs.
    const Softmax& softmax = scores.softmax;
    for (std::int64_t j = 0; j < s.k; ++j) {
      const float logit = logits[experts[j]];
      weights[j] = s.normalized ? exp_nonpositive(logit - most) : softmax.probability(logit) * s.scale;
      sum += weights[j];
    }
    for (std::int64_t j = 0; s.normalized && j < s.k; ++j) weights[j] = softmax.sum > 0 ? weights[j] / sum * s.scale : softmax.sum;
  }
  if (s.shared) weights[s.k] = sigmoid(logits[s.E]);
}

/// E f_e of each choice that fell on an expert: all tokens that are no padding have made k.
TESSERA_BOTH inline float share_of_a_choice(const std::int32_t* counts, const RouterShape& s) {
  std::int64_t choices = 0;
  for (std::int64_t i = 0; i < s.parts * s.E; ++i) choices += counts[i];
  return static_cast<float>(s.E) / static_cast<float>(choices);
}

/// Choices of all parts that fell on an expert.
TESSERA_BOTH inline float choices_of(const std::int32_t* counts, const RouterShape& s, std::int64_t e) {
  std::int32_t choices = 0;
  for (std::int64_t part = 0; part < s.parts; ++part) choices += counts[part * s.E + e];
  return static_cast<float>(choices);
}

template <bool by_sigmoid>
TESSERA_BOTH inline void losses(const RouterLosses& p, std::int64_t m) {
  const RouterShape& s = p.shape;
  if (is_padding(p.experts, s, m)) {
    p.balance[m] = p.z[m] = 0;
    return;
  }
  const float* logits = p.logits + m * s.columns();
  const Softmax softmax = softmax_of(logits, s.E);
  float balance = 0;
  for (std::int64_t e = 0; e < s.E; ++e)
    balance += (by_sigmoid ? sigmoid(logits[e]) : softmax.probability(logits[e])) * choices_of(p.counts, s, e);
  if constexpr (by_sigmoid) balance /= sum_of_sigmoids(logits, s.E) + least_sum;
  const float log_sum = softmax.log_sum();
  p.balance[m] = balance * share_of_a_choice(p.counts, s);
  p.z[m] = log_sum * log_sum;
}

/// The gradient of the logits of a token that is no padding.
template <bool by_sigmoid>
class TokenGradient {
 public:
  TESSERA_BOTH TokenGradient(const RouterBackward& p, std::int64_t m)
      : p_(p), m_(m), logits_(p.logits + m * p.shape.columns()), softmax_(softmax_of(logits_, p.shape.E)) {
    const RouterShape& s = p.shape;
    const auto counted = static_cast<float>(*p.weight);
    balance_scale_ = counted * (p.balance * *p.grad_scale) * share_of_a_choice(p.counts, s);
    z_ = 2 * counted * (p.z * *p.grad_scale) * softmax_.log_sum();
    if constexpr (by_sigmoid) sum_ = sum_of_sigmoids(logits_, s.E) + least_sum;
    for (std::int64_t e = 0; e < s.E; ++e) mean_ += probability(logits_[e]) * by_probability(e);
    for (std::int64_t j = 0; s.normalized && j < s.k; ++j) chosen_mean_ += weights()[j] * d_weights()[j];
    chosen_mean_ /= s.scale;
  }
  TESSERA_BOTH float of(std::int64_t column) const {
    const RouterShape& s = p_.shape;
    if (column == s.E) return d_weights()[s.k] * weights()[s.k] * (1.0f - weights()[s.k]);
    if constexpr (by_sigmoid) {
      const float logit = logits_[column], rest = sigmoid(-logit);  // 1 less the sigmoid, however little that leaves
      float d = probability(logit) * rest * (by_probability(column) - mean_) + softmax_.probability(logit) * z_;
      for (std::int64_t j = 0; j < s.k; ++j)
        if (chosen(j) == column) d += weights()[j] * rest * (d_weights()[j] - chosen_mean_);
      return d;
    }
    float d = softmax_.probability(logits_[column]) * (by_probability(column) - mean_ + z_);
    for (std::int64_t j = 0; s.normalized && j < s.k; ++j)
      if (chosen(j) == column) d += weights()[j] * (d_weights()[j] - chosen_mean_);
    return d;
  }

 private:
  TESSERA_BOTH const float* weights() const { return p_.weights + m_ * p_.shape.slots(); }
  TESSERA_BOTH const float* d_weights() const { return p_.d_weights + m_ * p_.shape.slots(); }
  TESSERA_BOTH std::int32_t chosen(std::int64_t j) const { return p_.experts[m_ * p_.shape.k + j]; }
  /// An expert's part of the balancing loss.
  TESSERA_BOTH float probability(float logit) const {
    if constexpr (by_sigmoid) return sigmoid(logit) / sum_;
    return softmax_.probability(logit);
  }
  /// What the loss gains by it: by the expert's share of choices, and where weights are probabilities of a softmax by its weight.
  TESSERA_BOTH float by_probability(std::int64_t e) const {
    const RouterShape& s = p_.shape;
    float d = balance_scale_ * choices_of(p_.counts, s, e);
    for (std::int64_t j = 0; !by_sigmoid && !s.normalized && j < s.k; ++j)
      if (chosen(j) == e) d += d_weights()[j] * s.scale;
    return d;
  }

  const RouterBackward& p_;
  std::int64_t m_;
  const float* logits_;
  Softmax softmax_;
  float balance_scale_ = 0, z_ = 0;
  float sum_ = 0;                     // of sigmoids
  float mean_ = 0, chosen_mean_ = 0;  // of what the loss gains: over experts by probability, over chosen ones by weight
};

/// Writes the gradient of a token's logits: `rounded` makes a T of a float.
template <bool by_sigmoid, class T, class Rounded>
TESSERA_BOTH inline void backward(const RouterBackward& p, std::int64_t m, const Rounded& rounded) {
  const RouterShape& s = p.shape;
  T* d_logits = static_cast<T*>(p.d_logits) + m * s.columns();
  if (is_padding(p.experts, s, m)) {
    for (std::int64_t column = 0; column < s.columns(); ++column) d_logits[column] = rounded(0.0f);
    return;
  }
  const TokenGradient<by_sigmoid> gradient(p, m);
  for (std::int64_t column = 0; column < s.columns(); ++column) d_logits[column] = rounded(gradient.of(column));
}

/// Runs with a constant that says by what experts are scored.
template <class Run>
void with_scores(const RouterShape& s, Run&& run) {
  s.sigmoid ? run(std::true_type{}) : run(std::false_type{});
}

/// Whether kernels take it.
inline bool is_whole(const RouterShape& s) {
  const bool one = s.groups == 1 && s.top_groups == 1;
  const bool grouped = s.sigmoid && s.groups > 1 && s.groups <= most_groups && s.top_groups > 0 && s.top_groups <= s.groups &&
                       s.E % s.groups == 0 && s.E / s.groups >= 2 && s.k <= s.top_groups * (s.E / s.groups);
  return s.E > 0 && s.k > 0 && s.k <= s.E && s.M >= 0 && s.scale > 0 && (one || grouped);
}

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
