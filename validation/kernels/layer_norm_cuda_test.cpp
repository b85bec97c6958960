#include "base/check.hpp"
#include "device_array.hpp"
#include "layer_norm_cases.hpp"

namespace tessera::kernels::testing::layer_norm_cuda_test {
namespace {

class LayerNormCuda : public OnDevice {};

using Case = LayerNormCase;

enum class Place { apart, in_residual, in_d_out };

template <class T>
struct Trial : LayerNormInputs<T> {
  using Inputs = LayerNormInputs<T>;
  using Inputs::c, Inputs::x, Inputs::weight, Inputs::bias, Inputs::d_out, Inputs::residual, Inputs::d_weight, Inputs::d_bias;
  bool with_bias, joined;  ///< joined by the residual, in both passes
  explicit Trial(const Case& c, bool with_bias = true, bool joined = true) : Inputs(c), with_bias(with_bias), joined(joined) {}

  struct Forward {
    std::vector<T> out;
    std::vector<float> mean, rstd;
  };
  Forward host_forward() {
    Forward f{poisoned<T>(c.elements()), poisoned<float>(c.rows), poisoned<float>(c.rows)};
    LayerNormForward p = this->forward_arguments(with_bias, joined);
    p.out = f.out.data(), p.mean = f.mean.data(), p.rstd = f.rstd.data();
    host::layer_norm_forward({}, p);
    return f;
  }
  Forward forward(std::int64_t shift = 0, bool in_residual = false) {
    DeviceArray<T> out(c.elements(), shift), dx(x, shift), w(weight, shift), b(bias, shift), r(residual, shift);
    DeviceArray<float> mean(c.rows), rstd(c.rows);
    LayerNormForward p = this->forward_arguments(with_bias, joined);
    DeviceArray<T>& to = in_residual ? r : out;
    p.out = to.data(), p.mean = mean.data(), p.rstd = rstd.data(), p.x = dx.data(), p.weight = w.data();
    p.bias = with_bias ? b.data() : nullptr, p.residual = joined ? r.data() : nullptr;
    cuda::layer_norm_forward({}, p);
    return {to.host(), mean.host(), rstd.host()};
  }

  struct Backward {
    std::vector<T> d_x;
    std::vector<float> d_weight, d_bias;
    std::string hash() const { return digest(d_x, d_weight, d_bias).hex(); }
  };
  Backward host_backward() {
    const Forward f = host_forward();
    Backward b{poisoned<T>(c.elements()), d_weight, d_bias};
    LayerNormBackward p = this->backward_arguments(joined, f.mean, f.rstd);
    p.d_x = b.d_x.data(), p.d_weight = b.d_weight.data(), p.d_bias = with_bias ? b.d_bias.data() : nullptr;
    Workspace workspace(host::layer_norm_backward_workspace_bytes(p));
    host::layer_norm_backward(workspace.context(), p);
    return b;
  }
  Backward backward(Place place = Place::apart, std::int64_t shift = 0) {
    const Forward f = host_forward();
    LayerNormBackward p = this->backward_arguments(joined, f.mean, f.rstd);
    DeviceArray<T> d_x(c.elements(), shift), dy(d_out, shift), r(residual, shift), dx(x, shift), w(weight, shift);
    DeviceArray<float> mean(f.mean), rstd(f.rstd), dw(d_weight), db(d_bias);
    DeviceArray<T>& to = place == Place::in_residual ? r : place == Place::in_d_out ? dy : d_x;
    p.d_x = to.data(), p.d_weight = dw.data(), p.d_bias = with_bias ? db.data() : nullptr, p.d_out = dy.data(), p.x = dx.data();
    p.weight = w.data(), p.mean = mean.data(), p.rstd = rstd.data(), p.d_residual = joined ? r.data() : nullptr;
    DeviceBytes workspace(cuda::layer_norm_backward_workspace_bytes(p));
    cuda::layer_norm_backward(workspace.context(), p);
    return {to.host(), dw.host(), db.host()};
  }
};

template <class T>
void compare_with_host() {
  constexpr double tolerance = sizeof(T) == 4 ? 2e-6 : 2e-3;
  for (const Case& c : DeviceSample().some(layer_norm_cases, 5)) {
    for (const auto& [with_bias, joined] : {std::pair(true, true), {false, true}, {true, false}, {false, false}}) {
      if (with_bias != joined && (watches_races() || c.C >= 4096)) continue;
      SCOPED_TRACE(::testing::Message() << c << (with_bias ? ", with a bias" : "") << (joined ? ", joined by a residual" : ""));
      Trial<T> t(c, with_bias, joined);
      const auto out = t.forward(), expected = t.host_forward();
      EXPECT_LT(norm_error(out.out, expected.out), tolerance);
      EXPECT_LT(norm_error(out.mean, expected.mean), 1e-6);
      EXPECT_LT(norm_error(out.rstd, expected.rstd), 1e-6);
      const auto b = t.backward(), wanted = t.host_backward();
      // With C = 1 all of d_x but the residual cancels, and what cancels is 300 times as large.
      if (c.C > 1 || joined) {
        EXPECT_LT(norm_error(b.d_x, wanted.d_x), tolerance + (c.C == 1 ? 1e-4 : 0));
      }
      EXPECT_LT(norm_error(b.d_weight, wanted.d_weight), 2e-6);
      EXPECT_LT(norm_error(b.d_bias, wanted.d_bias), 2e-6);
    }
  }
}
TEST_F(LayerNormCuda, MatchesTheHostInFp32) { compare_with_host<float>(); }
TEST_F(LayerNormCuda, MatchesTheHostInBf16) { compare_with_host<bf16>(); }
TEST_F(LayerNormCuda, MatchesTheHostInFp16) { compare_with_host<f16>(); }

// Sums are taken in an order that depends on shapes alone: not on where operands lie, on which memory is shared, or on timing.
template <class T>
void same_bits(const Case& c) {
  SCOPED_TRACE(::testing::Message() << c);
  Trial<T> t(c);
  const auto out = t.forward();
  EXPECT_EQ(digest(t.forward(1).out), digest(out.out));
  EXPECT_EQ(digest(t.forward(0, true).out), digest(out.out));
  const std::string expected = t.backward().hash();
  EXPECT_EQ(t.backward(Place::apart, 1).hash(), expected);
  EXPECT_EQ(t.backward(Place::in_residual).hash(), expected);
  EXPECT_EQ(t.backward(Place::in_d_out).hash(), expected);
  expect_same_bits_on_device([&] {
    const auto f = t.forward();
    return hash_text(digest(f.out, f.mean, f.rstd).hex() + t.backward().hash());
  });
}
TEST_F(LayerNormCuda, SameBitsWhereverOperandsLie) {
  for (const Case& c : {Case{77, 128}, Case{33, 1024}, Case{9, 4096}, Case{2, 16448}}) {
    if (watches_races() && c.rows % 2 == 0) continue;
    same_bits<float>(c);
    if (!watches_races()) same_bits<bf16>(c);
  }
}

TEST_F(LayerNormCuda, RefusesAShortWorkspace) { EXPECT_THROW(cuda::layer_norm_backward({}, {.rows = 77, .C = 48}), Error); }

}  // namespace
}  // namespace tessera::kernels::testing::layer_norm_cuda_test
