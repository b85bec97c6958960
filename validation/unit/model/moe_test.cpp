// The text of a layer with experts on the host's kernels: its output, its losses and every gradient against fp64.
#include <algorithm>

#include "kernels/router/router.hpp"
#include "kernels/step/step.hpp"
#include "validation/kernels/gemm_test_support.hpp"
#include "validation/unit/segment_run.hpp"

namespace tessera::moe_test {
namespace {
using namespace kernels::testing;
using enum ValueKind;
using Values = std::vector<double>;

constexpr double eps = 1e-5, grad_scale = 1.0 / 16;

struct Case {
  std::string name;
  std::int64_t M, C;
  Router e;
};
const Case cases[] = {
    {"mixtral", 7, 6, {.E = 4, .k = 2, .F = 5, .balance_loss = 0.5f, .z_loss = 0.25f}},
    {"qwen", 6, 5, {.E = 3, .k = 2, .F = 3, .S = 4, .normalized = false, .balance_loss = 0.3f}},
    {"dropping", 9, 4, {.E = 3, .k = 2, .F = 3, .S = 2, .capacity_factor = 0.5, .z_loss = 0.1f}},
    {"one", 5, 4, {.E = 1, .k = 1, .F = 6}},
    {"biased", 8, 5, {.E = 5, .k = 2, .F = 3, .S = 2, .balance_loss = 0.4f, .biased = true}},
};

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

ModelShape shape_of(const Case& c) { return {.B = 1, .T = c.M, .C = c.C, .L = 3, .router = c.e}; }

/// Weights by the name that the text gives them: all experts' matrices are those of the first.
struct Weights {
  std::vector<std::pair<std::string, std::int64_t>> table;
  explicit Weights(const Case& c) {
    const Router& e = c.e;
    const std::string w = "layers.1.moe.";
    table = {{w + "norm", c.C},
             {w + "router", (e.E + (e.S > 0 ? 1 : 0)) * c.C},
             {w + "experts.0.w_gate", e.E * 2 * e.F * c.C},
             {w + "experts.0.w_down", e.E * c.C * e.F}};
    if (e.S > 0) table.emplace_back(w + "shared.w_gate", 2 * e.S * c.C), table.emplace_back(w + "shared.w_down", c.C * e.S);
  }
};

double silu(double x) { return x / (1 + std::exp(-x)); }

/// In fp64, for choices that stay as they are.
struct Reference {
  Case c;
  std::vector<std::int32_t> experts, counts, places;

