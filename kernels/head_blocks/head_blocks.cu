// Bound by memory: a thread moves sixteen bytes, or as many as a head's rows divide by. Not yet measured.
#include "kernels/cuda/rows.hpp"
#include "kernels/head_blocks/places.hpp"

namespace tessera::kernels::cuda {
namespace {

using namespace tessera::cuda;

/// One Unit a thread. `to_rows` says which side is written.
template <class Unit, bool to_rows>
__global__ void __launch_bounds__(block_threads)
    head_blocks_kernel(Unit* to, const Unit* from, head_blocks::Places places, RowVectors vectors) {
  const auto [row, unit] = vectors.place();
  if (row >= vectors.rows) return;
  const std::int64_t block = row * places.block_width() + unit, among_rows = places.among_rows(row, unit);
  to[to_rows ? among_rows : block] = from[to_rows ? block : among_rows];
}

template <bool to_rows, class Unit>
void move(const Context& context, const HeadBlocks& p) {
  const head_blocks::Places places = head_blocks::places_of(p, sizeof(Unit));
  const RowVectors vectors(p.B * p.N * p.T, places.block_width(), 1);
  launch(stream_of(context), vectors.blocks(), block_threads, 0, head_blocks_kernel<Unit, to_rows>, static_cast<Unit*>(p.to),
         static_cast<const Unit*>(p.from), places, vectors);
}

template <bool to_rows>
void move(const Context& context, const HeadBlocks& p) {
  TESSERA_CUDA_REQUIRE(p.N > 0 && p.H % p.N == 0 && p.G % p.N == 0 && p.B * p.N * p.T < std::int64_t{1} << 32);
  if (p.B * p.T * p.H * p.D == 0) return;
  const std::int64_t head = p.D * static_cast<std::int64_t>(size_of(p.dtype));
  if (on_sixteen_bytes(p.to, p.from) && head % 16 == 0)
    move<to_rows, uint4>(context, p);
  else if (size_of(p.dtype) == 4)
    move<to_rows, std::uint32_t>(context, p);
  else
    move<to_rows, std::uint16_t>(context, p);
}

}  // namespace

void rows_to_head_blocks(const Context& context, const HeadBlocks& p) { move<false>(context, p); }
void head_blocks_to_rows(const Context& context, const HeadBlocks& p) { move<true>(context, p); }

}  // namespace tessera::kernels::cuda
