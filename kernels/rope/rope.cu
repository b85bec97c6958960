// Bound by memory: each element of the rotated heads is read and written once; the table comes from the caches, since all heads of a
// token share its row. The host's operations, and so its bits. Not yet measured.
#include "kernels/rope/rope.hpp"

#include "kernels/cuda/rows.hpp"
#include "kernels/rope/rotation_cuda.hpp"

namespace tessera::kernels::cuda {
namespace {

using namespace tessera::cuda;

/// A thread has N pairs of one head, of those that are turned.
template <class T, class Whole, Pairing pairing>
__global__ void __launch_bounds__(block_threads) rope_kernel(Rope p, RowVectors vectors, unsigned in_head) {
  constexpr int N = vector_elements<T>;
  const auto [m, vector] = vectors.place();
  if (m >= vectors.rows) return;
  const std::int64_t half = p.rotated / 2, i = static_cast<std::int64_t>(vector % in_head) * N;
  const HeadPairs<pairing> pairs{half, half};  // as if there were nothing else
  T* head = static_cast<T*>(p.x) + m * p.stride + vector / in_head * p.D;
  float a[N], b[N];
  pairs.template load<Whole>(a, b, head, i, half);
  rotate_pairs(a, b, load_rotation<Whole, N>(p.table + position_of(m, p.T, p.document_starts) * p.rotated, i, half), p.inverse);
  pairs.template store<Whole>(head, i, half, a, b);
}

}  // namespace

void rope(const Context& context, const Rope& p) {
  if (p.M == 0 || p.heads == 0) return;
  TESSERA_CUDA_REQUIRE(can_turn(p) && p.T > 0 && p.stride >= p.heads * p.D);
  with_float_type(p.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr std::int64_t N = vector_elements<T>;
    Rope said = p;
    said.rotated = turned_features(p);
    const std::int64_t half = said.rotated / 2, in_head = ceil_div(half, N);
    const RowVectors vectors(p.M, p.heads * in_head * N, static_cast<int>(N));
    const bool whole_rows = whole_vectors(static_cast<int>(N), {half, p.D, p.stride});
    with_whole(on_sixteen_bytes(p.x, p.table) && whole_rows, [&](auto whole) {
      const auto run = [&](auto pairing) {
        launch(stream_of(context), vectors.blocks(), block_threads, 0, rope_kernel<T, decltype(whole), pairing()>, said, vectors,
               static_cast<unsigned>(in_head));
      };
      if (p.neighbours)
        run(std::integral_constant<Pairing, Pairing::neighbours>{});
      else
        run(std::integral_constant<Pairing, Pairing::halves>{});
    });
  });
}

}  // namespace tessera::kernels::cuda
