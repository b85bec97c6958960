#include "device_array.hpp"
#include "expert_bias_cases.hpp"

namespace tessera::kernels::testing::expert_bias_cuda_test {
namespace {

class ExpertBiasCuda : public OnDevice {};

using Case = ExpertBiasCase;

/// ExpertBiasInputs on a GPU.
template <class T>
struct OnGpu {
  DeviceArray<std::int32_t> offsets, sources;
  DeviceArray<T> y, bias, d_y;
  DeviceArray<float> weights, d_bias, d_weights;
  OnGpu(const ExpertBiasInputs<T>& in, std::int64_t shift)
      : offsets(in.offsets),
        sources(in.sources),
        y(in.y, shift),
        bias(in.bias, shift),
        d_y(in.d_y, shift),
        weights(in.weights),
        d_bias(in.d_bias),
        d_weights(in.d_weights) {}
};

template <class T>
ExpertBiasResults<T> on_device(const Case& c, std::int64_t shift = 0) {
  OnGpu<T> in(ExpertBiasInputs<T>(c), shift);
  DeviceArray<float> written(c.E() * c.N), unweighed(c.E() * c.N);
  DeviceBytes workspace(expert_bias_gradient_workspace_bytes({.rows = c.rows(), .E = c.E(), .N = c.N}, Backend::cuda));
  run_expert_bias(workspace.context(), c, dtype_of<T>(), in, written, unweighed);
  return {in.y.host(), in.d_bias.host(), written.host(), unweighed.host(), in.d_weights.host()};
}

// Only sums have another order there.
template <class T>
void check_against_the_host() {
  for (const Case& c : DeviceSample().some(expert_bias_cases, 5))
    for (const std::int64_t shift : {0, 1}) {
      if (watches_races() && shift != c.N % 2) continue;
      SCOPED_TRACE(::testing::Message() << c << ", shift " << shift);
      const ExpertBiasResults<T> ours = on_device<T>(c, shift), host = expert_bias_on_host<T>(c);
      EXPECT_EQ(digest(ours.y).hex(), digest(host.y).hex());
      EXPECT_LT(norm_error(ours.d_bias, host.d_bias), 1e-6);
      EXPECT_LT(norm_error(ours.written, host.written), 1e-6);
      EXPECT_LT(norm_error(ours.unweighed, host.unweighed), 1e-6);
      EXPECT_LT(norm_error(ours.d_weights, host.d_weights), 1e-6);
    }
}
TEST_F(ExpertBiasCuda, MatchesTheHostFp32) { check_against_the_host<float>(); }
TEST_F(ExpertBiasCuda, MatchesTheHostBf16) { check_against_the_host<bf16>(); }
TEST_F(ExpertBiasCuda, MatchesTheHostFp16) { check_against_the_host<f16>(); }

// The same rows of an expert, behind others and alone.
TEST_F(ExpertBiasCuda, GradientsDependOnTheExpertsOwnRows) {
  constexpr std::int64_t N = 37;
  constexpr std::int32_t count = 301;
  const auto own = random_values<bf16>(count * N, 1);
  const auto sum = [&](const std::vector<std::int32_t>& ends, std::int64_t expert) {
    const auto E = static_cast<std::int64_t>(ends.size()) - 1, rows = std::int64_t{ends.back()} + 5;
    auto values = random_values<bf16>(rows * N, 2);
    std::copy(own.begin(), own.end(), values.begin() + ends[static_cast<std::size_t>(expert)] * N);
    DeviceArray<float> d_bias(E * N);
    DeviceArray<bf16> d_y(values);
    DeviceArray<std::int32_t> offsets(ends);
    const ExpertBiasGradient p{
        .d_bias = d_bias.data(), .d_y = d_y.data(), .offsets = offsets.data(), .rows = rows, .E = E, .N = N, .dtype = DType::bf16};
    DeviceBytes workspace(expert_bias_gradient_workspace_bytes(p, Backend::cuda));
    cuda::expert_bias_gradient(workspace.context(), p);
    const auto all = d_bias.host();
    return std::vector<float>(all.begin() + expert * N, all.begin() + (expert + 1) * N);
  };
  EXPECT_EQ(sum({0, count}, 0), sum({0, 70, 70, 70 + count, 600}, 2));
}

TEST_F(ExpertBiasCuda, SameBitsInEveryOrder) {
  expect_same_bits_on_device([] { return digest(on_device<bf16>({.counts = {130, 0, 1, 33}, .N = 37, .nobodys = 2})); });
}

}  // namespace
}  // namespace tessera::kernels::testing::expert_bias_cuda_test