  /// w_down(silu(gate) up) of a row, whose [w_gate; w_up] and w_down begin there.
  Values block(const double* row, const double* gate_up, const double* down, std::int64_t F) const {
    Values inner(size(F)), out(size(c.C), 0.0);
    for (std::int64_t f = 0; f < F; ++f) {
      double gate = 0, up = 0;
      for (std::int64_t i = 0; i < c.C; ++i) gate += gate_up[f * c.C + i] * row[i], up += gate_up[(F + f) * c.C + i] * row[i];
      inner[size(f)] = silu(gate) * up;
    }
    for (std::int64_t i = 0; i < c.C; ++i)
      for (std::int64_t f = 0; f < F; ++f) out[size(i)] += down[i * F + f] * inner[size(f)];
    return out;
  }
  /// values: x, then the weights in the order of the table. The dot product of the output with d_out, plus the router's losses as they
  /// count; `balance` and `z` take their sums over tokens.
  double operator()(const std::vector<Values>& values, const Values& d_out, Values* out = nullptr, double* balance = nullptr,
                    double* z = nullptr) const {
    const Router& e = c.e;
    const std::int64_t columns = e.E + (e.S > 0 ? 1 : 0);
    double total = 0, balances = 0, zs = 0;
    for (std::int64_t m = 0; m < c.M; ++m) {
      const double* x = values[0].data() + m * c.C;
      double squares = 0;
      for (std::int64_t i = 0; i < c.C; ++i) squares += x[i] * x[i];
      Values normed(size(c.C)), logits(size(columns), 0.0), y(x, x + c.C);
      for (std::int64_t i = 0; i < c.C; ++i)
        normed[size(i)] = x[i] / std::sqrt(squares / static_cast<double>(c.C) + eps) * values[1][size(i)];
      for (std::int64_t j = 0; j < columns; ++j)
        for (std::int64_t i = 0; i < c.C; ++i) logits[size(j)] += values[2][size(j * c.C + i)] * normed[size(i)];
      double sum = 0, chosen = 0;
      for (std::int64_t j = 0; j < e.E; ++j) sum += std::exp(logits[size(j)]);
      for (std::int64_t j = 0; j < e.k; ++j) chosen += std::exp(logits[size(experts[size(m * e.k + j)])]);
      for (std::int64_t j = 0; j < e.E; ++j)
        balances += std::exp(logits[size(j)]) / sum * counts[size(j)] * static_cast<double>(e.E) / static_cast<double>(e.k * c.M);
      zs += std::pow(std::log(sum), 2);
      for (std::int64_t j = 0; j < e.k; ++j) {
        const std::int32_t expert = experts[size(m * e.k + j)];
        if (places[size(m * e.k + j)] < 0) continue;
        const double weight = std::exp(logits[size(expert)]) / (e.normalized ? chosen : sum);
        const Values of = block(normed.data(), values[3].data() + expert * 2 * e.F * c.C, values[4].data() + expert * c.C * e.F, e.F);
        for (std::int64_t i = 0; i < c.C; ++i) y[size(i)] += weight * of[size(i)];
      }
      if (e.S > 0) {
        const Values of = block(normed.data(), values[5].data(), values[6].data(), e.S);
        for (std::int64_t i = 0; i < c.C; ++i) y[size(i)] += of[size(i)] / (1 + std::exp(-logits[size(e.E)]));
      }
      for (std::int64_t i = 0; i < c.C; ++i) total += y[size(i)] * d_out[size(m * c.C + i)];
      if (out) out->insert(out->end(), y.begin(), y.end());
    }
    if (balance) *balance = balances, *z = zs;
    return total + grad_scale * (static_cast<double>(e.balance_loss) * balances + static_cast<double>(e.z_loss) * zs);
  }
};

struct Trial {
  Case c;
  ModelShape s;
  Segment segment;
  test::SegmentRun at;
  Weights weights;
  std::vector<Values> values;  ///< x, then weights
  Values d_out;
  explicit Trial(const Case& c, double counted = 1) : c(c), s(shape_of(c)), segment(moe_segment(s, 1)), at(segment), weights(c) {
    const auto make = [&](ValueKind kind, const std::string& name, std::int64_t n, unsigned seed, double scale, double offset = 0) {
      Tensor t(n, DType::f32);
      t.randomize(seed, scale);
      for (std::int64_t i = 0; i < n; ++i) t.set(i, t.get(i) + offset);
      at.make(kind, name, t.bytes());
      return t.doubles();
    };
    values.push_back(make(stream_in, "stream", c.M * c.C, 1, 1));
    unsigned seed = 10;
    for (const auto& [name, n] : weights.table) {
      values.push_back(make(weight, name, n, seed++, 1, name.ends_with("norm") ? 1 : 0));
      at.make(weight_gradient, name, 4 * n);
    }
    if (c.e.biased) make(weight, "layers.1.moe.router_bias", c.e.E, 30, 1);
    d_out = make(d_stream, "d_stream", c.M * c.C, 2, 1);
    at.make(micro_batch_weight, "weight", sizeof(double));
    *at.at<double>(micro_batch_weight, "weight") = counted;
    at.make(scalars, "scalars", sizeof(kernels::StepScalars));
    *at.at<kernels::StepScalars>(scalars, "scalars") = {};
    const std::int64_t bytes = 8 * (kernels::router_sums + s.L * c.e.E);
    const auto totals = at.make(router_totals, "router", bytes);
    std::ranges::fill(totals, std::byte{0});
  }
  /// Keeping what `keep` says.
  void step(const std::function<KeptBy(const ValueInfo&)>& keep, bool reproducible = false) {
    const Kept kept = keep_for_backward(segment, keep);
    EXPECT_TRUE(at.run(forward_pass(segment, 0, kept), static_cast<float>(grad_scale), reproducible));
    SegmentPass backward = backward_pass(segment, 0, kept);
    for (Operand& o : backward.operands)
      if (segment.at(o.value).kind == weight_gradient) o.access = Access::write;
    EXPECT_TRUE(at.run(backward, static_cast<float>(grad_scale), reproducible));
  }
  Reference reference() {
    const auto integers = [&](const char* name, std::int64_t n) {
      const auto* first = at.at<std::int32_t>(activation, name);
      return std::vector<std::int32_t>(first, first + n);
    };
    return {c, integers("experts", c.M * c.e.k), integers("counts", c.e.E), integers("places", c.M * c.e.k)};
  }
};

KeptBy keep_all(const ValueInfo& v) { return v.remade ? KeptBy::none : KeptBy::forward; }
KeptBy keep_nothing(const ValueInfo&) { return KeptBy::none; }

class Moe : public ::testing::TestWithParam<Case> {};

TEST_P(Moe, OutputLossesAndEveryGradientMatchFp64) {
  for (const bool reproducible : {false, true}) {
    Trial run(GetParam());
    run.step(keep_all, reproducible);
    const Reference reference = run.reference();
    Values out;
    double balance = 0, z = 0;
    reference(run.values, run.d_out, &out, &balance, &z);
    EXPECT_LT(relative_error(run.at.doubles(stream_out, "stream", DType::f32), out), 2e-6);
    const auto& totals = *run.at.at<kernels::RouterTotals>(router_totals, "router");
    EXPECT_NEAR(totals.balance.value() / balance, 1, 1e-6);
    EXPECT_NEAR(totals.z.value() / z, 1, 1e-5);
    for (std::size_t v = 0; v < run.values.size(); ++v) {
      const bool of_x = v == 0;
      const std::string name = of_x ? "d_stream" : run.weights.table[v - 1].first;
      Values expected(run.values[v].size());
      for (std::size_t i = 0; i < expected.size(); ++i) {
        constexpr double h = 1e-6;
        auto moved = run.values;
        moved[v][i] += h;
        const double above = reference(moved, run.d_out);
        moved[v][i] -= 2 * h;
        expected[i] = (above - reference(moved, run.d_out)) / (2 * h);
      }
      EXPECT_LT(relative_error(run.at.doubles(of_x ? d_stream : weight_gradient, name, DType::f32), expected), 5e-6) << name;
    }
  }
}

// What a bias is moves choices, and no gradient reaches it.
TEST(MoeBias, TheExpertWithTheLargestBiasTakesEveryToken) {
  Trial run(cases[4]);
  float* bias = run.at.at<float>(weight, "layers.1.moe.router_bias");
  std::ranges::fill(std::span(bias, 5), 0.0f);
  bias[3] = 2;
  run.step(keep_all);
  const Reference reference = run.reference();
  EXPECT_EQ(reference.counts[3], run.c.M);
  for (std::int64_t m = 0; m < run.c.M; ++m) EXPECT_EQ(reference.experts[size(2 * m)], 3);
  for (const ValueInfo& v : run.segment.values) EXPECT_FALSE(v.kind == weight_gradient && v.name.ends_with("router_bias"));
}

TEST_P(Moe, CountsLoadsAndDropsOfItsLayer) {
  Trial run(GetParam());
  run.step(keep_all);
  const Reference reference = run.reference();
  const auto* totals = run.at.at<kernels::RouterTotals>(router_totals, "router");
  const auto* loads = reinterpret_cast<const std::int64_t*>(totals + 1);
  for (std::int64_t layer = 0; layer < 3; ++layer)
    for (std::int64_t e = 0; e < GetParam().e.E; ++e)
      EXPECT_EQ(loads[layer * GetParam().e.E + e], layer == 1 ? reference.counts[size(e)] : 0);
  EXPECT_EQ(totals->dropped, std::ranges::count(reference.places, -1));
  if (GetParam().name == "dropping") {
    EXPECT_GT(totals->dropped, 0);
  }
}

// A micro-batch that only keeps ranks in step has no router's loss; nothing else of it depends on its weight.
TEST_P(Moe, AMicroBatchOfNoWeightHasNoLossOfItsRouter) {
  Case without = GetParam();
  without.e.balance_loss = without.e.z_loss = 0;
  Trial empty(GetParam(), 0), plain(without);
  empty.step(keep_all), plain.step(keep_all);
  for (const auto& [name, n] : empty.weights.table)
    EXPECT_EQ(empty.at.doubles(weight_gradient, name, DType::f32), plain.at.doubles(weight_gradient, name, DType::f32)) << name;
  const auto* sums = empty.at.at<std::int64_t>(router_totals, "router");
  EXPECT_TRUE(std::all_of(sums, sums + kernels::router_sums + 3 * GetParam().e.E, [](std::int64_t n) { return n == 0; }));
}

TEST_P(Moe, RecomputeKeepsTheBitsAndCountsOnce) {
  Trial kept(GetParam()), again(GetParam());
  kept.step(keep_all), again.step(keep_nothing);
  EXPECT_EQ(kept.at.doubles(d_stream, "d_stream", DType::f32), again.at.doubles(d_stream, "d_stream", DType::f32));
  for (const auto& [name, n] : kept.weights.table)
    EXPECT_EQ(kept.at.doubles(weight_gradient, name, DType::f32), again.at.doubles(weight_gradient, name, DType::f32)) << name;
  const auto a = kept.at.bytes(router_totals, "router"), b = again.at.bytes(router_totals, "router");
  EXPECT_TRUE(std::ranges::equal(a, b));
}

INSTANTIATE_TEST_SUITE_P(Shapes, Moe, ::testing::ValuesIn(cases), [](const auto& info) { return info.param.name; });

TEST(MoeShape, CapacityAndRows) {
  ModelShape s = shape_of(cases[0]);
  s.T = 100;
  EXPECT_EQ(s.expert_capacity(), 100);
  EXPECT_EQ(s.expert_rows(), 200);
  s.router.capacity_factor = 1.25;
  EXPECT_EQ(s.expert_capacity(), 63);  // 1.25 x 100 x 2 / 4, rounded up
  EXPECT_EQ(s.expert_rows(), 200);
  s.router.capacity_factor = 0.5;
  EXPECT_EQ(s.expert_capacity(), 25);
  EXPECT_EQ(s.expert_rows(), 100);
  s.router.capacity_factor = 100;
  EXPECT_EQ(s.expert_capacity(), 100);
  s.router.capacity_factor = 1e-3;
  EXPECT_EQ(s.expert_capacity(), 1);
}

}  // namespace
}  // namespace tessera::moe_test
