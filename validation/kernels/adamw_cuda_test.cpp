#include "adamw_cases.hpp"
#include "base/check.hpp"
#include "device_array.hpp"

namespace tessera::kernels::testing::adamw_cuda_test {
namespace {

class AdamwCuda : public OnDevice {};

/// Three steps on both; bits are compared.
template <class Grad>
void compare(const AdamwCase& c, std::int64_t shift) {
  SCOPED_TRACE(::testing::Message() << c << ", shift " << shift);
  AdamwState host_state(c.n), result(c.n);
  DeviceArray<float> master(host_state.master, shift), m(host_state.m, shift), v(host_state.v, shift);
  DeviceArray<bf16> param(c.n, shift);
  for (int t = 1; t <= 3; ++t) {
    UpdateScalars s = scalars_of_step(t, 3e-3f, 0.7f);
    s.skip = c.skip;
    const auto grad = c.skip ? poisoned<Grad>(c.n) : adamw_gradients<Grad>(c.n, 10 + static_cast<unsigned>(t));
    Adamw p{.master = host_state.master.data(),
            .m = host_state.m.data(),
            .v = host_state.v.data(),
            .param = c.copy ? host_state.param.data() : nullptr,
            .grad = grad.data(),
            .grad_dtype = dtype_of<Grad>(),
            .n = c.n,
            .rate_scale = 0.6f,
            .weight_decay = 0.1f,
            .scalars = &s};
    host::adamw({}, p);
    DeviceArray<Grad> device_grad(grad, shift);
    DeviceArray<UpdateScalars> scalars(std::vector<UpdateScalars>{s});
    p.master = master.data(), p.m = m.data(), p.v = v.data(), p.param = c.copy ? param.data() : nullptr;
    p.grad = device_grad.data(), p.scalars = scalars.data();
    cuda::adamw({}, p);
  }
  result.master = master.host(), result.m = m.host(), result.v = v.host(), result.param = param.host();
  EXPECT_EQ(result.hash().hex(), host_state.hash().hex());
}

TEST_F(AdamwCuda, HasTheBitsOfTheHost) {
  for (const AdamwCase& c : adamw_cases)
    for (std::int64_t shift : {0, 1}) compare<float>(c, shift), compare<bf16>(c, shift), compare<std::int64_t>(c, shift);
}

TEST_F(AdamwCuda, CopiesInFp16) {
  for (const std::int64_t n : {77, 4096}) {
    AdamwState state(n);
    const auto grad = adamw_gradients<float>(n, 9);
    const AdamwScalars s = scalars_of_step(2, 3e-3f, 0.7f);
    DeviceArray<float> master(state.master), m(state.m), v(state.v), device_grad(grad);
    DeviceArray<f16> param(n);
    DeviceArray<AdamwScalars> scalars(std::vector<AdamwScalars>{s});
    cuda::adamw({}, {.master = master.data(),
                     .m = m.data(),
                     .v = v.data(),
                     .param = param.data(),
                     .param_dtype = DType::f16,
                     .grad = device_grad.data(),
                     .n = n,
                     .scalars = scalars.data()});
    std::vector<f16> want;
    for (float w : master.host()) want.emplace_back(w);
    EXPECT_EQ(param.host(), want);
  }
}

TEST_F(AdamwCuda, RefusesOtherGradientTypes) { EXPECT_THROW(cuda::adamw({}, {.grad_dtype = DType::u32, .n = 16}), Error); }

}  // namespace
}  // namespace tessera::kernels::testing::adamw_cuda_test
