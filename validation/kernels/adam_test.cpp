#include "kernels/adam/adam.hpp"

#include "update_cases.hpp"

namespace tessera::kernels::testing::adam_test {
namespace {

/// torch.optim.Adam's single-tensor path.
TEST(Adam, IsPyTorchsWithTheSameBitsAnywhere) {
  const UpdateTested adam_kernel{adam, 2, [](double& w, double* state, double g, int t, double lr, double weight_decay) {
                                   auto& [m, v] = *reinterpret_cast<double(*)[2]>(state);
                                   g += weight_decay * w;
                                   m += (g - m) * (1 - update_beta1);
                                   v = v * update_beta2 + g * g * (1 - update_beta2);
                                   const double denominator = std::sqrt(v) / std::sqrt(1 - std::pow(update_beta2, t)) + 1e-8;
                                   w -= lr / (1 - std::pow(update_beta1, t)) * m / denominator;
                                 }};
  adam_kernel.expect_all();
}

}  // namespace
}  // namespace tessera::kernels::testing::adam_test
