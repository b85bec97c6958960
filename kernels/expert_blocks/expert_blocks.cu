// A thread a row or a choice, which reads and writes a few numbers: small beside the rows themselves. Not yet measured.
#include "kernels/cuda/rows.hpp"
#include "kernels/expert_blocks/places.hpp"

namespace tessera::kernels::cuda {
namespace {

using namespace tessera::cuda;

__device__ std::int64_t thread_number() { return static_cast<std::int64_t>(blockIdx.x) * block_threads + threadIdx.x; }

unsigned blocks_for(std::int64_t threads) { return static_cast<unsigned>(ceil_div(threads, block_threads)); }

/// A thread a label.
__global__ void __launch_bounds__(block_threads) label_kernel(LabelBlocks p) {
  const std::int64_t i = thread_number(), E = p.blocks.E, of_block = p.blocks.labels();
  if (i >= p.blocks.N * of_block) return;
  const std::int64_t n = i / of_block, label = i % of_block;
  if (label < E) {
    const std::int64_t expert = n * E + label;
    p.labels[i] = static_cast<std::uint32_t>(p.offsets[expert + 1] - p.offsets[expert]);
    return;
  }
  const std::int64_t choice = p.sources[n * p.blocks.rows + label - E];
  p.labels[i] = choice < 0 ? 0 : static_cast<std::uint32_t>(__float_as_int(p.weights[expert_blocks::slot_of(choice, p.k, p.slots)]));
}

/// One block: the rows of each expert, then where they begin.
__global__ void __launch_bounds__(block_threads) arrival_offsets_kernel(PlanArrivals p) {
  for (std::int64_t e = threadIdx.x; e < p.blocks.E; e += block_threads) {
    std::int32_t rows = 0;
    for (std::int64_t n = 0; n < p.blocks.N; ++n) rows += expert_blocks::count_of(p, n, e);
    p.offsets[e + 1] = rows;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  p.offsets[0] = 0;
  for (std::int64_t e = 0; e < p.blocks.E; ++e) p.offsets[e + 1] += p.offsets[e];
}

/// A thread a row of blocks, and a sorted row, which may be nobody's.
__global__ void __launch_bounds__(block_threads) arrivals_kernel(PlanArrivals p) {
  const std::int64_t row = thread_number();
  if (row >= p.blocks.N * p.blocks.rows) return;
  if (row >= p.offsets[p.blocks.E]) p.order[row] = -1;
  const std::int64_t n = row / p.blocks.rows, in_block = row % p.blocks.rows;
  const std::int32_t place = expert_blocks::place_of(p, n, in_block);
  p.places[row] = place;
  p.weights[row] = __uint_as_float(p.labels[n * p.blocks.labels() + p.blocks.E + in_block]);
  if (place >= 0) p.order[place] = static_cast<std::int32_t>(row);
}

__global__ void __launch_bounds__(block_threads) collect_kernel(CollectRows p) {
  const std::int64_t choice = thread_number();
  if (choice >= p.M * p.k) return;
  const std::int32_t row = p.places[choice];
  p.out[expert_blocks::slot_of(choice, p.k, p.slots)] = row < 0 ? 0 : p.rows[row];
}

}  // namespace

void label_blocks(const Context& context, const LabelBlocks& p) {
  TESSERA_CUDA_REQUIRE(p.blocks.N > 0 && p.blocks.E > 0);
  launch(stream_of(context), blocks_for(p.blocks.N * p.blocks.labels()), block_threads, 0, label_kernel, p);
}

void plan_arrivals(const Context& context, const PlanArrivals& p) {
  TESSERA_CUDA_REQUIRE(p.blocks.N > 0 && p.blocks.E > 0);
  launch(stream_of(context), 1, block_threads, 0, arrival_offsets_kernel, p);
  if (p.blocks.rows > 0) launch(stream_of(context), blocks_for(p.blocks.N * p.blocks.rows), block_threads, 0, arrivals_kernel, p);
}

void collect_rows(const Context& context, const CollectRows& p) {
  if (p.M * p.k == 0) return;
  launch(stream_of(context), blocks_for(p.M * p.k), block_threads, 0, collect_kernel, p);
}

}  // namespace tessera::kernels::cuda
