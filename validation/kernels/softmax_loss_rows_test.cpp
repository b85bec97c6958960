// Rows of logits against fp64; the head as a whole is tested in validation/unit/model/head_test.cpp.
#include "softmax_loss_rows_cases.hpp"
#include "validation/kernels/gemm_test_support.hpp"

namespace tessera::kernels::softmax_loss_rows_test {
namespace {
using namespace testing;

void check_against_fp64(const SoftmaxLossRowsCase& c, DType t) {
  SCOPED_TRACE(::testing::Message() << c << " in " << name_of(t));
  SoftmaxLossRowsInputs in(c);
  const std::vector<float> given = in.logits;  // before the kernel works in them
  const std::vector<double> x = doubles(given);
  // In fp16 by a loss scale: else the gradients of most of a vocabulary are subnormal.
  const float grad_scale = t == DType::f16 ? 256 * softmax_grad_scale : softmax_grad_scale;
  Tensor d(c.rows * c.V, t), losses(c.rows, DType::f32);
  SoftmaxLossRows call{.losses = losses.as<float>(),
                       .logits = in.logits.data(),
                       .d_logits = d.data(),
                       .targets = in.targets.data(),
                       .weights = in.weights.data(),
                       .grad_scale = &grad_scale,
                       .rows = c.rows,
                       .V = c.V,
                       .dtype = t,
                       .map = c.map};
  softmax_loss_rows({}, call);
  std::vector<double> want_losses, want_d;
  for (std::int64_t r = 0; r < c.rows; ++r) {
    std::vector<double> row;
    for (std::int64_t v = 0; v < c.V; ++v) row.push_back(mapped_in_fp64(x[static_cast<std::size_t>(r * c.V + v)], c.map));
    const std::int32_t target = in.targets[static_cast<std::size_t>(r)];
    const double most = *std::max_element(row.begin(), row.end());
    double total = 0;
    for (const double logit : row) total += std::exp(logit - most);
    const auto weight = static_cast<double>(in.weights[static_cast<std::size_t>(r)]);
    want_losses.push_back(weight == 0 ? 0 : weight * (std::log(total) + most - row[static_cast<std::size_t>(target)]));
    for (std::size_t v = 0; v < row.size(); ++v)
      want_d.push_back(weight * static_cast<double>(grad_scale) *
                       (std::exp(row[v] - most) / total - (static_cast<std::int64_t>(v) == target ? 1 : 0)) *
                       map_slope_in_fp64(x[static_cast<std::size_t>(r * c.V) + v], c.map));
  }
  EXPECT_LT(relative_error(losses.doubles(), want_losses), 1e-6);
  EXPECT_LT(relative_error(d.doubles(), want_d), tolerance(t));

  // The loss alone, and the gradient in the place of the logits.
  std::copy(given.begin(), given.end(), in.logits.begin());
  Tensor again(c.rows, DType::f32);
  call.losses = again.as<float>(), call.d_logits = nullptr;
  softmax_loss_rows({}, call);
  EXPECT_EQ(again.doubles(), losses.doubles());
  if (t != DType::f32) return;
  std::copy(given.begin(), given.end(), in.logits.begin());
  call.d_logits = in.logits.data();
  softmax_loss_rows({}, call);
  EXPECT_EQ(doubles(in.logits), d.doubles());
}

TEST(SoftmaxLossRows, MatchesFp64) {
  for (const SoftmaxLossRowsCase& c : softmax_loss_rows_cases)
    for (const DType t : {DType::f32, DType::bf16, DType::f16}) check_against_fp64(c, t);
}
TEST(SoftmaxLossRows, MatchesFp64OfMappedLogits) {
  for (const SoftmaxLossRowsCase& c : mapped_rows_cases)
    for (const DType t : {DType::f32, DType::bf16, DType::f16}) check_against_fp64(c, t);
}

// A row of weight 0 is not read, whatever the map: its logits are none.
TEST(SoftmaxLossRows, RowsWithoutWeightAreNotRead) {
  for (const LogitMap& map : {LogitMap{}, LogitMap{.scale = 2, .cap = 30}}) {
    std::vector<float> logits = poisoned<float>(17), d = poisoned<float>(17);
    const float weight = 0;
    const std::int32_t target = -100;
    float loss = 1;
    softmax_loss_rows({}, {.losses = &loss,
                           .logits = logits.data(),
                           .d_logits = d.data(),
                           .targets = &target,
                           .weights = &weight,
                           .grad_scale = &softmax_grad_scale,
                           .rows = 1,
                           .V = 17,
                           .map = map});
    EXPECT_EQ(loss, 0);
    EXPECT_EQ(d, std::vector<float>(17));
  }
}

// Each at its own size, and each cap's digits near 0 and at its end.
TEST(MapLogits, MatchesFp64) {
  for (const LogitMap& map :
       {LogitMap{}, {.scale = 0.0625f}, {.scale = -3}, {.cap = 30}, {.scale = 0.5f, .cap = 5}, {.scale = -2, .cap = 50}})
    for (const std::int64_t n : {1, 7, 1013, 40000}) {
      std::vector<float> x = random_values<float>(n, 1, 20);
      for (std::size_t i = 0; i + 4 < x.size(); i += 3) x[i] *= 0.001f;
      const float extremes[] = {0.0f, -0.0f, 1e30f, -1e30f};
      for (std::size_t i = 0; i < std::size(extremes) && i < x.size(); ++i) x[i] = extremes[i];
      const std::vector<float> before = x;
      map_logits({}, x.data(), n, map);
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double expected = mapped_in_fp64(static_cast<double>(before[i]), map);
        ASSERT_NEAR(static_cast<double>(x[i]), expected, 5e-7 * std::abs(expected)) << before[i] << ", " << map.scale << ", " << map.cap;
        ASSERT_TRUE(map.cap == 0 || std::abs(x[i]) <= map.cap) << x[i];
      }
    }
  std::vector<float> bad(17, std::nanf(""));
  map_logits({}, bad.data(), 17, {.cap = 30});
  for (const float x : bad) EXPECT_TRUE(std::isnan(x));
}
TEST(SoftmaxLossRows, RefusesTargetsOutsideTheVocabulary) {
  for (const std::int32_t target : {-2, 5}) {
    float logits[5] = {}, loss = 0;
    const float one = 1, none = 0;
    EXPECT_ANY_THROW(softmax_loss_rows({}, {.losses = &loss, .logits = logits, .targets = &target, .weights = &one, .rows = 1, .V = 5}))
        << target;
    EXPECT_NO_THROW(softmax_loss_rows({}, {.losses = &loss, .logits = logits, .targets = &target, .weights = &none, .rows = 1, .V = 5}));
    EXPECT_EQ(loss, 0);
  }
}

TEST(SumLosses, AddsInFp64) {
  const std::vector<float> losses = {1e8f, 1, 1, 1, -1e8f};
  double sum = std::nan("");
  sum_losses({}, {.sum = &sum, .losses = losses.data(), .M = static_cast<std::int64_t>(losses.size())});
  EXPECT_EQ(sum, 3);
}

// Of a weight of 1 the bits are those of no weight; a weight of another power of two moves no digit.
TEST(SoftmaxLossRows, WeightsScaleLossAndGradient) {
  const SoftmaxLossRowsCase c{3, 1013};
  const auto made_with = [&](float weight) {
    SoftmaxLossRowsInputs in(c);
    std::vector<std::int32_t> targets{1, 2, 3};
    std::vector<float> losses(3), weights(3, weight);
    softmax_loss_rows({}, {.losses = losses.data(),
                           .logits = in.logits.data(),
                           .d_logits = in.logits.data(),
                           .targets = targets.data(),
                           .weights = weights.data(),
                           .grad_scale = &softmax_grad_scale,
                           .rows = c.rows,
                           .V = c.V,
                           .dtype = DType::f32});
    losses.insert(losses.end(), in.logits.begin(), in.logits.end());
    return losses;
  };
  const std::vector<float> whole = made_with(1), half = made_with(0.5f);
  for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_EQ(half[i], whole[i] / 2) << i;
}

// A confident model: most probabilities are far below what fp32 holds normally. Subnormal gradients would slow the products after this by
// far.
TEST(SoftmaxLossRows, LeavesNoSubnormalGradient) {
  constexpr std::int64_t V = 1013;
  std::vector<float> logits(V), losses(1);
  for (std::int64_t i = 0; i < V; ++i) logits[static_cast<std::size_t>(i)] = -0.2f * static_cast<float>(i);
  const std::int32_t target = 3;
  const float grad_scale = 1e-3f, weight = 1;
  softmax_loss_rows({}, {.losses = losses.data(),
                         .logits = logits.data(),
                         .d_logits = logits.data(),
                         .targets = &target,
                         .weights = &weight,
                         .grad_scale = &grad_scale,
                         .rows = 1,
                         .V = V,
                         .dtype = DType::f32});
  int normal = 0;
  for (float g : logits) {
    EXPECT_TRUE(g == 0 || std::isnormal(g)) << g;
    normal += g != 0;
  }
  EXPECT_GT(normal, 300) << "what fp32 holds must stay";
}

}  // namespace
}  // namespace tessera::kernels::softmax_loss_rows_test
