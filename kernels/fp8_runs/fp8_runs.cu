// Bound by memory. To decode moves 3 bytes an element: a launch has as many runs as its arguments hold; of a run each block has some
// neighbouring elements, a thread one at a time. Not yet measured.
#include <algorithm>

#include "kernels/cuda/reduce.hpp"
#include "kernels/cuda/vector.hpp"
#include "kernels/elementwise/elementwise.hpp"
#include "kernels/fp8/scale.hpp"
#include "kernels/fp8_runs/fp8_runs_code.hpp"

namespace tessera::kernels::cuda {
namespace {

using namespace tessera::cuda;

constexpr int run_threads = 256, in_launch = 64;
constexpr std::int64_t in_block = 16 * run_threads;

struct SomeRuns {
  bf16* x;
  const std::byte* bytes;
  Fp8Run runs[in_launch];
};

__global__ void __launch_bounds__(run_threads) decode_kernel(SomeRuns p) {
  const Fp8Run& run = p.runs[blockIdx.y];
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * in_block;
  const std::int64_t end = first + in_block < run.elements ? first + in_block : run.elements;
  const std::byte* from = p.bytes + run.byte;
  bf16* x = p.x + run.element;
  const float scale = run.coded ? *reinterpret_cast<const float*>(p.bytes + scale_byte(run)) : 0;
  for (std::int64_t i = first + threadIdx.x; i < end; i += run_threads) {
    if (run.coded) {
      e4m3 code;
      code.bits = static_cast<std::uint8_t>(from[i]);
      x[i] = rounded<bf16>(static_cast<float>(code) * scale);
    } else {
      x[i] = reinterpret_cast<const bf16*>(from)[i];
    }
  }
}

__global__ void __launch_bounds__(run_threads) magnitude_of_run_kernel(float* largest, const bf16* x, std::int64_t n) {
  std::uint32_t most = 0;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * in_block, end = first + in_block < n ? first + in_block : n;
  for (std::int64_t i = first + threadIdx.x; i < end; i += run_threads) {
    const std::uint32_t bits = __float_as_uint(to_float(x[i])) & 0x7fffffffu;
    most = most < bits ? bits : most;
  }
  most = block_max(most);
  if (threadIdx.x == 0) atomicMax(reinterpret_cast<std::uint32_t*>(largest), most);
}

__global__ void multipliers_kernel(float* magnitudes, std::int64_t n) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) magnitudes[i] = fp8_scale(magnitudes[i], e4m3::largest(), false).multiplier;
}

unsigned blocks_of_run(std::int64_t n) { return static_cast<unsigned>(ceil_div(n, in_block)); }

}  // namespace

void find_magnitude(const Context& context, float* largest, const bf16* x, std::int64_t n) {
  if (n > 0) launch(stream_of(context), blocks_of_run(n), run_threads, 0, magnitude_of_run_kernel, largest, x, n);
}

void fp8_multipliers(const Context& context, float* magnitudes, std::int64_t n) {
  if (n > 0) launch(stream_of(context), static_cast<unsigned>(ceil_div(n, run_threads)), run_threads, 0, multipliers_kernel, magnitudes, n);
}

void encode_fp8_run(const Context& context, const EncodeFp8Run& p) {
  if (p.run.coded)
    fp8_runs::for_each_shape(p, [&](const Fp8Quantize& q) { cuda::fp8_quantize(context, q); });
  else
    cuda::copy(context, p.bytes + p.run.byte, p.x + p.run.element, static_cast<std::size_t>(p.run.elements) * sizeof(bf16));
}

void decode_fp8_runs(const Context& context, const DecodeFp8Runs& p) {
  for (std::size_t at = 0; at < p.runs.size(); at += in_launch) {
    SomeRuns some{p.x, p.bytes, {}};
    const std::size_t count = std::min<std::size_t>(in_launch, p.runs.size() - at);
    std::int64_t most = 1;
    for (std::size_t i = 0; i < count; ++i) some.runs[i] = p.runs[at + i], most = std::max(most, some.runs[i].elements);
    launch(stream_of(context), dim3(blocks_of_run(most), static_cast<unsigned>(count)), run_threads, 0, decode_kernel, some);
  }
}

}  // namespace tessera::kernels::cuda
