#include "device_array.hpp"
#include "swiglu_cases.hpp"

namespace tessera::kernels::testing::swiglu_cuda_test {
namespace {

class SwigluCuda : public OnDevice {};

/// With gates of any size among them.
template <class T>
struct Trial : SwigluInputs<T> {
  using SwigluInputs<T>::gate_up, SwigluInputs<T>::d_out;
  std::int64_t M, F;
  explicit Trial(const SwigluCase& c) : SwigluInputs<T>(c), M(c.M), F(c.F) {
    const float extremes[] = {0.0f, -0.0f, 88.0f, -88.0f, 200.0f, -200.0f, 30.0f, -30.0f};
    for (std::size_t i = 0; i < std::size(extremes) && static_cast<std::int64_t>(i) < F; ++i) gate_up[i] = T(extremes[i]);
  }
  std::vector<T> host_forward() {
    auto out = poisoned<T>(M * F);
    host::swiglu_forward({}, {.out = out.data(), .gate_up = gate_up.data(), .M = M, .F = F, .dtype = dtype_of<T>()});
    return out;
  }
  std::vector<T> host_backward() {
    auto d = poisoned<T>(2 * M * F);
    host::swiglu_backward(
        {}, {.d_gate_up = d.data(), .d_out = d_out.data(), .gate_up = gate_up.data(), .M = M, .F = F, .dtype = dtype_of<T>()});
    return d;
  }
  std::vector<T> forward() {
    DeviceArray<T> out(M * F), x(gate_up);
    cuda::swiglu_forward({}, {.out = out.data(), .gate_up = x.data(), .M = M, .F = F, .dtype = dtype_of<T>()});
    return out.host();
  }
  /// The output that backward makes again, in the place of d_out.
  std::vector<T> again() {
    DeviceArray<T> d(2 * M * F), x(gate_up), dy(d_out);
    cuda::swiglu_backward(
        {}, {.d_gate_up = d.data(), .d_out = dy.data(), .gate_up = x.data(), .M = M, .F = F, .dtype = dtype_of<T>(), .out = dy.data()});
    EXPECT_EQ(digest(d.host()).hex(), digest(backward(false)).hex());
    return dy.host();
  }
  std::vector<T> backward(bool in_place) {
    DeviceArray<T> d(2 * M * F), x(gate_up), dy(d_out);
    T* to = in_place ? x.data() : d.data();
    cuda::swiglu_backward({}, {.d_gate_up = to, .d_out = dy.data(), .gate_up = x.data(), .M = M, .F = F, .dtype = dtype_of<T>()});
    return in_place ? x.host() : d.host();
  }
};

// fp32 runs the host's very operations.
TEST_F(SwigluCuda, HasTheBitsOfTheHostInFp32) {
  for (const SwigluCase& c : swiglu_cases) {
    Trial<float> t(c);
    EXPECT_EQ(digest(t.forward()).hex(), digest(t.host_forward()).hex()) << c;
    EXPECT_EQ(digest(t.backward(false)).hex(), digest(t.host_backward()).hex()) << c;
  }
}

TEST_F(SwigluCuda, MatchesTheHostInBf16) {
  for (const SwigluCase& c : swiglu_cases) {
    Trial<bf16> t(c);
    EXPECT_LT(norm_error(t.forward(), t.host_forward()), 1e-3) << c;
    EXPECT_LT(norm_error(t.backward(false), t.host_backward()), 1e-3) << c;
  }
}

TEST_F(SwigluCuda, MatchesTheHostInFp16) {
  for (const SwigluCase& c : swiglu_cases) {
    Trial<f16> t(c);
    EXPECT_LT(norm_error(t.forward(), t.host_forward()), 1e-4) << c;
    EXPECT_LT(norm_error(t.backward(false), t.host_backward()), 1e-4) << c;
  }
}

TEST_F(SwigluCuda, BackwardMakesForwardsOutputAgain) {
  for (const SwigluCase& c : swiglu_cases) {
    Trial<float> whole(c);
    Trial<bf16> half(c);
    EXPECT_EQ(digest(whole.again()).hex(), digest(whole.forward()).hex()) << c;
    EXPECT_EQ(digest(half.again()).hex(), digest(half.forward()).hex()) << c;
  }
}

TEST_F(SwigluCuda, SameBitsTwiceAndInPlace) {
  expect_same_bits_on_device([] { return digest(Trial<bf16>({7, 520}).forward(), Trial<float>({7, 77}).backward(false)); });
  Trial<bf16> half({7, 77});
  EXPECT_EQ(digest(half.backward(true)), digest(half.backward(false)));
  Trial<float> whole({7, 128});
  EXPECT_EQ(digest(whole.backward(true)), digest(whole.backward(false)));
}

}  // namespace
}  // namespace tessera::kernels::testing::swiglu_cuda_test
