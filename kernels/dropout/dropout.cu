// Reads 1 element of T, or 2, and writes one; a counter draws for 4. Not yet measured.
#include "kernels/cuda/rows.hpp"
#include "kernels/dropout/dropout.hpp"

namespace tessera::kernels::cuda {
namespace {

using namespace tessera::cuda;

/// Aligned: vectors are whole, and begin with a counter. Else each element draws its counter again.
template <class T, class Aligned>
__global__ void __launch_bounds__(block_threads) dropout_kernel(Dropout p, DropoutDraw draw, RowVectors vectors) {
  constexpr int V = vector_elements<T>;
  const RowVectors::Place place = vectors.place();
  if (place.row >= vectors.rows) return;
  const std::int64_t column = static_cast<std::int64_t>(place.vector) * V, token = p.tokens[place.row];
  const std::int64_t at = place.row * p.N;
  T* y = static_cast<T*>(p.y) + at;
  float value[V], sum[V] = {};
  load<Aligned>(value, static_cast<const T*>(p.x) + at, column, p.N);
  if (p.accumulate) load<Aligned>(sum, static_cast<const T*>(y), column, p.N);
  std::uint32_t word[4] = {};
#pragma unroll
  for (int k = 0; k < V; ++k) {
    const std::int64_t feature = p.first + column + k;
    const int of_counter = Aligned::value ? k % 4 : static_cast<int>(feature % 4);
    if (token >= 0 && (!Aligned::value || of_counter == 0)) draw.words(word, static_cast<std::uint32_t>(feature / 4), p.stream, token);
    const std::uint32_t mine = of_counter == 0 ? word[0] : of_counter == 1 ? word[1] : of_counter == 2 ? word[2] : word[3];
    const float factor = token < 0 ? 1.0f : mine < draw.below ? 0.0f : draw.scale;
    value[k] = p.accumulate ? fmaf(factor, value[k], sum[k]) : factor * value[k];
  }
  store<Aligned>(y, column, p.N, value);
}

}  // namespace

void dropout(const Context& context, const Dropout& p) {
  TESSERA_CUDA_REQUIRE(p.rate >= 0 && p.rate < 1);
  if (p.M == 0 || p.N == 0) return;
  with_float_type(p.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int V = vector_elements<T>;
    const RowVectors vectors(p.M, p.N, V);
    with_whole(on_sixteen_bytes(p.y, p.x) && whole_vectors(V, {p.N}) && p.first % 4 == 0, [&](auto whole) {
      launch(stream_of(context), vectors.blocks(), block_threads, 0, dropout_kernel<T, decltype(whole)>, p, DropoutDraw(p), vectors);
    });
  });
}

}  // namespace tessera::kernels::cuda
