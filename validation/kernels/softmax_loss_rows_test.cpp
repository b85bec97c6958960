// Rows of logits against fp64; the head as a whole is tested in validation/unit/model/head_test.cpp.
#include "kernels/cross_entropy/cross_entropy.hpp"

#include "validation/kernels/gemm_test_support.hpp"

namespace tessera::kernels::softmax_loss_rows_test {
namespace {
using namespace testing;

TEST(SoftmaxLossRows, MatchesFp64) {
  for (const std::int64_t V : {1, 2, 7, 64, 1013, 50257})
    for (const DType t : {DType::f32, DType::bf16}) {
      constexpr std::int64_t rows = 3;
      Tensor logits(rows * V, DType::f32), d(rows * V, t), losses(rows, DType::f32);
      logits.randomize(1, 5);
      const std::vector<double> x = logits.doubles();
      const std::int32_t targets[rows] = {static_cast<std::int32_t>(V - 1), no_target, static_cast<std::int32_t>(V / 2)};
      softmax_loss_rows({}, {.losses = losses.as<float>(),
                             .logits = logits.as<float>(),
                             .d_logits = d.data(),
                             .targets = targets,
                             .grad_scale = 0.25f,
                             .rows = rows,
                             .V = V,
                             .dtype = t});
      std::vector<double> want_losses, want_d;
      for (std::int64_t r = 0; r < rows; ++r) {
        const double* row = x.data() + r * V;
        const double most = *std::max_element(row, row + V);
        double total = 0;
        for (std::int64_t v = 0; v < V; ++v) total += std::exp(row[v] - most);
        want_losses.push_back(targets[r] == no_target ? 0 : std::log(total) + most - row[targets[r]]);
        for (std::int64_t v = 0; v < V; ++v)
          want_d.push_back(targets[r] == no_target ? 0 : 0.25 * (std::exp(row[v] - most) / total - (v == targets[r] ? 1 : 0)));
      }
      EXPECT_LT(relative_error(losses.doubles(), want_losses), 1e-6) << V;
      EXPECT_LT(relative_error(d.doubles(), want_d), tolerance(t)) << V;
    }
}

TEST(SoftmaxLossRows, RefusesTargetsOutsideTheVocabulary) {
  for (const std::int32_t target : {-2, 5}) {
    float logits[5] = {}, loss = 0;
    EXPECT_ANY_THROW(softmax_loss_rows({}, {.losses = &loss, .logits = logits, .targets = &target, .rows = 1, .V = 5})) << target;
  }
}

TEST(SumLosses, AddsInFp64) {
  const std::vector<float> losses = {1e8f, 1, 1, 1, -1e8f};
  double sum = std::nan("");
  sum_losses({}, {.sum = &sum, .losses = losses.data(), .M = static_cast<std::int64_t>(losses.size())});
  EXPECT_EQ(sum, 3);
}

// A confident model: most probabilities are far below what fp32 holds normally. Subnormal gradients would slow the products after this by
// far.
TEST(SoftmaxLossRows, LeavesNoSubnormalGradient) {
  constexpr std::int64_t V = 1013;
  std::vector<float> logits(V), losses(1);
  for (std::int64_t i = 0; i < V; ++i) logits[static_cast<std::size_t>(i)] = -0.2f * static_cast<float>(i);
  const std::int32_t target = 3;
  softmax_loss_rows({}, {.losses = losses.data(),
                         .logits = logits.data(),
                         .d_logits = logits.data(),
                         .targets = &target,
                         .grad_scale = 1e-3f,
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
