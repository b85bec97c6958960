// Sums and maxima over the threads of a block, one right after the other: the next call must not write where the last one is still read.
#include "kernels/cuda/reduce.hpp"

#include <cmath>
#include <numeric>

#include "kernels/cuda/device.hpp"
#include "validation/kernels/device_array.hpp"

namespace tessera::kernels::testing::reduce_cuda_test {
namespace {
using namespace tessera::cuda;

constexpr int turns = 5;

__global__ void reduce_in_turns(float* sums, float* most, const float* x, int size) {
  for (int turn = 0; turn < turns; ++turn) {
    const unsigned i = static_cast<unsigned>(turn) * blockDim.x + threadIdx.x;
    sums[i] = group_sum(x[i], size);
  }
  for (int turn = 0; turn < turns; ++turn) {
    const unsigned i = static_cast<unsigned>(turn) * blockDim.x + threadIdx.x;
    most[i] = block_max(x[i]);
  }
}

class ReduceCuda : public OnDevice {};

TEST_F(ReduceCuda, CallsInARowGiveEachGroupItsSumAndTheBlockItsMaximum) {
  for (const auto& [threads, size] : {std::pair{32, 8}, {64, 64}, {256, 64}, {1024, 1024}, {96, 96}, {128, 1}}) {
    SCOPED_TRACE(::testing::Message() << threads << " threads in groups of " << size);
    std::vector<float> x;  // whole numbers: sums are exact in any order
    for (float value : random_values<float>(turns * threads, 1, 100)) x.push_back(std::round(value));
    DeviceArray<float> there(x), sums(turns * threads), most(turns * threads);
    launch(nullptr, 1, static_cast<unsigned>(threads), 0, reduce_in_turns, sums.data(), most.data(), there.data(), size);
    const std::vector<float> got_sums = sums.host(), got_most = most.host();
    for (int i = 0; i < turns * threads; ++i) {
      const auto group = x.begin() + i / size * size, block = x.begin() + i / threads * threads;
      EXPECT_EQ(got_sums[static_cast<std::size_t>(i)], std::accumulate(group, group + size, 0.0f)) << i;
      EXPECT_EQ(got_most[static_cast<std::size_t>(i)], *std::max_element(block, block + threads)) << i;
    }
  }
}

}  // namespace
}  // namespace tessera::kernels::testing::reduce_cuda_test
