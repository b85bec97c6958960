#include "base/check.hpp"
#include "device_array.hpp"
#include "rmsnorm_cases.hpp"

namespace tessera::kernels::testing::rmsnorm_cuda_test {
namespace {

class RmsnormCuda : public OnDevice {};

using Case = RmsnormCase;

enum class Place { apart, in_residual, in_d_out };

template <class T>
struct Trial : RmsnormInputs<T> {
  using Inputs = RmsnormInputs<T>;
  using Inputs::c, Inputs::x, Inputs::weight, Inputs::d_out, Inputs::residual, Inputs::d_weight, Inputs::backward_arguments;
  using Inputs::Inputs;
  float offset = 0;
  bool joined = false;  ///< forward, by the residual

  struct Forward {
    std::vector<T> out;
    std::vector<float> rstd;
  };
  Forward forward(bool on_host, std::int64_t shift = 0, bool in_residual = false) {
    Forward f{poisoned<T>(c.elements()), poisoned<float>(c.rows)};
    DeviceArray<T> out(c.elements(), shift), dx(x, shift), w(weight, shift), r(residual, shift);
    DeviceArray<float> rstd(c.rows);
    RmsnormForward p = this->forward_arguments();
    p.out = f.out.data(), p.rstd = f.rstd.data(), p.offset = offset, p.residual = joined ? residual.data() : nullptr;
    if (on_host) {
      host::rmsnorm_forward({}, p);
      return f;
    }
    DeviceArray<T>& to = in_residual ? r : out;
    p.out = to.data(), p.rstd = rstd.data(), p.x = dx.data(), p.weight = w.data(), p.residual = joined ? r.data() : nullptr;
    cuda::rmsnorm_forward({}, p);
    return {to.host(), rstd.host()};
  }

