#include "device_array.hpp"
#include "swiglu_cases.hpp"

namespace tessera::kernels::testing::swiglu_cuda_test {
namespace {

class SwigluCuda : public OnDevice {};

/// With gates of any size among them, and values on the bounds of clamped_silu.
template <class T>
struct Trial : SwigluInputs<T> {
  using SwigluInputs<T>::gate_up, SwigluInputs<T>::d_out;
  std::int64_t M, F;
  GateActivation activation;
  explicit Trial(const SwigluCase& c, GateActivation activation = GateActivation::silu)
      : SwigluInputs<T>(c), M(c.M), F(c.F), activation(activation) {
    const float extremes[] = {0.0f, -0.0f, 88.0f, -88.0f, 200.0f, -200.0f, 30.0f, -30.0f, 1e4f, -1e4f, gate_limit};
    for (std::size_t i = 0; i < std::size(extremes) && static_cast<std::int64_t>(i) < F; ++i) {
      T& up = gate_up[i + static_cast<std::size_t>(F)];
      gate_up[i] = T(extremes[i]), up = T(std::clamp(static_cast<float>(up), -6.0f, 6.0f));  // whose product fp16 holds
    }
    gate_up[F] = T(gate_limit), gate_up[2 * F - 1] = T(-gate_limit);
  }
  SwigluForward forward_arguments(T* out, const T* x) const {
    return {.out = out, .gate_up = x, .M = M, .F = F, .dtype = dtype_of<T>(), .activation = activation, .limit = gate_limit};
  }
  SwigluBackward backward_arguments(T* d, const T* dy, const T* x, T* out = nullptr) const {
    return {.d_gate_up = d,
            .d_out = dy,
            .gate_up = x,
            .M = M,
            .F = F,
            .dtype = dtype_of<T>(),
            .activation = activation,
            .limit = gate_limit,
            .out = out};
  }
  std::vector<T> host_forward() {
    auto out = poisoned<T>(M * F);
    host::swiglu_forward({}, forward_arguments(out.data(), gate_up.data()));
    return out;
  }
  std::vector<T> host_backward() {
    auto d = poisoned<T>(2 * M * F);
    host::swiglu_backward({}, backward_arguments(d.data(), d_out.data(), gate_up.data()));
    return d;
  }
  std::vector<T> forward() {
    DeviceArray<T> out(M * F), x(gate_up);
    cuda::swiglu_forward({}, forward_arguments(out.data(), x.data()));
    return out.host();
  }
  /// The output that backward makes again, in the place of d_out.
  std::vector<T> again() {
    DeviceArray<T> d(2 * M * F), x(gate_up), dy(d_out);
    cuda::swiglu_backward({}, backward_arguments(d.data(), dy.data(), x.data(), dy.data()));
    EXPECT_EQ(digest(d.host()).hex(), digest(backward(false)).hex());
    return dy.host();
  }
  std::vector<T> backward(bool in_place) {
    DeviceArray<T> d(2 * M * F), x(gate_up), dy(d_out);
    cuda::swiglu_backward({}, backward_arguments(in_place ? x.data() : d.data(), dy.data(), x.data()));
    return in_place ? x.host() : d.host();
  }
};

/// Calls check with every activation: all cases of one, of others some.
template <class Check>
void over_cases(Check&& check) {
  const std::vector<SwigluCase> all(std::begin(swiglu_cases), std::end(swiglu_cases)), some = {{1, 48}, {3, 1013}, {77, 64}};
  for (const GateActivation activation : gate_activations)
    for (const SwigluCase& c : activation == GateActivation::silu ? all : some) {
      SCOPED_TRACE(::testing::Message() << c << ", " << name_of_gate(activation));
      check(c, activation);
    }
}

// fp32 runs the host's very operations.
TEST_F(SwigluCuda, HasTheBitsOfTheHostInFp32) {
  over_cases([](const SwigluCase& c, GateActivation activation) {
    Trial<float> t(c, activation);
    EXPECT_EQ(digest(t.forward()).hex(), digest(t.host_forward()).hex());
    EXPECT_EQ(digest(t.backward(false)).hex(), digest(t.host_backward()).hex());
  });
}

template <class T>
void expect_close(double tolerance) {
  over_cases([&](const SwigluCase& c, GateActivation activation) {
    Trial<T> t(c, activation);
    EXPECT_LT(norm_error(t.forward(), t.host_forward()), tolerance);
    EXPECT_LT(norm_error(t.backward(false), t.host_backward()), tolerance);
  });
}
TEST_F(SwigluCuda, MatchesTheHostInBf16) { expect_close<bf16>(1e-3); }
TEST_F(SwigluCuda, MatchesTheHostInFp16) { expect_close<f16>(1e-4); }

TEST_F(SwigluCuda, BackwardMakesForwardsOutputAgain) {
  over_cases([](const SwigluCase& c, GateActivation activation) {
    Trial<float> whole(c, activation);
    Trial<bf16> half(c, activation);
    EXPECT_EQ(digest(whole.again()).hex(), digest(whole.forward()).hex());
    EXPECT_EQ(digest(half.again()).hex(), digest(half.forward()).hex());
  });
}

TEST_F(SwigluCuda, SameBitsTwiceAndInPlace) {
  for (const GateActivation activation : gate_activations) {
    expect_same_bits_on_device([=] {
      return digest(Trial<bf16>({7, 520}, activation).forward(), Trial<float>({7, 77}, activation).backward(false));
    });
    Trial<bf16> half({7, 77}, activation);
    EXPECT_EQ(digest(half.backward(true)), digest(half.backward(false)));
    Trial<float> whole({7, 128}, activation);
    EXPECT_EQ(digest(whole.backward(true)), digest(whole.backward(false)));
  }
}

}  // namespace
}  // namespace tessera::kernels::testing::swiglu_cuda_test
