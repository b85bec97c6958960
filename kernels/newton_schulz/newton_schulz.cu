// Bound by its products. What comes before them reads the matrix twice; its bits are the host's. Not yet measured.
#include "kernels/cuda/reduce.hpp"
#include "kernels/cuda/vector.hpp"
#include "kernels/newton_schulz/iteration.hpp"

namespace tessera::kernels {
namespace newton_schulz_detail {
namespace {

using namespace tessera::cuda;

constexpr int warps = block_threads / warp_lanes;

/// A warp takes a block of elements: its lanes are the chains.
__global__ void __launch_bounds__(block_threads) squares_kernel(double* squares, const bf16* x, std::int64_t n, std::int64_t blocks) {
  const std::int64_t block = static_cast<std::int64_t>(blockIdx.x) * warps + threadIdx.x / warp_lanes;
  if (block >= blocks) return;
  double sum = 0;
#pragma unroll
  for (int k = 0; k < norm_block / warp_lanes; ++k) {
    const std::int64_t i = block * norm_block + k * warp_lanes + threadIdx.x % warp_lanes;
    const double v = i < n ? static_cast<double>(to_float(x[i])) : 0.0;
    sum = fma(v, v, sum);
  }
  sum = warp_sum(sum);
  if (threadIdx.x % warp_lanes == 0) squares[block] = sum;
}

/// One block of threads: they are the chains.
__global__ void __launch_bounds__(norm_chains)
    factor_kernel(float* factor, const double* squares, std::int64_t blocks, double stretch, double least) {
  __shared__ double chain[norm_chains];
  double sum = 0;
  for (std::int64_t b = threadIdx.x; b < blocks; b += norm_chains) sum += squares[b];
  chain[threadIdx.x] = sum;
  for (int width = norm_chains / 2; width > 0; width /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < width) chain[threadIdx.x] += chain[threadIdx.x + width];
  }
  if (threadIdx.x == 0) *factor = factor_of(chain[0], stretch, least);
}

/// A thread an element: a small part of the time that products take.
__global__ void __launch_bounds__(block_threads) copy_rows_kernel(Rows r) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * block_threads + threadIdx.x;
  if (i >= r.rows * r.columns) return;
  r.to[i / r.columns * r.to_step + i % r.columns] = r.from[i / r.columns * r.from_step + i % r.columns];
}
void copy_rows(cudaStream_t stream, const Rows& r) {
  launch(stream, static_cast<unsigned>(ceil_div(r.rows * r.columns, std::int64_t{block_threads})), block_threads, 0, copy_rows_kernel, r);
}

constexpr int elements = 8;

template <class Whole>
__global__ void __launch_bounds__(block_threads) scale_kernel(bf16* to, const bf16* x, std::int64_t n, const float* factor) {
  const Tile<elements, 1> tile;
  const float by = *factor;
  float v[elements];
  load<Whole>(v, x, tile.at(0), n);
#pragma unroll
  for (float& value : v) value *= by;
  store<Whole>(to, tile.at(0), n, v);
}

void run_on_device(const Context& context, const NewtonSchulz& p) {
  const Places at = places_of(p, Backend::cuda);
  TESSERA_CUDA_REQUIRE(is_legal(p) && context.workspace.size() >= at.end);
  std::byte* memory = context.workspace.data();
  auto* squares = reinterpret_cast<double*>(memory + at.squares);
  auto* factor = reinterpret_cast<float*>(memory + at.factor);
  auto* x = reinterpret_cast<bf16*>(memory);
  const std::int64_t n = p.rows * p.columns, blocks = norm_blocks(p);
  const Iteration iteration = iteration_of(p.steps);
  const cudaStream_t stream = stream_of(context);
  for (std::int64_t part = 0; p.parts > 1 && part < p.parts; ++part) copy_rows(stream, part_of_x(p, x, part));
  const bf16* whole_x = p.parts > 1 ? x : p.x;
  launch(stream, static_cast<unsigned>(ceil_div(blocks, std::int64_t{warps})), block_threads, 0, squares_kernel, squares, whole_x, n,
         blocks);
  launch(stream, 1, norm_chains, 0, factor_kernel, factor, static_cast<const double*>(squares), blocks, iteration.stretch, iteration.least);
  with_whole(on_sixteen_bytes(x, whole_x) && whole_vectors(elements, {n}), [&](auto whole) {
    launch(stream, Tile<elements, 1>::blocks(n), block_threads, 0, scale_kernel<decltype(whole)>, x, whole_x, n,
           static_cast<const float*>(factor));
  });
  iterate(context, p, at, cuda::gemm);
  for (std::int64_t part = 0; parts_results(p) && part < p.parts; ++part)
    copy_rows(stream, part_of_result(p, reinterpret_cast<const bf16*>(memory + at.result), part));
}

}  // namespace
}  // namespace newton_schulz_detail

void cuda::newton_schulz(const Context& context, const NewtonSchulz& p) { newton_schulz_detail::run_on_device(context, p); }

}  // namespace tessera::kernels
