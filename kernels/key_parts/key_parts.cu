// Bound by memory: a thread moves sixteen bytes, or as many as a part divides by. Not yet measured.
#include "kernels/cuda/rows.hpp"
#include "kernels/key_parts/places.hpp"

namespace tessera::kernels::cuda {
namespace {

using namespace tessera::cuda;
using key_parts::Places;

/// One Unit of a row a thread.
template <class Unit>
__global__ void __launch_bounds__(block_threads)
    join_kernel(Unit* rows, const Unit* made, const Unit* parts, Places places, RowVectors vectors) {
  const auto [token, unit] = vectors.place();
  if (token >= vectors.rows) return;
  rows[token * places.width() + unit] =
      unit < places.queries ? made[token * places.own_qkv_width() + unit] : parts[places.among_parts(token, unit - places.queries)];
}

/// One Unit of a part a thread: rows are counted as (N,M).
template <class Unit>
__global__ void __launch_bounds__(block_threads) spread_kernel(Unit* parts, const Unit* d_rows, Places places, RowVectors vectors) {
  const auto [row, unit] = vectors.place();
  if (row >= vectors.rows) return;
  const auto counted = static_cast<std::uint32_t>(row), tokens = static_cast<std::uint32_t>(places.M), rank = counted / tokens;
  const std::int64_t token = counted - rank * tokens;
  parts[row * places.part() + unit] = places.has(rank) ? d_rows[token * places.width() + places.in_row(rank, unit)] : Unit{};
}

/// Calls f with a type that parts are whole numbers of.
template <class F>
void with_unit(const KeyParts& p, bool aligned, F f) {
  const auto whole = [&](std::int64_t features) { return features / p.sharing * static_cast<std::int64_t>(size_of(p.dtype)) % 16 == 0; };
  if (aligned && whole(p.D) && whole(p.value_dim()))
    f(uint4{});
  else if (size_of(p.dtype) == 4)
    f(std::uint32_t{});
  else
    f(std::uint16_t{});
}

}  // namespace

void join_key_parts(const Context& context, const JoinKeyParts& p) {
  TESSERA_CUDA_REQUIRE(key_parts::divides(p.shape));
  if (p.shape.M == 0) return;
  with_unit(p.shape, on_sixteen_bytes(p.rows, p.made, p.parts), [&](auto unit) {
    using Unit = decltype(unit);
    const Places places = key_parts::places_of(p.shape, sizeof(Unit));
    const RowVectors vectors(p.shape.M, places.width(), 1);
    launch(stream_of(context), vectors.blocks(), block_threads, 0, join_kernel<Unit>, static_cast<Unit*>(p.rows),
           static_cast<const Unit*>(p.made), static_cast<const Unit*>(p.parts), places, vectors);
  });
}

void spread_key_gradients(const Context& context, const SpreadKeyGradients& p) {
  TESSERA_CUDA_REQUIRE(key_parts::divides(p.shape));
  if (p.shape.M == 0) return;
  with_unit(p.shape, on_sixteen_bytes(p.parts, p.d_rows), [&](auto unit) {
    using Unit = decltype(unit);
    const Places places = key_parts::places_of(p.shape, sizeof(Unit));
    const RowVectors vectors(p.shape.N * p.shape.M, places.part(), 1);
    launch(stream_of(context), vectors.blocks(), block_threads, 0, spread_kernel<Unit>, static_cast<Unit*>(p.parts),
           static_cast<const Unit*>(p.d_rows), places, vectors);
  });
}

}  // namespace tessera::kernels::cuda
