// A block has a group and reads the numbers of all tokens, 4 bytes each: groups are few, and these lie in the second-level cache. Nothing
// is added by atomics. Not yet measured.
#include "kernels/cuda/device.hpp"
#include "kernels/group_losses/group_losses.hpp"

namespace tessera::kernels::cuda {
namespace {

using namespace tessera::cuda;

constexpr int group_threads = 128;

__global__ void __launch_bounds__(group_threads) group_losses_kernel(AddGroupLosses p) {
  __shared__ std::int64_t parts[group_threads][group_sums];
  const auto group = static_cast<std::int32_t>(blockIdx.x);
  GroupTotals mine;
  for (std::int64_t t = threadIdx.x; t < p.M; t += group_threads)
    if (p.members[t] == group && p.weights[t] != 0 && mine.loss.add(p.losses[t])) mine.weight.add(p.weights[t]), ++mine.targets;
  for (int i = 0; i < 4; ++i) parts[threadIdx.x][i] = mine.loss.limb[i], parts[threadIdx.x][4 + i] = mine.weight.limb[i];
  parts[threadIdx.x][8] = mine.targets;
  __syncthreads();
  if (threadIdx.x >= group_sums) return;
  // A thread has a limb of one of both sums, or the targets.
  std::int64_t sum = 0;
  for (int thread = 0; thread < group_threads; ++thread) sum += parts[thread][threadIdx.x];
  GroupTotals& totals = p.totals[group];
  (threadIdx.x < 4 ? totals.loss.limb[threadIdx.x] : threadIdx.x < 8 ? totals.weight.limb[threadIdx.x - 4] : totals.targets) += sum;
}

}  // namespace

void add_group_losses(const Context& context, const AddGroupLosses& p) {
  TESSERA_CUDA_REQUIRE(p.M >= 0 && p.groups > 0);
  launch(stream_of(context), static_cast<unsigned>(p.groups), group_threads, 0, group_losses_kernel, p);
}

}  // namespace tessera::kernels::cuda
