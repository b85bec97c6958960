// The kernel of an optimizer on a GPU against the host's.
#pragma once
#include "device_array.hpp"
#include "update_cases.hpp"

namespace tessera::kernels::testing {

using UpdateKernel = void (*)(const Context&, const Update&);

/// Three steps on both; bits are compared.
template <class Grad>
void compare_update(UpdateKernel on_host, UpdateKernel on_device, const UpdateCase& c, std::int64_t shift) {
  SCOPED_TRACE(::testing::Message() << c << ", shift " << shift);
  UpdateState expected(c.n), result(c.n);
  DeviceArray<float> master(expected.master, shift), first(expected.state[0], shift), second(expected.state[1], shift);
  DeviceArray<bf16> param(c.n, shift);
  for (int t = 1; t <= 3; ++t) {
    UpdateScalars s = scalars_of_step(t, 3e-3f, 0.7f);
    s.skip = c.skip;
    const auto grad = c.skip ? poisoned<Grad>(c.n) : update_gradients<Grad>(c.n, 10 + static_cast<unsigned>(t));
    Update p = expected.call(0, c.copy);
    p.grad = grad.data(), p.grad_dtype = dtype_of<Grad>(), p.n = c.n, p.rate_scale = 0.6f, p.weight_decay = 0.1f, p.scalars = &s;
    on_host({}, p);
    DeviceArray<Grad> device_grad(grad, shift);
    DeviceArray<UpdateScalars> scalars(std::vector<UpdateScalars>{s});
    p.master = master.data(), p.state[0] = first.data(), p.state[1] = second.data(), p.param = c.copy ? param.data() : nullptr;
    p.grad = device_grad.data(), p.scalars = scalars.data();
    on_device({}, p);
  }
  result.master = master.host(), result.state[0] = first.host(), result.state[1] = second.host(), result.param = param.host();
  EXPECT_EQ(result.hash().hex(), expected.hash().hex());
}

inline void expect_bits_of_the_host(UpdateKernel on_host, UpdateKernel on_device) {
  for (const UpdateCase& c : update_cases)
    for (std::int64_t shift : {0, 1}) {
      compare_update<float>(on_host, on_device, c, shift);
      compare_update<bf16>(on_host, on_device, c, shift);
      compare_update<std::int64_t>(on_host, on_device, c, shift);
    }
  EXPECT_THROW(on_device({}, {.grad_dtype = DType::u32, .n = 16}), Error);
}

}  // namespace tessera::kernels::testing
