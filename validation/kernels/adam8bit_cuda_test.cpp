#include "adam8bit_cases.hpp"
#include "device_array.hpp"

namespace tessera::kernels::testing::adam8bit_cuda_test {
namespace {

class Adam8bitCuda : public OnDevice {};

/// Whole blocks on sixteen bytes, and tensors that end inside one, with operands that begin anywhere.
TEST_F(Adam8bitCuda, HasTheBitsOfTheHost) {
  for (const std::int64_t n : block_counts)
    for (const bool copy : {true, false})
      for (const std::int64_t shift : {0, 1}) {
        SCOPED_TRACE(::testing::Message() << n << " parameters, copy " << copy << ", shift " << shift);
        BlockState expected(n), result(n);
        DeviceArray<float> master(expected.master, shift);
        DeviceArray<std::uint8_t> first(expected.first), second(expected.second);
        DeviceArray<bf16> param(expected.param, shift);
        for (int t = 1; t <= 3; ++t) {
          const auto grad = update_gradients<std::int64_t>(n, 10 + static_cast<unsigned>(t));
          UpdateScalars s = scalars_of_step(t, 3e-3f, 0.7f);
          s.skip = t == 2;
          Update p = expected.call(copy);
          p.grad = grad.data(), p.grad_dtype = DType::i64, p.n = n, p.weight_decay = 0.1f, p.scalars = &s;
          host::adam8bit({}, p);
          DeviceArray<std::int64_t> device_grad(grad, shift);
          DeviceArray<UpdateScalars> scalars(std::vector<UpdateScalars>{s});
          p.master = master.data(), p.state[0] = first.data(), p.state[1] = second.data(), p.param = copy ? param.data() : nullptr;
          p.grad = device_grad.data(), p.scalars = scalars.data();
          cuda::adam8bit({}, p);
        }
        result.master = master.host(), result.first = first.host(), result.second = second.host(), result.param = param.host();
        EXPECT_EQ(result.hash().hex(), expected.hash().hex());
      }
}

}  // namespace
}  // namespace tessera::kernels::testing::adam8bit_cuda_test
