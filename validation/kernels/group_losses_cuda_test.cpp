#include <cstring>

#include "device_array.hpp"
#include "group_losses_cases.hpp"
#include "kernels/group_losses/group_losses.hpp"

namespace tessera::kernels::testing::group_losses_cuda_test {
namespace {

class GroupLossesCuda : public OnDevice {};

using Sums = std::vector<std::int64_t>;

/// Twice the same tokens: totals are added to.
Sums on_host(const GroupLossesInputs& c) {
  std::vector<GroupTotals> totals(static_cast<std::size_t>(c.groups));
  for (int time = 0; time < 2; ++time)
    host::add_group_losses({}, {.totals = totals.data(),
                                .losses = c.losses.data(),
                                .weights = c.weights.data(),
                                .members = c.members.data(),
                                .M = std::ssize(c.losses),
                                .groups = c.groups});
  Sums sums(totals.size() * group_sums);
  std::memcpy(sums.data(), totals.data(), sums.size() * sizeof(std::int64_t));
  return sums;
}

Sums on_device(const GroupLossesInputs& c) {
  DeviceArray<std::int64_t> totals(Sums(static_cast<std::size_t>(c.groups * group_sums), 0));
  DeviceArray<float> losses(c.losses), weights(c.weights);
  DeviceArray<std::int32_t> members(c.members);
  for (int time = 0; time < 2; ++time)
    cuda::add_group_losses({}, {.totals = reinterpret_cast<GroupTotals*>(totals.data()),
                                .losses = losses.data(),
                                .weights = weights.data(),
                                .members = members.data(),
                                .M = std::ssize(c.losses),
                                .groups = c.groups});
  TESSERA_CUDA_CHECK(cudaDeviceSynchronize());
  return totals.host();
}

TEST_F(GroupLossesCuda, HaveTheHostsBits) {
  for (const GroupLossesCase& c : group_losses_cases) {
    const GroupLossesInputs in = random_group_losses(c);
    EXPECT_EQ(on_device(in), on_host(in)) << c;
  }
}

TEST_F(GroupLossesCuda, DoNotDependOnTheOrderOfThreads) {
  const GroupLossesInputs c = random_group_losses({700, 3});
  expect_same_bits_on_device([&] {
    const Sums sums = on_device(c);
    return hash_bytes(sums.data(), sums.size() * sizeof(std::int64_t));
  });
}

}  // namespace
}  // namespace tessera::kernels::testing::group_losses_cuda_test
