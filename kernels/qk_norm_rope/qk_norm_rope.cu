// Bound by memory: each head is read once into the registers of the threads that hold it, its statistic is summed among them, and it is
// written. Forward moves two elements of T a value, backward three of each query and key head; the table and the weights come from the
// caches. Not yet measured.
#include "kernels/qk_norm_rope/qk_norm_rope.hpp"

#include "kernels/cuda/reduce.hpp"
#include "kernels/cuda/row_blocks.hpp"
#include "kernels/cuda/rows.hpp"
#include "kernels/qk_norm_rope/qk_norm_rope_sizes.hpp"
#include "kernels/rmsnorm/formulas.hpp"
#include "kernels/rope/rotation_cuda.hpp"

namespace tessera::kernels::cuda {
namespace {

using namespace tessera::cuda;
using namespace qk_norm_rope_sizes;

constexpr std::int64_t most_head_dim = 256;

template <int N, class T>
__device__ float add_squares(const Vector<T, N>& v, float sum) {
#pragma unroll
  for (int k = 0; k < N; ++k) sum = fmaf(to_float(v.value[k]), to_float(v.value[k]), sum);
  return sum;
}
template <int N, class T>
__device__ void scale(float (&out)[N], const Vector<T, N>& x, const Vector<T, N>& weight, float offset, float rstd) {
#pragma unroll
  for (int k = 0; k < N; ++k) out[k] = norm::scaled(to_float(x.value[k]), to_float(weight.value[k]) + offset, rstd);
}

/// Threads have the heads of all rows in turn: query and key heads, and value heads where they have to be copied. A group without a head,
/// and one with a value head, take part in the sum.
template <class T, class Whole, Pairing pairing>
__global__ void __launch_bounds__(block_threads) forward_kernel(QkNormRopeForward p, RowVectors vectors, unsigned group) {
  constexpr int N = vector_elements<T>;
  const auto [m, vector] = vectors.place();
  const unsigned head = vector / group;
  const std::int64_t i = static_cast<std::int64_t>(vector % group) * N, half = p.D / 2, held = m < vectors.rows ? half : 0;
  const HeadPairs<pairing> pairs{half, p.rotated / 2};
  const std::int64_t normed = head < p.H + p.G ? held : 0, at = (m * (p.H + 2 * p.G) + head) * p.D;
  const T *x = static_cast<const T*>(p.x) + at, *weight = static_cast<const T*>(head < p.H ? p.q_norm : p.k_norm);
  T* out = static_cast<T*>(p.out) + at;

  Vector<T, N> a, b, a_weight, b_weight;
  pairs.template load<Whole>(a, b, x, i, held), pairs.template load<Whole>(a_weight, b_weight, weight, i, normed);
  const std::int64_t position = position_of(m, p.T, normed > 0 ? p.document_starts : nullptr);
  const Rotation<N> rotation = load_rotation<Whole, N>(p.table + position * p.rotated, i, pairs.turned(normed));
  const float squares = warp_sum(add_squares(b, add_squares(a, 0)), static_cast<int>(group));
  const float rstd = norm::reciprocal_rms(squares, p.D, p.eps);
  if (normed == 0) {
    pairs.template store<Whole>(out, i, held, a, b);
    return;
  }
  if (p.rstd && i == 0) p.rstd[m * (p.H + p.G) + head] = rstd;
  float first[N], second[N];
  keep_packed(a), keep_packed(b);
  scale(first, a, a_weight, p.offset, rstd), scale(second, b, b_weight, p.offset, rstd);
  pairs.rotate(first, second, rotation, i, false);
  pairs.template store<Whole>(out, i, held, first, second);
}

/// Where head `r` of the query heads (or key heads) of all rows lies. Launches see to it that 32 bits hold it.
struct Place {
  unsigned m, head;
  __device__ Place(std::int64_t r, std::int64_t first, std::int64_t heads) {
    m = static_cast<unsigned>(r) / static_cast<unsigned>(heads);
    head = static_cast<unsigned>(first) + static_cast<unsigned>(r) - m * static_cast<unsigned>(heads);
  }
};

/// d_out weight x of N elements, added to sum.
template <int N, class T>
__device__ float add_dots(const float (&d_out)[N], const Vector<T, N>& weight, float offset, const Vector<T, N>& x, float sum) {
#pragma unroll
  for (int k = 0; k < N; ++k) sum = norm::add_dot(d_out[k], to_float(weight.value[k]) + offset, to_float(x.value[k]), sum);
  return sum;
}
/// d becomes the gradient of x, and N elements of d_weight are added to.
template <int N, class T>
__device__ void finish(float (&d)[N], float* d_weight, const Vector<T, N>& weight, float offset, const Vector<T, N>& x, float rstd,
                       float along_x) {
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const float v = to_float(x.value[k]);
    d_weight[k] = norm::add_weight_gradient(d[k], v, rstd, d_weight[k]);
    d[k] = norm::gradient(d[k], to_float(weight.value[k]) + offset, rstd, v * along_x);
  }
}

/// A block has one of the row blocks, of query heads or of key heads: its groups take the heads in turn, and sum d_weight in registers. A
/// thread has read what it writes.
template <class T, class Whole, Pairing pairing>
__global__ void __launch_bounds__(block_threads) backward_kernel(QkNormRopeBackward p, float* partial, HeadBlocks all, int group) {
  constexpr int N = vector_elements<T>;
  const bool of_query = blockIdx.x < all.query.count;
  const RowBlocks& blocks = of_query ? all.query : all.key;
  const std::int64_t block = blockIdx.x - (of_query ? 0 : all.query.count), first_head = of_query ? 0 : p.H, heads = of_query ? p.H : p.G;
  const std::int64_t half = p.D / 2, i = static_cast<std::int64_t>(static_cast<int>(threadIdx.x) % group) * N, end = blocks.end(block);
  const HeadPairs<pairing> pairs{half, p.rotated / 2};
  const T* weight = static_cast<const T*>(of_query ? p.q_norm : p.k_norm);
  Vector<T, N> a_weight, b_weight;
  pairs.template load<Whole>(a_weight, b_weight, weight, i, half);
  float d_weight[2 * N] = {};

  for (std::int64_t first = blocks.begin(block); first < end; first += block_threads / group) {
    const std::int64_t r = first + static_cast<int>(threadIdx.x) / group, held = r < end ? half : 0;
    const Place place(r, first_head, heads);
    const std::int64_t at = (place.m * (p.H + 2 * p.G) + place.head) * p.D;
    const T* x = static_cast<const T*>(p.x) + at;
    T* d = static_cast<T*>(p.d_qkv) + at;
    const float rstd = r < end ? p.rstd[place.m * (p.H + p.G) + place.head] : 0;
    float d_a[N], d_b[N];
    if constexpr (pairing == Pairing::halves)  // written out, here and below: else the compiler takes 20 registers more in bf16
      load<Whole>(d_a, d, i, held), load<Whole>(d_b, d + half, i, held);
    else
      pairs.template load<Whole>(d_a, d_b, d, i, held);
    Vector<T, N> a, b;
    pairs.template load<Whole>(a, b, x, i, held);
    const std::int64_t position = place.m % static_cast<unsigned>(p.T) - (p.document_starts && r < end ? p.document_starts[place.m] : 0);
    pairs.rotate(d_a, d_b, load_rotation<Whole, N>(p.table + position * p.rotated, i, pairs.turned(held)), i, true);

    const float dot = add_dots(d_b, b_weight, p.offset, b, add_dots(d_a, a_weight, p.offset, a, 0));
    const float along_x = norm::along_x(warp_sum(dot, group), p.D, rstd);
    keep_packed(a), keep_packed(b), keep_packed(a_weight), keep_packed(b_weight);
    finish(d_a, d_weight, a_weight, p.offset, a, rstd, along_x), finish(d_b, d_weight + N, b_weight, p.offset, b, rstd, along_x);
    if constexpr (pairing == Pairing::halves)
      store<Whole>(d, i, held, d_a), store<Whole>(d + half, i, held, d_b);
    else
      pairs.template store<Whole>(d, i, held, d_a, d_b);
  }
  partial += blockIdx.x * p.D;
  sum_over_groups(d_weight, group, [&](int lane, int e, float sum) {
    const std::int64_t pair = lane * N + e % N;
    if (pair < half) partial[e < N ? pairs.first(pair) : pairs.second(pair)] = sum;
  });
}

template <class T>
void forward(const Context& context, const QkNormRopeForward& p) {
  constexpr std::int64_t N = vector_elements<T>;
  const int group = group_of(p.D, N);
  const std::int64_t heads = p.H + (p.out == p.x ? 1 : 2) * p.G;
  const RowVectors vectors(p.M, heads * group * N, static_cast<int>(N));
  const bool whole_rows = whole_vectors(static_cast<int>(N), {p.D / 2, turned_features(p) / 2});
  with_whole(on_sixteen_bytes(p.out, p.x, p.q_norm, p.k_norm, p.table) && whole_rows, [&](auto whole) {
    with_pairing(p, [&](auto pairing, const auto& said) {
      launch(stream_of(context), vectors.blocks(), block_threads, 0, forward_kernel<T, decltype(whole), pairing()>, said, vectors,
             static_cast<unsigned>(group));
    });
  });
}

template <class T>
void backward(const Context& context, const QkNormRopeBackward& p) {
  constexpr int N = vector_elements<T>;
  const HeadBlocks blocks = head_blocks(p);
  auto* partial = reinterpret_cast<float*>(context.workspace.data());  // (query blocks + key blocks, D)
  const bool on_sixteen = on_sixteen_bytes(p.d_qkv, p.x, p.q_norm, p.k_norm, p.table);
  with_whole(on_sixteen && whole_vectors(N, {p.D / 2, turned_features(p) / 2}), [&](auto whole) {
    with_pairing(p, [&](auto pairing, const auto& said) {
      launch(stream_of(context), static_cast<unsigned>(blocks.query.count + blocks.key.count), block_threads, 0,
             backward_kernel<T, decltype(whole), pairing()>, said, partial, blocks, group_of(p.D, N));
    });
  });
  add_partial_sums(stream_of(context), p.d_q_norm, partial, blocks.query.count, p.D);
  add_partial_sums(stream_of(context), p.d_k_norm, partial + blocks.query.count * p.D, blocks.key.count, p.D);
}

template <class P>
bool fits(const P& p) {
  constexpr std::int64_t most = std::int64_t{1} << 31;
  return can_turn(p) && p.D <= most_head_dim && p.T > 0 && p.T < most && p.H > 0 && p.G > 0 && p.M * (p.H + p.G) < most;
}

}  // namespace

void qk_norm_rope_forward(const Context& context, const QkNormRopeForward& p) {
  if (p.M == 0) return;
  TESSERA_CUDA_REQUIRE(fits(p));
  with_float_type(p.dtype, [&](auto type) { forward<decltype(type)>(context, p); });
}

void qk_norm_rope_backward(const Context& context, const QkNormRopeBackward& p) {
  if (p.M == 0) return;
  TESSERA_CUDA_REQUIRE(fits(p));
  TESSERA_CUDA_REQUIRE(context.workspace.size() >= cuda::qk_norm_rope_backward_workspace_bytes(p));
  with_float_type(p.dtype, [&](auto type) { backward<decltype(type)>(context, p); });
}

}  // namespace tessera::kernels::cuda
