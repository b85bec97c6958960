#include "kernels/adamw/adamw.hpp"

#include "update_cases.hpp"

namespace tessera::kernels::testing::adamw_test {
namespace {

/// torch.optim.AdamW's single-tensor path.
TEST(Adamw, IsPyTorchsWithTheSameBitsAnywhere) {
  const UpdateTested adamw_kernel{adamw, 2, [](double& w, double* state, double g, int t, double lr, double weight_decay) {
                                    auto& [m, v] = *reinterpret_cast<double(*)[2]>(state);
                                    w *= 1 - lr * weight_decay;
                                    m += (g - m) * (1 - update_beta1);
                                    v = v * update_beta2 + g * g * (1 - update_beta2);
                                    const double denominator = std::sqrt(v) / std::sqrt(1 - std::pow(update_beta2, t)) + 1e-8;
                                    w -= lr / (1 - std::pow(update_beta1, t)) * m / denominator;
                                  }};
  adamw_kernel.expect_all();
}

}  // namespace
}  // namespace tessera::kernels::testing::adamw_test