  struct Backward {
    std::vector<T> d_x;
    std::vector<float> d_weight;
    std::string hash() const { return digest(d_x, d_weight).hex(); }
  };
  Backward host_backward(bool with_residual) {
    Backward b{poisoned<T>(c.elements()), d_weight};
    const auto rstd = forward(true).rstd;
    RmsnormBackward p = backward_arguments(rstd);
    p.d_x = b.d_x.data(), p.d_weight = b.d_weight.data(), p.offset = offset;
    if (!with_residual) p.d_residual = nullptr;
    Workspace workspace(host::rmsnorm_backward_workspace_bytes(p));
    host::rmsnorm_backward(workspace.context(), p);
    return b;
  }
  Backward backward(bool with_residual, Place place = Place::apart, std::int64_t shift = 0) {
    const auto host_rstd = forward(true).rstd;
    RmsnormBackward p = backward_arguments(host_rstd);
    DeviceArray<T> d_x(c.elements(), shift), dy(d_out, shift), r(residual, shift), dx(x, shift), w(weight, shift);
    DeviceArray<float> rstd(host_rstd), dw(d_weight);
    DeviceArray<T>& to = place == Place::in_residual ? r : place == Place::in_d_out ? dy : d_x;
    p.d_x = to.data(), p.d_weight = dw.data(), p.d_out = dy.data(), p.x = dx.data(), p.weight = w.data(), p.rstd = rstd.data();
    p.d_residual = with_residual ? r.data() : nullptr, p.offset = offset;
    DeviceBytes workspace(cuda::rmsnorm_backward_workspace_bytes(p));
    cuda::rmsnorm_backward(workspace.context(), p);
    return {to.host(), dw.host()};
  }
};

template <class T>
void compare_with_host() {
  for (const Case& c : DeviceSample().some(rmsnorm_cases, 5)) {
    SCOPED_TRACE(::testing::Message() << c);
    Trial<T> t(c);
    const auto out = t.forward(false), expected = t.forward(true);
    EXPECT_LT(norm_error(out.out, expected.out), sizeof(T) == 4 ? 1e-6 : 2e-3);
    EXPECT_LT(norm_error(out.rstd, expected.rstd), 1e-6);
    for (bool residual : {false, true}) {
      const auto b = t.backward(residual), wanted = t.host_backward(residual);
      // With C = 1 all of d_x cancels: what is left is compared with what cancelled.
      const double allowed = c.C == 1 ? 1 : sizeof(T) == 4 ? 1e-6 : 2e-3;
      EXPECT_LT(norm_error(b.d_x, wanted.d_x), allowed);
      EXPECT_LT(norm_error(b.d_weight, wanted.d_weight), 2e-6);
    }
  }
}
TEST_F(RmsnormCuda, MatchesTheHostInFp32) { compare_with_host<float>(); }
TEST_F(RmsnormCuda, MatchesTheHostInBf16) { compare_with_host<bf16>(); }
TEST_F(RmsnormCuda, MatchesTheHostInFp16) { compare_with_host<f16>(); }

// Scaled by 1.5 + weight, joined by a residual, or both.
template <class T>
void compare_offset_and_residual(const Case& c) {
  SCOPED_TRACE(::testing::Message() << c);
  Trial<T> t(c);
  for (const auto& [offset, joined] : {std::pair(1.5f, false), std::pair(0.0f, true), std::pair(1.5f, true)}) {
    t.offset = offset, t.joined = joined;
    const auto out = t.forward(false);
    EXPECT_LT(norm_error(out.out, t.forward(true).out), sizeof(T) == 4 ? 1e-6 : 2e-3);
    EXPECT_EQ(digest(t.forward(false, 1).out), digest(out.out));
    if (joined) {
      EXPECT_EQ(digest(t.forward(false, 0, true).out), digest(out.out));
    }
  }
  const auto b = t.backward(true), wanted = t.host_backward(true);
  EXPECT_LT(norm_error(b.d_x, wanted.d_x), sizeof(T) == 4 ? 1e-6 : 2e-3);
  EXPECT_LT(norm_error(b.d_weight, wanted.d_weight), 2e-6);
  EXPECT_EQ(t.backward(true, Place::in_d_out, 1).hash(), b.hash());
}
TEST_F(RmsnormCuda, TakesAnOffsetAndAResidual) {
  for (const Case& c : {Case{77, 48}, Case{9, 1013}, Case{9, 4096}, Case{2, 16448}}) {
    if (watches_races() && c.rows % 2 == 0) continue;
    compare_offset_and_residual<bf16>(c);
    if (!watches_races() && c.C < 4096) compare_offset_and_residual<float>(c), compare_offset_and_residual<f16>(c);
  }
}

// Sums are taken in an order that depends on shapes alone: not on where operands lie, on which memory is shared, or on timing.
template <class T>
void same_bits(const Case& c) {
  SCOPED_TRACE(::testing::Message() << c);
  Trial<T> t(c);
  EXPECT_EQ(digest(t.forward(false).out), digest(t.forward(false, 1).out));
  const std::string expected = t.backward(true).hash();
  EXPECT_EQ(t.backward(true, Place::apart, 1).hash(), expected);
  EXPECT_EQ(t.backward(true, Place::in_residual).hash(), expected);
  EXPECT_EQ(t.backward(true, Place::in_d_out).hash(), expected);
  expect_same_bits_on_device([&] {
    const auto f = t.forward(false);
    const auto b = t.backward(true);
    return digest(f.out, f.rstd, b.d_x, b.d_weight);
  });
}
TEST_F(RmsnormCuda, SameBitsWhereverOperandsLie) {
  for (const Case& c : {Case{77, 128}, Case{33, 1024}, Case{9, 4096}, Case{2, 16448}}) {
    if (watches_races() && c.rows % 2 == 0) continue;
    same_bits<float>(c);
    if (!watches_races()) same_bits<bf16>(c);
  }
}

TEST_F(RmsnormCuda, RefusesAShortWorkspace) { EXPECT_THROW(cuda::rmsnorm_backward({}, {.rows = 77, .C = 48}), Error); }

}  // namespace
}  // namespace tessera::kernels::testing::rmsnorm_cuda_test
