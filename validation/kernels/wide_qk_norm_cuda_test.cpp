#include "base/check.hpp"
#include "device_array.hpp"
#include "wide_qk_norm_cases.hpp"

namespace tessera::kernels::testing::wide_qk_norm_cuda_test {
namespace {

class WideQkNormCuda : public OnDevice {};

using Case = WideQkCase;

/// One part's operands on the device.
template <class T>
struct OnDevicePart {
  DeviceArray<T> x, q_norm, k_norm, d, out;
  DeviceArray<float> d_q_norm, d_k_norm;
  OnDevicePart(const WideQkPart<T>& part, std::int64_t shift)
      : x(part.x, shift),
        q_norm(part.q_norm, shift),
        k_norm(part.k_norm, shift),
        d(part.d, shift),
        out(static_cast<std::int64_t>(part.x.size()), shift),
        d_q_norm(part.d_q_norm),
        d_k_norm(part.d_k_norm) {}
};

/// The passes on the device, part by part.
template <class T>
WideQkResults<T> on_device(const WideQkInputs<T>& inputs, bool in_place = false, std::int64_t shift = 0) {
  const Case& c = inputs.c;
  const WideQkShape shape = inputs.shape();
  DeviceArray<float> sums(c.parts * c.M * 2), dots(c.parts * c.M * 2);
  std::vector<std::unique_ptr<OnDevicePart<T>>> parts;
  for (const auto& part : inputs.parts) parts.push_back(std::make_unique<OnDevicePart<T>>(part, shift));
  for (std::int64_t i = 0; i < c.parts; ++i) {
    OnDevicePart<T>& part = *parts[static_cast<std::size_t>(i)];
    cuda::wide_qk_sums({}, {.sums = sums.data() + i * c.M * 2, .x = part.x.data(), .shape = shape});
    cuda::wide_qk_dots({}, {.dots = dots.data() + i * c.M * 2,
                            .d = part.d.data(),
                            .x = part.x.data(),
                            .q_norm = part.q_norm.data(),
                            .k_norm = part.k_norm.data(),
                            .shape = shape});
  }
  WideQkResults<T> r{sums.host(), dots.host(), {}};
  for (auto& part : parts) {
    const WideQkNormBackward p{.d = part->d.data(),
                               .d_q_norm = part->d_q_norm.data(),
                               .d_k_norm = part->d_k_norm.data(),
                               .x = part->x.data(),
                               .sums = sums.data(),
                               .dots = dots.data(),
                               .q_norm = part->q_norm.data(),
                               .k_norm = part->k_norm.data(),
                               .shape = shape};
    DeviceBytes workspace(cuda::wide_qk_norm_backward_workspace_bytes(p));
    cuda::wide_qk_norm_backward(workspace.context(), p);
    DeviceArray<T>& out = in_place ? part->x : part->out;
    cuda::wide_qk_norm({}, {.out = out.data(),
                            .x = part->x.data(),
                            .sums = sums.data(),
                            .q_norm = part->q_norm.data(),
                            .k_norm = part->k_norm.data(),
                            .shape = shape});
    r.parts.push_back({out.host(), part->d.host(), part->d_q_norm.host(), part->d_k_norm.host()});
  }
  return r;
}

/// Features that are normed: the others are compared by their bits.
template <class T>
std::vector<T> features(const std::vector<T>& v, const Case& c, bool normed) {
  std::vector<T> out;
  for (std::int64_t m = 0; m < c.M; ++m) {
    const auto row = v.begin() + m * c.stride, middle = row + c.Q + c.K;
    out.insert(out.end(), normed ? row : middle, normed ? middle : row + c.stride);
  }
  return out;
}

template <class T>
void compare_with_host() {
  for (const Case& c : DeviceSample().some(wide_qk_cases, 4)) {
    SCOPED_TRACE(::testing::Message() << c);
    const WideQkInputs<T> in(c);
    const WideQkResults<T> r = on_device(in), expected = wide_qk_on_host(in);
    EXPECT_LT(norm_error(r.sums, expected.sums), 1e-6);
    EXPECT_LT(norm_error(r.dots, expected.dots), 1e-5);
    for (std::size_t i = 0; i < in.parts.size(); ++i) {
      const auto &part = r.parts[i], &wanted = expected.parts[i];
      EXPECT_LT(norm_error(features(part.out, c, true), features(wanted.out, c, true)), sizeof(T) == 4 ? 1e-6 : 2e-3);
      // With one feature all of its gradient cancels.
      const double allowed = c.Q == 1 ? 1 : sizeof(T) == 4 ? 2e-6 : 2e-3;
      EXPECT_LT(norm_error(features(part.d, c, true), features(wanted.d, c, true)), allowed);
      EXPECT_EQ(digest(features(part.out, c, false)), digest(features(wanted.out, c, false)));
      EXPECT_EQ(digest(features(part.d, c, false)), digest(features(wanted.d, c, false)));
      EXPECT_LT(norm_error(part.d_q_norm, wanted.d_q_norm), 2e-6);
      EXPECT_LT(norm_error(part.d_k_norm, wanted.d_k_norm), 2e-6);
    }
  }
}
TEST_F(WideQkNormCuda, MatchesTheHostInFp32) { compare_with_host<float>(); }
TEST_F(WideQkNormCuda, MatchesTheHostInBf16) { compare_with_host<bf16>(); }
TEST_F(WideQkNormCuda, MatchesTheHostInFp16) { compare_with_host<f16>(); }

// Sums are taken in an order that depends on shapes alone: not on where operands lie, on which memory is shared, or on timing.
template <class T>
void same_bits(const Case& c) {
  SCOPED_TRACE(::testing::Message() << c);
  const WideQkInputs<T> in(c);
  const std::string expected = on_device(in).hash().hex();
  EXPECT_EQ(on_device(in, false, 1).hash().hex(), expected);
  EXPECT_EQ(on_device(in, true).hash().hex(), expected);
  expect_same_bits_on_device([&] { return on_device(in).hash(); });
}
TEST_F(WideQkNormCuda, SameBitsWhereverOperandsLie) {
  same_bits<bf16>({70, 64, 32, 128, 3});
  if (watches_races()) return;
  same_bits<float>({77, 200, 40, 280, 2, 1.0f}), same_bits<f16>({9, 2064, 1040, 3200});
}

TEST_F(WideQkNormCuda, RefusesWhatItCannotDo) {
  EXPECT_THROW(cuda::wide_qk_norm_backward({}, {.shape = {.M = 77, .Q = 48, .K = 16, .stride = 64}}), Error) << "no workspace";
  EXPECT_THROW(cuda::wide_qk_sums({}, {.shape = {.M = 77, .Q = 48, .K = 16, .stride = 63}}), Error);
}

}  // namespace
}  // namespace tessera::kernels::testing::wide_qk_norm_cuda_test
