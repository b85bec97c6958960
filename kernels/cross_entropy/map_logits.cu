// Bound by memory: reads and writes 4 bytes a logit. Not yet measured.
#include "kernels/cross_entropy/logit_map_device.hpp"
#include "kernels/cuda/vector.hpp"

namespace tessera::kernels::cuda {
namespace {

using namespace tessera::cuda;

template <class Whole>
__global__ void __launch_bounds__(block_threads) map_logits_kernel(float* x, std::int64_t n, LogitMap map) {
  constexpr int N = vector_elements<float>, unroll = 2;
  const logit_map::Constants constants(map);
  const Tile<N, unroll> tile;
  Vector<float, N> v[unroll];
#pragma unroll
  for (int u = 0; u < unroll; ++u) v[u] = load<Whole, N>(x, tile.at(u), n);
#pragma unroll
  for (int u = 0; u < unroll; ++u) {
#pragma unroll
    for (int k = 0; k < N; ++k) v[u].value[k] = logit_map::mapped_on_device(v[u].value[k], constants).value;
    store<Whole>(x, tile.at(u), n, v[u]);
  }
}

}  // namespace

void map_logits(const Context& context, float* x, std::int64_t n, const LogitMap& map) {
  if (n == 0 || map == LogitMap{}) return;
  constexpr int N = vector_elements<float>;
  with_whole(on_sixteen_bytes(x) && whole_vectors(N, {n}), [&](auto whole) {
    launch(stream_of(context), Tile<N, 2>::blocks(n), block_threads, 0, map_logits_kernel<decltype(whole)>, x, n, map);
  });
}

}  // namespace tessera::kernels::cuda
