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

/// The same with state in bf16, rounded either way.
inline void compare_states_in_bf16(UpdateKernel on_host, UpdateKernel on_device, const UpdateCase& c, std::int64_t shift, bool stochastic) {
  SCOPED_TRACE(::testing::Message() << c << ", shift " << shift << ", state in bf16, by chance " << stochastic);
  UpdateState expected(c.n), result(c.n);
  std::vector<bf16> state[most_update_states];
  for (int s = 0; s < most_update_states; ++s) state[s] = {expected.state[s].begin(), expected.state[s].end()};
  DeviceArray<float> master(expected.master, shift);
  DeviceArray<bf16> first(state[0], shift), second(state[1], shift), param(c.n, shift);
  for (int t = 1; t <= 2; ++t) {
    UpdateScalars s = scalars_of_step(t, 3e-3f, 0.7f);
    s.number = static_cast<std::uint32_t>(t);
    const auto grad = update_gradients<std::int64_t>(c.n, 10 + static_cast<unsigned>(t));
    Update p = expected.call(0, c.copy);
    p.state[0] = state[0].data(), p.state[1] = state[1].data(), p.state_type = StateType::bf16, p.stochastic = stochastic;
    p.grad = grad.data(), p.grad_dtype = DType::i64, p.n = c.n, p.weight_decay = 0.1f, p.scalars = &s;
    on_host({}, p);
    DeviceArray<std::int64_t> device_grad(grad, shift);
    DeviceArray<UpdateScalars> scalars(std::vector<UpdateScalars>{s});
    p.master = master.data(), p.state[0] = first.data(), p.state[1] = second.data(), p.param = c.copy ? param.data() : nullptr;
    p.grad = device_grad.data(), p.scalars = scalars.data();
    on_device({}, p);
  }
  result.master = master.host(), result.param = param.host();
  EXPECT_EQ(result.hash().hex(), expected.hash().hex());
  EXPECT_EQ(digest(first.host(), second.host()), digest(state[0], state[1]));
}

inline void expect_bits_of_the_host(UpdateKernel on_host, UpdateKernel on_device) {
  for (const UpdateCase& c : update_cases)
    for (std::int64_t shift : {0, 1}) {
      compare_update<float>(on_host, on_device, c, shift);
      compare_update<bf16>(on_host, on_device, c, shift);
      compare_update<std::int64_t>(on_host, on_device, c, shift);
      if (!c.skip)
        for (const bool stochastic : {false, true}) compare_states_in_bf16(on_host, on_device, c, shift, stochastic);
    }
  EXPECT_THROW(on_device({}, {.grad_dtype = DType::u32, .n = 16}), Error);
}

}  // namespace tessera::kernels::testing
