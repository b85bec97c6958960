#include "base/check.hpp"
#include "device_array.hpp"
#include "wide_qk_norm_cases.hpp"

namespace tessera::kernels::testing::wide_qk_norm_cuda_test {
namespace {

class WideQkNormCuda : public OnDevice {};

using Case = WideQkCase;

/// What is made of the last part, beside sums of all.
template <class T>
struct Result {
  std::vector<float> sums = {}, dots = {}, d_q_norm = {}, d_k_norm = {};
  std::vector<T> out = {}, d = {};
  std::string hash() const { return digest(sums, dots, d_q_norm, d_k_norm, out, d).hex(); }
};

template <class T>
Result<T> on_host(const Case& c) {
  auto parts = wide_qk_inputs<T>(c);
  Result<T> r;
  r.dots = r.sums = poisoned<float>(c.parts * c.M * 2);
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const std::int64_t at = static_cast<std::int64_t>(p) * c.M * 2;
    host::wide_qk_sums({}, {.sums = r.sums.data() + at, .x = parts[p].x.data(), .shape = parts[p].shape()});
    host::wide_qk_dots({}, {.dots = r.dots.data() + at,
                            .d = parts[p].d.data(),
                            .x = parts[p].x.data(),
                            .q_norm = parts[p].q_norm.data(),
                            .k_norm = parts[p].k_norm.data(),
                            .shape = parts[p].shape()});
  }
  auto& part = parts.back();
  r.out = poisoned<T>(c.M * c.stride()), r.d = part.d, r.d_q_norm = part.d_q_norm, r.d_k_norm = part.d_k_norm;
  host::wide_qk_norm({}, {.out = r.out.data(),
                          .x = part.x.data(),
                          .sums = r.sums.data(),
                          .q_norm = part.q_norm.data(),
                          .k_norm = part.k_norm.data(),
                          .shape = part.shape()});
  const WideQkNormBackward b{.d = r.d.data(),
                             .d_q_norm = r.d_q_norm.data(),
                             .d_k_norm = r.d_k_norm.data(),
                             .x = part.x.data(),
                             .sums = r.sums.data(),
                             .dots = r.dots.data(),
                             .q_norm = part.q_norm.data(),
                             .k_norm = part.k_norm.data(),
                             .shape = part.shape()};
  Workspace workspace(host::wide_qk_norm_backward_workspace_bytes(b));
  host::wide_qk_norm_backward(workspace.context(), b);
  return r;
}

template <class T>
Result<T> on_device(const Case& c, std::int64_t shift = 0, bool in_place = false) {
  const auto parts = wide_qk_inputs<T>(c);
  const std::int64_t rows = c.M * 2;
  DeviceArray<float> sums(c.parts * rows), dots(c.parts * rows);
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const std::int64_t at = static_cast<std::int64_t>(p) * rows;
    DeviceArray<T> x(parts[p].x, shift), d(parts[p].d, shift), q(parts[p].q_norm, shift), k(parts[p].k_norm, shift);
    cuda::wide_qk_sums({}, {.sums = sums.data() + at, .x = x.data(), .shape = parts[p].shape()});
    cuda::wide_qk_dots(
        {}, {.dots = dots.data() + at, .d = d.data(), .x = x.data(), .q_norm = q.data(), .k_norm = k.data(), .shape = parts[p].shape()});
  }
  const auto& part = parts.back();
  DeviceArray<T> x(part.x, shift), d(part.d, shift), q(part.q_norm, shift), k(part.k_norm, shift), out(c.M * c.stride(), shift);
  DeviceArray<float> d_q(part.d_q_norm), d_k(part.d_k_norm);
  if (in_place) {
    DeviceArray<T> over(part.x, shift);
    cuda::wide_qk_norm(
        {}, {.out = over.data(), .x = over.data(), .sums = sums.data(), .q_norm = q.data(), .k_norm = k.data(), .shape = part.shape()});
    Result<T> r;
    r.out = over.host();
    return r;
  }
  cuda::wide_qk_norm(
      {}, {.out = out.data(), .x = x.data(), .sums = sums.data(), .q_norm = q.data(), .k_norm = k.data(), .shape = part.shape()});
  const WideQkNormBackward b{.d = d.data(),
                             .d_q_norm = d_q.data(),
                             .d_k_norm = d_k.data(),
                             .x = x.data(),
                             .sums = sums.data(),
                             .dots = dots.data(),
                             .q_norm = q.data(),
                             .k_norm = k.data(),
                             .shape = part.shape()};
  DeviceBytes workspace(cuda::wide_qk_norm_backward_workspace_bytes(b));
  cuda::wide_qk_norm_backward(workspace.context(), b);
  return {.sums = sums.host(), .dots = dots.host(), .d_q_norm = d_q.host(), .d_k_norm = d_k.host(), .out = out.host(), .d = d.host()};
}

template <class T>
void compare_with_host() {
  for (const Case& c : DeviceSample().some(wide_qk_cases, 4)) {
    SCOPED_TRACE(::testing::Message() << c);
    const Result<T> got = on_device<T>(c), wanted = on_host<T>(c);
    const double allowed = sizeof(T) == 4 ? 2e-6 : 4e-3;
    EXPECT_LT(norm_error(got.sums, wanted.sums), 2e-6);
    EXPECT_LT(norm_error(got.dots, wanted.dots), 2e-5);
    EXPECT_LT(norm_error(got.out, wanted.out), allowed);
    EXPECT_LT(norm_error(got.d, wanted.d), 10 * allowed);
    EXPECT_LT(norm_error(got.d_q_norm, wanted.d_q_norm), 4e-6);
    EXPECT_LT(norm_error(got.d_k_norm, wanted.d_k_norm), 4e-6);
    EXPECT_EQ(digest(on_device<T>(c, 0, true).out).hex(), digest(got.out).hex()) << "in place";
  }
}
TEST_F(WideQkNormCuda, MatchesTheHostInFp32) { compare_with_host<float>(); }
TEST_F(WideQkNormCuda, MatchesTheHostInBf16) { compare_with_host<bf16>(); }
TEST_F(WideQkNormCuda, MatchesTheHostInFp16) { compare_with_host<f16>(); }

TEST_F(WideQkNormCuda, SameBitsWhereverOperandsLie) {
  const Case c{33, 256, 64, 64, 2};
  EXPECT_EQ(on_device<float>(c, 1).hash(), on_device<float>(c).hash());
  if (!watches_races()) {
    EXPECT_EQ(on_device<bf16>(c, 1).hash(), on_device<bf16>(c).hash());
  }
  expect_same_bits_on_device([&] {
    const auto r = on_device<float>(c);
    return digest(r.sums, r.dots, r.d_q_norm, r.d_k_norm, r.out, r.d);
  });
}

TEST_F(WideQkNormCuda, RefusesAShortWorkspace) {
  WideQkNormBackward b;
  b.shape = {.M = 77, .Q = 48, .K = 48, .stride = 96};
  EXPECT_THROW(cuda::wide_qk_norm_backward({}, b), Error);
}

}  // namespace
}  // namespace tessera::kernels::testing::wide_qk_norm_cuda_test
