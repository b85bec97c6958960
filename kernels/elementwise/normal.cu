// Normal numbers from a counter, a counter (four numbers) a thread: the host's arithmetic, and so its bits. Bound by arithmetic; it runs
// once in a run. Not yet measured.
#include "kernels/cuda/vector.hpp"
#include "kernels/elementwise/box_muller.hpp"
#include "kernels/elementwise/elementwise.hpp"
#include "kernels/elementwise/philox.hpp"

namespace tessera::kernels::cuda {
namespace {

using namespace tessera::cuda;

__global__ void __launch_bounds__(block_threads)
    normal_kernel(float* out, std::int64_t n, float std, std::uint64_t seed, std::uint64_t stream, std::uint64_t first) {
  const std::uint64_t thread = std::uint64_t{blockIdx.x} * block_threads + threadIdx.x, c = first / 4 + thread;
  std::uint32_t word[4] = {static_cast<std::uint32_t>(c), static_cast<std::uint32_t>(c >> 32), static_cast<std::uint32_t>(stream),
                           static_cast<std::uint32_t>(stream >> 32)};
  philox4x32(word, static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32));
  const auto a = box_muller<float>(word[0], word[1], std), b = box_muller<float>(word[2], word[3], std);
  const float value[4] = {a.first, a.second, b.first, b.second};
  // Element `first` may lie inside the first counter.
  const std::int64_t at = static_cast<std::int64_t>(4 * thread) - static_cast<std::int64_t>(first % 4);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if (at + k >= 0 && at + k < n) out[at + k] = value[k];
  }
}

}  // namespace

void normal(const Context& context, float* out, std::int64_t n, float std, std::uint64_t seed, std::uint64_t stream, std::uint64_t first) {
  if (n == 0) return;
  const std::int64_t counters = ceil_div(n + static_cast<std::int64_t>(first % 4), 4);
  launch(stream_of(context), Tile<1, 1>::blocks(counters), block_threads, 0, normal_kernel, out, n, std, seed, stream, first);
}

}  // namespace tessera::kernels::cuda
