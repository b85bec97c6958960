#include "activation_cases.hpp"
#include "base/check.hpp"
#include "device_array.hpp"

namespace tessera::kernels::testing::activation_cuda_test {
namespace {

class ActivationCuda : public OnDevice {};

using Case = ActivationCase;

enum class Place { apart, in_x, in_d_out };

/// With values of any size among them.
template <class T>
struct Trial : ActivationInputs<T> {
  using Inputs = ActivationInputs<T>;
  using Inputs::c, Inputs::x, Inputs::d_out, Inputs::alphas, Inputs::d_alphas;
  Trial(const Case& c, PlainActivation activation) : Inputs(c, activation) {
    const float extremes[] = {0.0f, -0.0f, 88.0f, -88.0f, 200.0f, -200.0f, 30.0f, -30.0f, -1e-7f, -1e-3f};
    for (std::size_t i = 0; i < std::size(extremes) && i < x.size(); ++i) x[i] = T(extremes[i]);
  }
  std::vector<T> host_forward() {
    auto out = poisoned<T>(c.M * c.F);
    ActivationForward p = this->forward_arguments();
    p.out = out.data();
    host::activation_forward({}, p);
    return out;
  }
  std::vector<T> forward(bool in_place = false, std::int64_t shift = 0) {
    DeviceArray<T> out(c.M * c.F, shift), dx(x, shift), a(alphas, shift);
    ActivationForward p = this->forward_arguments();
    DeviceArray<T>& to = in_place ? dx : out;
    p.out = to.data(), p.x = dx.data(), p.alphas = this->xielu() ? a.data() : nullptr;
    cuda::activation_forward({}, p);
    return to.host();
  }
  struct Backward {
    std::vector<T> d_x;
    std::vector<float> d_alphas;
    std::vector<T> out;  ///< forward's again
    std::string hash() const { return digest(d_x, d_alphas).hex(); }
  };
  Backward host_backward() {
    Backward b{poisoned<T>(c.M * c.F), d_alphas, {}};
    ActivationBackward p = this->backward_arguments();
    p.d_x = b.d_x.data(), p.d_alphas = this->xielu() ? b.d_alphas.data() : nullptr;
    Workspace workspace(host::activation_backward_workspace_bytes(p));
    host::activation_backward(workspace.context(), p);
    return b;
  }
  /// With forward's output once more, in the place of d_out where the gradient is not there.
  Backward backward(Place place = Place::apart, bool again = true, std::int64_t shift = 0) {
    DeviceArray<T> d_x(c.M * c.F, shift), dx(x, shift), dy(d_out, shift), out(c.M * c.F, shift), a(alphas);
    DeviceArray<float> da(d_alphas);
    ActivationBackward p = this->backward_arguments();
    DeviceArray<T>&to = place == Place::in_x ? dx : place == Place::in_d_out ? dy : d_x, &to_out = place == Place::in_d_out ? out : dy;
    p.d_x = to.data(), p.d_out = dy.data(), p.x = dx.data(), p.out = again ? to_out.data() : nullptr;
    p.alphas = this->xielu() ? a.data() : nullptr, p.d_alphas = this->xielu() ? da.data() : nullptr;
    DeviceBytes workspace(cuda::activation_backward_workspace_bytes(p));
    cuda::activation_backward(workspace.context(), p);
    return {to.host(), da.host(), to_out.host()};
  }
};

/// Calls check with every activation and some cases.
template <class Check>
void over_cases(Check&& check) {
  DeviceSample sample;
  for (const PlainActivation activation : plain_activations)
    for (const Case& c : sample.some(activation_cases, activation == PlainActivation::xielu ? 6 : 3)) {
      SCOPED_TRACE(::testing::Message() << c << ", " << name_of_plain(activation));
      check(c, activation);
    }
}

template <class T>
void expect_close(double tolerance) {
  over_cases([&](const Case& c, PlainActivation activation) {
    Trial<T> t(c, activation);
    EXPECT_LT(norm_error(t.forward(), t.host_forward()), tolerance);
    const auto b = t.backward(Place::apart, false), expected = t.host_backward();
    EXPECT_LT(norm_error(b.d_x, expected.d_x), tolerance);
    EXPECT_LT(norm_error(b.d_alphas, expected.d_alphas), 2e-6);
  });
}
// fp32 runs the host's very operations; sums are taken in another order.
TEST_F(ActivationCuda, HasTheBitsOfTheHostInFp32) {
  over_cases([](const Case& c, PlainActivation activation) {
    Trial<float> t(c, activation);
    EXPECT_EQ(digest(t.forward()).hex(), digest(t.host_forward()).hex());
    const auto b = t.backward(Place::apart, false), expected = t.host_backward();
    EXPECT_EQ(digest(b.d_x).hex(), digest(expected.d_x).hex());
    EXPECT_LT(norm_error(b.d_alphas, expected.d_alphas), 2e-6);
  });
}
TEST_F(ActivationCuda, MatchesTheHostInBf16) { expect_close<bf16>(1e-3); }
TEST_F(ActivationCuda, MatchesTheHostInFp16) { expect_close<f16>(1e-4); }

template <class T>
void same_bits(const Case& c, PlainActivation activation) {
  Trial<T> t(c, activation);
  const std::string out = digest(t.forward()).hex(), expected = t.backward(Place::apart, false).hash();
  EXPECT_EQ(digest(t.forward(true)).hex(), out);
  EXPECT_EQ(digest(t.forward(false, 1)).hex(), out);
  for (const auto& [place, shift] : {std::pair(Place::apart, 0), {Place::apart, 1}, {Place::in_x, 0}, {Place::in_d_out, 0}}) {
    const auto b = t.backward(place, true, shift);
    EXPECT_EQ(b.hash(), expected);
    EXPECT_EQ(digest(b.out).hex(), out) << "forward's output again";
  }
}
TEST_F(ActivationCuda, SameBitsWhereverOperandsLie) {
  for (const PlainActivation activation : plain_activations) {
    SCOPED_TRACE(name_of_plain(activation));
    same_bits<bf16>({7, 520}, activation), same_bits<float>({7, 77}, activation);
    if (!watches_races()) same_bits<f16>({9, 2048}, activation), same_bits<float>({9, 2048}, activation);
  }
}
TEST_F(ActivationCuda, SameBitsTwice) {
  Trial<bf16> t({65, 2056}, PlainActivation::xielu);
  expect_same_bits_on_device([&] { return hash_text(digest(t.forward()).hex() + t.backward().hash()); });
}

TEST_F(ActivationCuda, RefusesAShortWorkspace) {
  Trial<float> t({7, 77}, PlainActivation::xielu);
  ActivationBackward p = t.backward_arguments();
  p.d_alphas = t.d_alphas.data();
  EXPECT_THROW(cuda::activation_backward({}, p), Error);
}

}  // namespace
}  // namespace tessera::kernels::testing::activation_cuda_test
