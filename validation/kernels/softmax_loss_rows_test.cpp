// Rows of logits against fp64; the head as a whole is tested in validation/unit/model/head_test.cpp.
#include "softmax_loss_rows_cases.hpp"
#include "validation/kernels/gemm_test_support.hpp"

namespace tessera::kernels::softmax_loss_rows_test {
namespace {
using namespace testing;

TEST(SoftmaxLossRows, MatchesFp64) {
  for (const SoftmaxLossRowsCase& c : softmax_loss_rows_cases)
    for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
      SCOPED_TRACE(::testing::Message() << c << " in " << name_of(t));
      SoftmaxLossRowsInputs in(c);
      const std::vector<double> x = doubles(in.logits);  // before the kernel works in them
      // In fp16 by a loss scale: else the gradients of most of a vocabulary are subnormal.
      const float grad_scale = t == DType::f16 ? 256 * softmax_grad_scale : softmax_grad_scale;
      Tensor d(c.rows * c.V, t), losses(c.rows, DType::f32);
      softmax_loss_rows({}, {.losses = losses.as<float>(),
                             .logits = in.logits.data(),
                             .d_logits = d.data(),
                             .targets = in.targets.data(),
                             .weights = in.weights.data(),
                             .grad_scale = &grad_scale,
                             .rows = c.rows,
                             .V = c.V,
                             .dtype = t});
      std::vector<double> want_losses, want_d;
      for (std::int64_t r = 0; r < c.rows; ++r) {
        const double* row = x.data() + r * c.V;
        const std::int32_t target = in.targets[static_cast<std::size_t>(r)];
        const double most = *std::max_element(row, row + c.V);
        double total = 0;
        for (std::int64_t v = 0; v < c.V; ++v) total += std::exp(row[v] - most);
        const auto weight = static_cast<double>(in.weights[static_cast<std::size_t>(r)]);
        want_losses.push_back(weight == 0 ? 0 : weight * (std::log(total) + most - row[target]));
        for (std::int64_t v = 0; v < c.V; ++v)
          want_d.push_back(weight * grad_scale * (std::exp(row[v] - most) / total - (v == target ? 1 : 0)));
      }
      EXPECT_LT(relative_error(losses.doubles(), want_losses), 1e-6);
      EXPECT_LT(relative_error(d.doubles(), want_d), tolerance(t));
    }
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
