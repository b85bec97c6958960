#include "base/check.hpp"
#include "device_array.hpp"
#include "kernels/adamw/adamw.hpp"

namespace tessera::kernels::testing::adamw_cuda_test {
namespace {

class AdamwCuda : public OnDevice {};

AdamwScalars scalars_of_step(int step) {
  return {.learning_rate = 3e-3f,
          .bias_correction1 = static_cast<float>(1 - std::pow(0.9, step)),
          .bias_correction2 = static_cast<float>(1 - std::pow(0.95, step)),
          .grad_scale = 0.7f};
}

struct State {
  std::vector<float> master, m, v;
  std::vector<bf16> param;
  explicit State(std::int64_t n)
      : master(random_values<float>(n, 1)),
        m(random_values<float>(n, 2, 1e-3f)),
        v(random_values<float>(n, 3, 1e-6f)),
        param(poisoned<bf16>(n)) {
    for (float& x : v) x = std::abs(x);
  }
  std::string hash() const { return digest(master, m, v, param).hex(); }
};

template <class Grad>
std::vector<Grad> gradients(std::int64_t n, unsigned seed) {
  const auto g = random_values<float>(n, seed, 0.1f);
  if constexpr (std::is_same_v<Grad, float>) {
    return g;
  } else if constexpr (std::is_same_v<Grad, bf16>) {
    return {g.begin(), g.end()};
  } else {
    std::vector<std::int64_t> fixed;
    for (float x : g) fixed.push_back(std::llrint(static_cast<double>(x) * 0x1p44) * 1021 + 1);  // more digits than fp32 has
    return fixed;
  }
}

/// Three steps on both; bits are compared.
template <class Grad>
void compare(std::int64_t n, std::int64_t shift, bool copy, bool skip) {
  SCOPED_TRACE(::testing::Message() << n << " parameters, shift " << shift << ", copy " << copy << ", skip " << skip);
  State host_state(n), result(n);
  DeviceArray<float> master(host_state.master, shift), m(host_state.m, shift), v(host_state.v, shift);
  DeviceArray<bf16> param(n, shift);
  for (int t = 1; t <= 3; ++t) {
    AdamwScalars s = scalars_of_step(t);
    s.skip = skip;
    const auto grad = skip ? poisoned<Grad>(n) : gradients<Grad>(n, 10 + static_cast<unsigned>(t));
    Adamw p{.master = host_state.master.data(),
            .m = host_state.m.data(),
            .v = host_state.v.data(),
            .param = copy ? host_state.param.data() : nullptr,
            .grad = grad.data(),
            .grad_dtype = dtype_of<Grad>(),
            .n = n,
            .rate_scale = 0.6f,
            .weight_decay = 0.1f,
            .scalars = &s};
    host::adamw({}, p);
    DeviceArray<Grad> device_grad(grad, shift);
    DeviceArray<AdamwScalars> scalars(std::vector<AdamwScalars>{s});
    p.master = master.data(), p.m = m.data(), p.v = v.data(), p.param = copy ? param.data() : nullptr;
    p.grad = device_grad.data(), p.scalars = scalars.data();
    cuda::adamw({}, p);
  }
  result.master = master.host(), result.m = m.host(), result.v = v.host(), result.param = param.host();
  EXPECT_EQ(result.hash(), host_state.hash());
}

TEST_F(AdamwCuda, HasTheBitsOfTheHost) {
  for (std::int64_t n : {1, 3, 77, 1013, 4096, 9001}) {
    for (std::int64_t shift : {0, 1})
      compare<float>(n, shift, true, false), compare<bf16>(n, shift, true, false), compare<std::int64_t>(n, shift, true, false);
  }
}

TEST_F(AdamwCuda, RunsWithoutACopyAndSkipsWhenTold) {
  compare<float>(1013, 0, false, false), compare<std::int64_t>(1013, 0, false, false);
  compare<float>(77, 0, true, true), compare<std::int64_t>(77, 0, true, true);
}

TEST_F(AdamwCuda, RefusesOtherGradientTypes) { EXPECT_THROW(cuda::adamw({}, {.grad_dtype = DType::u32, .n = 16}), Error); }

}  // namespace
}  // namespace tessera::kernels::testing::adamw_cuda_test
