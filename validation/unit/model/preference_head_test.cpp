// The text of the head in two passes, on the host's kernels: losses of pairs and their gradients against differences of the loss in fp64.
#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "kernels/step/step.hpp"
#include "validation/kernels/gemm_test_support.hpp"
#include "validation/unit/segment_run.hpp"

namespace tessera::preference_head_test {
namespace {
using namespace kernels::testing;
using kernels::PreferenceLoss, kernels::PreferenceRules;
using enum ValueKind;

/// Two sequences of T tokens. The first has two pairs, and the second one and padding. A sixth of the targets count.
struct Case {
  std::int64_t T = 40, C = 24, V = 131, chunk = 32, at_once = 16;
  DType dtype = DType::f32;
  bool reference = true, makes_reference = false;
  PreferenceRules rules = {};
  std::int64_t tokens() const { return 2 * T; }
  std::int64_t sequences() const { return 2 * ceil_div(2 * T, 4); }
};

struct Inputs {
  Tensor x, weight;
  std::vector<std::int32_t> targets, sequences, counts;
  std::vector<float> weights;
  std::vector<double> reference;
  explicit Inputs(const Case& s) : x(s.tokens() * s.C, s.dtype), weight(s.V * s.C, s.dtype) {
    x.randomize(1);
    weight.randomize(2, 0.3);
    counts.resize(static_cast<std::size_t>(s.sequences()), 0);
    for (std::int64_t i = 0; i < s.tokens(); ++i) {
      const std::int64_t text = i / (s.T / 4);  // of four in each sequence
      const bool counts_here = text < 6 && i % 3 != 0 && i % (s.T / 4) > 2 + text % 2;
      targets.push_back(static_cast<std::int32_t>((i * 7919 + 3) % s.V));
      sequences.push_back(counts_here ? static_cast<std::int32_t>(text) : -1);
      weights.push_back(counts_here ? 1.0f : 0.0f);
      if (counts_here) ++counts[static_cast<std::size_t>(text)];
    }
    for (std::int64_t k = 0; k < s.sequences(); ++k) reference.push_back(-12 - 1.5 * static_cast<double>(k % 5));
  }
};

ModelShape shape_of(const Case& s) {
  return {.B = 2,
          .T = s.T,
          .C = s.C,
          .V = s.V,
          .dtype = s.dtype,
          .loss_chunk = s.chunk,
          .logit_rows = s.at_once,
          .preference = {.on = true, .has_reference = s.reference, .makes_reference = s.makes_reference, .rules = s.rules}};
}

struct Outputs {
  std::vector<double> normed, d_normed, d_weight, reference;
  double loss = 0;
  kernels::PreferenceTotals totals;
  std::int32_t not_finite = -1;
};

constexpr float grad_scale = 1.f / 64;

Outputs run(const Case& s, const Inputs& in, bool gradients = true) {
  const Segment segment = head_segment(shape_of(s));
  test::SegmentRun head(segment);
  Tensor ones(s.C, s.dtype);
  for (std::int64_t c = 0; c < s.C; ++c) ones.set(c, 1);
  const auto make = [&](ValueKind kind, const char* name, const auto& values) { head.make(kind, name, std::as_bytes(std::span(values))); };
  head.make(stream_in, "stream", in.x.bytes());
  head.make(weight, "head.norm", ones.bytes());
  head.make(weight_gradient, "head.norm", 4 * s.C);
  head.make(weight, "head.weight", in.weight.bytes());
  head.make(weight_gradient, "head.weight", 4 * s.V * s.C);
  make(targets, "targets", in.targets);
  make(row_weights, "row_weights", in.weights);
  make(sequences, "sequences", in.sequences);
  make(sequence_counts, "sequence_counts", in.counts);
  make(reference_logps, "reference_logps", in.reference);
  head.make(preference_totals, "preference", sizeof(kernels::PreferenceTotals));
  *head.at<kernels::PreferenceTotals>(preference_totals, "preference") = {};
  head.make(scalars, "scalars", sizeof(kernels::StepScalars));
  auto& step = *head.at<kernels::StepScalars>(scalars, "scalars") = {};
  for (std::size_t k = 0; k < 6; k += 2) step.weight.add(1.0), step.chosen_targets += in.counts[k];

  const Kept nothing(segment.values.size(), KeptBy::none);
  SegmentPass pass = gradients ? backward_pass(segment, 0, nothing) : forward_pass(segment, 0, nothing);
  for (Operand& o : pass.operands)
    if (segment.at(o.value).kind == weight_gradient) o.access = Access::write;
  EXPECT_TRUE(head.run(pass, grad_scale, true));
  Outputs o;
  o.loss = step.loss.value(), o.not_finite = step.not_finite;
  o.totals = *head.at<kernels::PreferenceTotals>(preference_totals, "preference");
  const double* logps = head.at<double>(reference_logps, "reference_logps");
  o.reference.assign(logps, logps + s.sequences());
  if (!gradients) return o;
  o.d_weight = head.doubles(weight_gradient, "head.weight", DType::f32);
  o.d_normed = head.doubles(activation, "d_normed", s.dtype);
  const std::vector<double> front = head.doubles(activation, "normed", s.dtype);
  o.normed.resize(front.size());  // rows that count are at the front
  auto next = front.begin();
  for (std::size_t i = 0; i < in.weights.size(); ++i)
    if (in.weights[i] != 0) std::copy_n(next, s.C, o.normed.begin() + static_cast<std::ptrdiff_t>(i) * s.C), next += s.C;
  return o;
}

double log_sigmoid(double z) { return z > 0 ? -std::log1p(std::exp(-z)) : z - std::log1p(std::exp(z)); }

/// Of each text the log-probability.
std::vector<double> logps(const Case& s, const Inputs& in, const std::vector<double>& x, const std::vector<double>& w) {
  std::vector<double> sums(in.counts.size());
  for (std::int64_t i = 0; i < s.tokens(); ++i) {
    const std::int32_t text = in.sequences[static_cast<std::size_t>(i)];
    if (text < 0) continue;
    std::vector<double> logits(static_cast<std::size_t>(s.V));
    for (std::int64_t v = 0; v < s.V; ++v)
      for (std::int64_t c = 0; c < s.C; ++c)
        logits[static_cast<std::size_t>(v)] += x[static_cast<std::size_t>(i * s.C + c)] * w[static_cast<std::size_t>(v * s.C + c)];
    double total = 0;
    for (const double l : logits) total += std::exp(l);
    sums[static_cast<std::size_t>(text)] += logits[static_cast<std::size_t>(in.targets[static_cast<std::size_t>(i)])] - std::log(total);
  }
  return sums;
}

/// The sum over pairs, as the page of preferences has it.
double loss_of(const Case& s, const Inputs& in, const std::vector<double>& x, const std::vector<double>& w) {
  const std::vector<double> sums = logps(s, in, x, w);
  const PreferenceRules& p = s.rules;
  double total = 0, chosen_tokens = 0, chosen_nll = 0;
  for (std::size_t k = 0; k < 6; k += 2) {
    const double n_w = in.counts[k], n_l = in.counts[k + 1];
    const double r_w = sums[k] - (s.reference ? in.reference[k] : 0), r_l = sums[k + 1] - (s.reference ? in.reference[k + 1] : 0);
    const double D = r_w - r_l, d = r_w / n_w - r_l / n_l, e = p.label_smoothing;
    total += p.of(PreferenceLoss::dpo) * (-(1 - e) * log_sigmoid(p.beta * D) - e * log_sigmoid(-p.beta * D));
    total += p.of(PreferenceLoss::ipo) * std::pow(d - 1 / (2 * p.beta), 2);
    total += p.of(PreferenceLoss::simpo) * -log_sigmoid(p.beta * (sums[k] / n_w - sums[k + 1] / n_l) - p.gamma);
    total += p.of(PreferenceLoss::cpo) * -log_sigmoid(p.beta * (sums[k] - sums[k + 1]));
    chosen_tokens += n_w, chosen_nll -= sums[k];
  }
  // A mean over tokens, beside sums over pairs of which there are three.
  return total + 3 * (p.of(PreferenceLoss::cpo) * p.alpha + p.of(PreferenceLoss::sft)) * chosen_nll / chosen_tokens;
}

PreferenceRules rules(std::initializer_list<std::pair<PreferenceLoss, double>> losses, double beta, double smoothing = 0) {
  PreferenceRules p{.beta = beta, .label_smoothing = smoothing};
  for (const auto& [loss, weight] : losses) p.weight[static_cast<std::size_t>(loss)] = weight;
  return p;
}

std::vector<Case> cases() {
  using enum PreferenceLoss;
  return {{.rules = rules({{dpo, 1}}, 0.3)},
          {.chunk = 80, .at_once = 80, .rules = rules({{dpo, 1}}, 0.3, 0.2)},
          {.rules = rules({{ipo, 1}}, 0.5)},
          {.reference = false, .rules = rules({{simpo, 1}}, 2)},
          {.reference = false, .rules = rules({{cpo, 1}}, 0.2)},
          {.rules = rules({{dpo, 0.7}, {sft, 1.5}}, 0.3)}};
}

TEST(PreferenceHead, FiniteDifferencesInFp64) {
  for (const Case& s : cases()) {
    const Inputs in(s);
    const Outputs got = run(s, in);
    const std::vector<double> weight = in.weight.doubles();
    EXPECT_EQ(got.not_finite, 0);
    EXPECT_NEAR(got.loss, loss_of(s, in, got.normed, weight), 1e-5 * std::abs(got.loss));
    const auto check = [&](bool move_x, const std::vector<double>& gradient) {
      std::vector<double> numeric, analytic;
      for (std::size_t i = 0; i < gradient.size(); i += 29) {
        const auto moved = [&](double by) {
          std::vector<double> x = got.normed, w = weight;
          (move_x ? x : w)[i] += by;
          return loss_of(s, in, x, w) * static_cast<double>(grad_scale);
        };
        numeric.push_back((moved(1e-4) - moved(-1e-4)) / 2e-4);
        analytic.push_back(gradient[i]);
      }
      EXPECT_LT(relative_error(analytic, numeric), 2e-5) << move_x;
    };
    check(true, got.d_normed);
    check(false, got.d_weight);
  }
}

TEST(PreferenceHead, LossAloneIsTheSame) {
  for (const Case& s : cases()) {
    const Inputs in(s);
    const Outputs with = run(s, in), without = run(s, in, false);
    EXPECT_EQ(with.loss, without.loss);
    EXPECT_EQ(with.totals.chosen, 3);
    EXPECT_EQ(without.totals.accurate, with.totals.accurate);
    EXPECT_EQ(without.totals.margins(), with.totals.margins());
  }
}

// What a reference leaves is what the model would count: with equal weights all rewards are 0.
TEST(PreferenceHead, TheModelAsItsOwnReference) {
  Case s{.rules = rules({{PreferenceLoss::dpo, 1}}, 0.3)};
  Inputs in(s);
  Case maker = s;
  maker.makes_reference = true, maker.reference = false;
  const Outputs made = run(maker, in, false);
  const std::vector<double> want = logps(s, in, run(s, in).normed, in.weight.doubles());
  for (std::size_t k = 0; k < 6; ++k) EXPECT_NEAR(made.reference[k], want[k], 1e-5 * std::abs(want[k]));
  for (std::size_t k = 6; k < want.size(); ++k) EXPECT_EQ(made.reference[k], 0);
  EXPECT_EQ(made.totals.chosen, 0);
  in.reference = made.reference;
  const Outputs own = run(s, in);
  EXPECT_EQ(own.totals.chosen_rewards.value(), 0);
  EXPECT_EQ(own.totals.margins(), 0);
  EXPECT_NEAR(own.loss, 3 * std::log(2.0), 1e-12);
}

// Rows that count in no text change no bit.
TEST(PreferenceHead, OtherRowsAreNotRead) {
  for (const DType t : {DType::f32, DType::bf16}) {
    Case s{.dtype = t, .rules = rules({{PreferenceLoss::dpo, 1}}, 0.3)};
    const Inputs in(s);
    Inputs other(s);
    for (std::int64_t i = 0; i < s.tokens(); ++i)
      if (in.weights[static_cast<std::size_t>(i)] == 0)
        for (std::int64_t c = 0; c < s.C; ++c) other.x.set(i * s.C + c, 3);
    const Outputs a = run(s, in), b = run(s, other);
    EXPECT_EQ(a.loss, b.loss);
    EXPECT_EQ(a.d_weight, b.d_weight);
    EXPECT_EQ(a.d_normed, b.d_normed);
  }
}

}  // namespace
}  // namespace tessera::preference_head_test
