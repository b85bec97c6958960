#include "kernels/sgd/sgd.hpp"

#include "update_cases.hpp"

namespace tessera::kernels::testing::sgd_test {
namespace {

constexpr double momentum = 0.8;

/// torch.optim.SGD's single-tensor path, without dampening.
UpdateTested tested(decltype(UpdateTested::run) run, bool has_momentum, bool nesterov) {
  return {run, has_momentum ? 1 : 0, [=](double& w, double* m, double g, int, double lr, double weight_decay) {
            g += weight_decay * w;
            if (has_momentum) {
              *m = momentum * *m + g;
              g = nesterov ? g + momentum * *m : *m;
            }
            w -= lr * g;
          }};
}

TEST(Sgd, IsPyTorchsWithTheSameBitsAnywhere) { tested(sgd, false, false).expect_all(); }
TEST(Sgd, WithMomentumToo) { tested(sgd_momentum, true, false).expect_all(); }
TEST(Sgd, AndWithNesterovs) { tested(sgd_nesterov, true, true).expect_all(); }

}  // namespace
}  // namespace tessera::kernels::testing::sgd_test
