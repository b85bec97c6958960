#include "device_array.hpp"
#include "fp8_history_cases.hpp"

namespace tessera::kernels::testing::fp8_history_cuda_test {
namespace {

class Fp8HistoryCuda : public OnDevice {};

TEST_F(Fp8HistoryCuda, HasTheBitsOfTheHost) {
  for (const std::int64_t length : {1, 3, 256, 257, 1024}) {
    Histories h = histories_of(4, length, 1);
    DeviceArray<float> history(h.history), multipliers(h.n()), largest(h.n());
    for (unsigned step = 0; step < 5; ++step) {
      draw_largest(h, step);
      largest = h.largest;
      const bool enters = step != 2;
      advance(cuda::fp8_histories, h, history.data(), multipliers.data(), largest.data(), enters);
      advance_on_host(h, enters);
      EXPECT_EQ(digest(history.host(), multipliers.host(), largest.host()), digest(h.history, h.multipliers, h.largest)) << length;
    }
  }
}

}  // namespace
}  // namespace tessera::kernels::testing::fp8_history_cuda_test
