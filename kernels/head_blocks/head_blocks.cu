// Bound by memory: a thread moves sixteen bytes, or as many as a head's rows divide by. Not yet measured.
#include "kernels/cuda/rows.hpp"
#include "kernels/head_blocks/places.hpp"

namespace tessera::kernels::cuda {
namespace {

using namespace tessera::cuda;
using head_blocks::Places;

/// One Unit a thread, the first `columns` of each row of blocks. `to_rows` says which side is written.
template <class Unit, bool to_rows>
__global__ void __launch_bounds__(block_threads) head_blocks_kernel(Unit* to, const Unit* from, Places places, RowVectors vectors) {
  const auto [row, unit] = vectors.place();
  if (row >= vectors.rows) return;
  const std::int64_t block = row * places.block_width() + unit, among_rows = places.among_rows(row, unit);
  to[to_rows ? among_rows : block] = from[to_rows ? block : among_rows];
}

/// One vector a thread of the keys or the values of a token: rows are counted as (B,G,T,2).
template <class T, class Whole>
__global__ void __launch_bounds__(block_threads) sum_keys_kernel(T* to, const T* from, Places places, RowVectors vectors) {
  constexpr int N = vector_elements<T>;
  const auto [row, vector] = vectors.place();
  if (row >= vectors.rows) return;
  const std::int64_t token = row / 2, i = static_cast<std::int64_t>(vector) * N;
  const std::int64_t of_first = token / places.T * places.sharing * places.T + token % places.T;  // of the first rank that has them
  const std::int64_t begin = places.queries + row % 2 * places.keys, next = places.T * places.block_width();
  const std::int64_t width = row % 2 == 0 ? places.keys : places.values;
  if (i >= width) return;
  const T* block = from + of_first * places.block_width() + begin;
  float sum[N], x[N];
  load<Whole>(sum, block, i, width);
  for (std::int64_t r = 1; r < places.sharing; ++r) {
    load<Whole>(x, block + r * next, i, width);
#pragma unroll
    for (int n = 0; n < N; ++n) sum[n] += x[n];
  }
  store<Whole>(to + places.among_rows(of_first, begin), i, width, sum);
}

template <bool to_rows, class Unit>
void move(const Context& context, const HeadBlocks& p) {
  const Places places = head_blocks::places_of(p, sizeof(Unit));
  const bool queries_alone = to_rows && places.sharing > 1;
  const RowVectors vectors(p.B * p.N * p.T, queries_alone ? places.queries : places.block_width(), 1);
  launch(stream_of(context), vectors.blocks(), block_threads, 0, head_blocks_kernel<Unit, to_rows>, static_cast<Unit*>(p.to),
         static_cast<const Unit*>(p.from), places, vectors);
}

template <bool to_rows>
void move(const Context& context, const HeadBlocks& p) {
  const auto whole = [&](std::int64_t features) { return features * static_cast<std::int64_t>(size_of(p.dtype)) % 16 == 0; };
  if (on_sixteen_bytes(p.to, p.from) && whole(p.D) && whole(head_blocks::value_dim(p)))
    move<to_rows, uint4>(context, p);
  else if (size_of(p.dtype) == 4)
    move<to_rows, std::uint32_t>(context, p);
  else
    move<to_rows, std::uint16_t>(context, p);
}

void sum_keys(const Context& context, const HeadBlocks& p) {
  with_float_type(p.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int N = vector_elements<T>;
    const Places places = head_blocks::places_of(p, sizeof(T));
    const RowVectors vectors(p.B * p.G * p.T * 2, std::max(places.keys, places.values), N);
    with_whole(on_sixteen_bytes(p.to, p.from) && whole_vectors(N, {places.keys, places.values}), [&](auto whole) {
      launch(stream_of(context), vectors.blocks(), block_threads, 0, sum_keys_kernel<T, decltype(whole)>, static_cast<T*>(p.to),
             static_cast<const T*>(p.from), places, vectors);
    });
  });
}

}  // namespace

void rows_to_head_blocks(const Context& context, const HeadBlocks& p) {
  TESSERA_CUDA_REQUIRE(head_blocks::divides(p));
  if (p.B * p.T * p.H * p.D > 0) move<false>(context, p);
}

void head_blocks_to_rows(const Context& context, const HeadBlocks& p) {
  TESSERA_CUDA_REQUIRE(head_blocks::divides(p));
  if (p.B * p.T * p.H * p.D == 0) return;
  move<true>(context, p);
  if (p.G > 0 && p.G < p.N) sum_keys(context, p);
}

}  // namespace tessera::kernels::cuda
