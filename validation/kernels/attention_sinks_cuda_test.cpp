#include "attention_sinks_cases.hpp"
#include "base/check.hpp"
#include "device_array.hpp"

namespace tessera::kernels::testing::attention_sinks_cuda_test {
namespace {

class AttentionSinksCuda : public OnDevice {};

using Case = SinksCase;

template <class T>
struct Trial : SinksInputs<T> {
  using Inputs = SinksInputs<T>;
  using Inputs::c, Inputs::out, Inputs::lse, Inputs::d_sinks, Inputs::sinks, Inputs::d_out;
  using Inputs::Inputs;

  struct Forward {
    std::vector<T> out;
    std::vector<float> lse;
    std::string hash() const { return digest(out, lse).hex(); }
  };
  Forward host_forward() const {
    Forward f{out, lse};
    AttentionSinksForward p = this->forward_arguments();
    p.out = f.out.data(), p.lse = f.lse.data();
    host::attention_sinks_forward({}, p);
    return f;
  }
  Forward forward(std::int64_t shift = 0) const {
    DeviceArray<T> there(out, shift), z(sinks, shift);
    DeviceArray<float> l(lse, shift);
    AttentionSinksForward p = this->forward_arguments();
    p.out = there.data(), p.lse = l.data(), p.sinks = z.data();
    cuda::attention_sinks_forward({}, p);
    return {there.host(), l.host()};
  }
  /// Of what the host's forward pass gives.
  std::vector<float> host_backward() const {
    const Forward f = host_forward();
    std::vector<float> sums = d_sinks;
    AttentionSinksBackward p = this->backward_arguments();
    p.d_sinks = sums.data(), p.out = f.out.data(), p.lse = f.lse.data();
    Workspace workspace(host::attention_sinks_backward_workspace_bytes(p));
    host::attention_sinks_backward(workspace.context(), p);
    return sums;
  }
  std::vector<float> backward(std::int64_t shift = 0) const {
    const Forward f = host_forward();
    DeviceArray<T> there(f.out, shift), dy(d_out, shift), z(sinks, shift);
    DeviceArray<float> l(f.lse, shift), sums(d_sinks);
    AttentionSinksBackward p = this->backward_arguments();
    p.d_sinks = sums.data(), p.out = there.data(), p.d_out = dy.data(), p.lse = l.data(), p.sinks = z.data();
    DeviceBytes workspace(cuda::attention_sinks_backward_workspace_bytes(p));
    cuda::attention_sinks_backward(workspace.context(), p);
    return sums.host();
  }
};

template <class T>
void compare_with_host() {
  for (const Case& c : DeviceSample().some(sinks_cases, 6)) {
    SCOPED_TRACE(::testing::Message() << c);
    const Trial<T> t(c);
    EXPECT_EQ(t.forward().hash(), t.host_forward().hash());
    const std::vector<float> sums = t.backward(), wanted = t.host_backward();
    EXPECT_LT(norm_error(sums, wanted), 1e-5);
  }
}
TEST_F(AttentionSinksCuda, MatchTheHostInFp32) { compare_with_host<float>(); }
TEST_F(AttentionSinksCuda, MatchTheHostInBf16) { compare_with_host<bf16>(); }
TEST_F(AttentionSinksCuda, MatchTheHostInFp16) { compare_with_host<f16>(); }

// Keys that count for nothing, and sinks that do, or that count for all.
TEST_F(AttentionSinksCuda, OfExtremesAreTheHosts) {
  constexpr float inf = std::numeric_limits<float>::infinity(), lses[] = {-inf, -1e4f, 0, 1e4f, 80};
  Trial<float> t({1, 5, 5, 20});
  t.sinks = {-inf, -3.4e38f, 0.5f, 100, 3.4e38f};
  for (std::size_t i = 0; i < t.lse.size(); ++i) t.lse[i] = lses[i % 5];
  for (std::size_t i = 0; i < 5 * 20; ++i) t.out[i] = std::nanf("");  // of the first token, whose lse is -infinity
  EXPECT_EQ(t.forward().hash(), t.host_forward().hash());
  EXPECT_LT(norm_error(t.backward(), t.host_backward()), 1e-5);
}

// Sums are taken in an order that depends on shapes alone: not on where operands lie, or on timing.
template <class T>
void same_bits(const Case& c) {
  SCOPED_TRACE(::testing::Message() << c);
  const Trial<T> t(c);
  EXPECT_EQ(t.forward(1).hash(), t.forward().hash());
  EXPECT_EQ(digest(t.backward(1)), digest(t.backward()));
  expect_same_bits_on_device([&] {
    const auto f = t.forward();
    return digest(f.out, f.lse, t.backward());
  });
}
TEST_F(AttentionSinksCuda, SameBitsWhereverOperandsLie) {
  same_bits<bf16>({2, 70, 20, 64});
  if (watches_races()) return;
  same_bits<float>({1, 150, 3, 128}), same_bits<float>({1, 9, 2, 520}), same_bits<f16>({1, 20, 70, 32});
}

TEST_F(AttentionSinksCuda, RefuseAShortWorkspace) {
  EXPECT_THROW(cuda::attention_sinks_backward({}, {.B = 1, .T = 77, .H = 7, .D = 64}), Error);
}

}  // namespace
}  // namespace tessera::kernels::testing::attention_sinks_cuda_test
