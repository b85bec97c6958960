#include "device_array.hpp"
#include "fp8_runs_cases.hpp"

namespace tessera::kernels::testing::fp8_runs_cuda_test {
namespace {

class Fp8RunsCuda : public OnDevice {};

TEST_F(Fp8RunsCuda, HaveTheBitsOfTheHost) {
  const std::vector<bf16> x = values_of_runs();
  const float multiplier = run_multiplier;
  float largest = 0.01f;
  std::vector<std::byte> bytes(static_cast<std::size_t>(bytes_of_runs()));
  DeviceArray<std::byte> there_bytes(bytes);
  DeviceArray<bf16> there_x(x), there_y(std::vector<bf16>(x.size(), bf16(3.f)));
  DeviceArray<float> there_multiplier(std::vector<float>{multiplier}), there_largest(std::vector<float>{largest});
  std::vector<Fp8Run> runs;
  for (int turn = 0; turn < 9; ++turn)  // more than a launch takes
    for (const Fp8Run& run : some_runs()) runs.push_back(run);
  for (const Fp8Run& run : some_runs()) {
    host::encode_fp8_run({}, {.bytes = bytes.data(), .x = x.data(), .run = run, .multiplier = &multiplier, .largest = &largest});
    cuda::encode_fp8_run({}, {.bytes = there_bytes.data(),
                              .x = there_x.data(),
                              .run = run,
                              .multiplier = there_multiplier.data(),
                              .largest = there_largest.data()});
  }
  EXPECT_EQ(there_bytes.host(), bytes);
  EXPECT_EQ(there_largest.host()[0], largest);
  std::vector<bf16> y(x.size(), bf16(3.f));
  host::decode_fp8_runs({}, {.x = y.data(), .bytes = bytes.data(), .runs = runs});
  cuda::decode_fp8_runs({}, {.x = there_y.data(), .bytes = there_bytes.data(), .runs = runs});
  EXPECT_EQ(there_y.host(), y);
}

TEST_F(Fp8RunsCuda, MagnitudesAndMultipliersHaveTheBitsOfTheHost) {
  const std::vector<bf16> x = values_of_runs();
  std::vector<float> found{0, 0.3f, 0};
  DeviceArray<bf16> there_x(x);
  DeviceArray<float> there(found);
  for (const std::int64_t n : {1, 1000, 39'999})
    host::find_magnitude({}, found.data() + 2, x.data(), n), cuda::find_magnitude({}, there.data() + 2, there_x.data(), n);
  host::fp8_multipliers({}, found.data(), 3), cuda::fp8_multipliers({}, there.data(), 3);
  EXPECT_EQ(there.host(), found);
}

}  // namespace
}  // namespace tessera::kernels::testing::fp8_runs_cuda_test
