// One new token a sequence against the cache, which its key and value join on the way. The cache is cut into pieces of a fixed number of
// tokens (64 where D is above 8): a block takes one piece of one key/value head and leaves, for each query head of the group, its largest
// score, its sum and its unscaled output; a second kernel joins the pieces in order. Pieces depend on the position alone, so bits depend
// neither on the device nor on the cache's capacity. The position is read on the device, so that a launch is the same for each token: the
// grid has the capacity's pieces, and blocks beyond the text end at once.
//
// Bound by memory: 4 G D bytes a token of the cache in bf16, each read once for all query heads of its group; the floor is 4 G D length /
// bandwidth. A thread asks for four tokens' keys and values before it uses any, so that a block has its whole piece (32 KiB at D = 128) on
// the way at once. 8192 tokens of two key/value heads are 256 blocks. Not yet measured.
#include <algorithm>

#include "kernels/attention/attention_kernels.hpp"
#include "kernels/cuda/reduce.hpp"
#include "kernels/cuda/vector.hpp"

namespace tessera::kernels::cuda {
namespace {
using namespace tessera::cuda;

constexpr int tokens_of_thread = 4, heads_at_once = 4, most_threads = 512, join_warps = 8;

/// How a block shares out a piece: `lanes` threads, a power of two, have a token, eight columns each, and groups of so many threads have
/// four tokens each.
struct Split {
  int lanes, groups, tokens;
  explicit Split(std::int64_t D) : lanes(lanes_of_row(D)), groups(std::max(16, warp_lanes / lanes)), tokens(tokens_of_thread * groups) {}
  __device__ __forceinline__ int place(int thread) const { return thread & (lanes - 1); }
  __device__ __forceinline__ int group(int thread) const { return thread >> (__ffs(lanes) - 1); }
  int threads() const { return groups * lanes; }
  std::int64_t pieces(std::int64_t length) const { return ceil_div(length, tokens); }
  /// Scores (heads_at_once, tokens) and partial sums (groups, heads_at_once, 8 * lanes).
  std::size_t shared_bytes() const { return static_cast<std::size_t>(heads_at_once * (tokens + 8 * threads())) * sizeof(float); }
};

// A piece's result for one query head, in workspace (B, H, pieces of the capacity, D + 2): largest score (base 2), sum, output.
struct Piece {
  float* base;
  __device__ __forceinline__ Piece(float* workspace, const AttentionDecode& a, std::int64_t pieces, std::int64_t batch, std::int64_t head,
                                   std::int64_t piece)
      : base(workspace + ((batch * a.shape.H + head) * pieces + piece) * (a.shape.D + 2)) {}
  __device__ __forceinline__ float& most() const { return base[0]; }
  __device__ __forceinline__ float& total() const { return base[1]; }
  __device__ __forceinline__ float* out() const { return base + 2; }
};

__device__ __forceinline__ int position_of(const AttentionDecode& a) {
  const int position = *a.position;
  require(position >= 0 && position < a.capacity);
  return position;
}

constexpr int values = tokens_of_thread * heads_at_once;

/// Sums each value over the lanes of a token. With each halving of the lanes a lane gives half of its values away and adds up the other
/// half, so that this takes as many exchanges as there are values. Returns the first value that x[0] is now the sum of; x[i] is that of the
/// i-th after it, and there are values / lanes of them, or one.
template <int held = values>
__device__ __forceinline__ int sum_over_lanes(float (&x)[values], int lanes, int place) {
  constexpr int half = held / 2;
  if (lanes == 1) return 0;
  const int bits = lanes / 2;
  if constexpr (half == 0) {
    x[0] += __shfl_xor_sync(all_lanes, x[0], bits);
    return 0;
  } else {
    const bool upper = (place & bits) != 0;
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const float keep = upper ? x[i + half] : x[i], give = upper ? x[i] : x[i + half];
      x[i] = keep + __shfl_xor_sync(all_lanes, give, bits);
    }
    return (upper ? half : 0) + sum_over_lanes<half>(x, bits, place);
  }
}

/// Scores (tokens) become weights. One warp.
__device__ __forceinline__ void weigh(float* scores, int tokens, int lane, float& most, float& total) {
  most = -INFINITY, total = 0;
  for (int c = lane; c < tokens; c += warp_lanes) most = fmaxf(most, scores[c]);
  most = warp_max(most);
  for (int c = lane; c < tokens; c += warp_lanes) {
    const float weight = exp2f(scores[c] - most);
    scores[c] = weight;
    total += weight;
  }
  total = warp_sum(total);
}

template <class T, class Whole>
__global__ void __launch_bounds__(most_threads) decode_piece(AttentionDecode a, float* workspace, float scale_base2, Split split) {
  const int position = position_of(a), begin = static_cast<int>(blockIdx.x) * split.tokens;
  if (begin > position) return;
  float *scores = dynamic_shared<float>(), *partial = scores + heads_at_once * split.tokens;
  const int D = static_cast<int>(a.shape.D), thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int place = split.place(thread), mine = split.group(thread), column = 8 * place, row = 8 * split.lanes;
  const int heads = static_cast<int>(a.shape.H) / static_cast<int>(a.shape.G), first_head = static_cast<int>(blockIdx.y) * heads;
  const std::int64_t stride = a.shape.G * D, in_cache = (blockIdx.z * a.capacity * a.shape.G + blockIdx.y) * D;
  T *keys = static_cast<T*>(a.cache_k) + in_cache, *cached_values = static_cast<T*>(a.cache_v) + in_cache;
  const T* q = static_cast<const T*>(a.qkv) + blockIdx.z * (a.shape.H + 2 * a.shape.G) * D;
  const T *new_key = q + (a.shape.H + blockIdx.y) * D, *new_value = new_key + stride;

  // 1. The piece, into registers. The new token comes from qkv, and goes into the cache.
  Vector<T, 8> k[tokens_of_thread], v[tokens_of_thread];
#pragma unroll
  for (int i = 0; i < tokens_of_thread; ++i) {
    const int token = begin + i * split.groups + mine;
    k[i] = load<Whole, 8>(token == position ? new_key : keys + token * stride, column, token <= position ? D : 0);
    v[i] = load<Whole, 8>(token == position ? new_value : cached_values + token * stride, column, token <= position ? D : 0);
  }
#pragma unroll
  for (int i = 0; i < tokens_of_thread; ++i)
    if (const int token = begin + i * split.groups + mine; token == position) {
      store<Whole>(keys + token * stride, column, D, k[i]);
      store<Whole>(cached_values + token * stride, column, D, v[i]);
    }

  for (int head = first_head; head < first_head + heads; head += heads_at_once) {
    const int count = min(heads_at_once, first_head + heads - head);
#pragma unroll
    for (int i = 0; i < tokens_of_thread; ++i) keep_packed(k[i]), keep_packed(v[i]);
    // 2. Scores: a lane has eight columns of each of its tokens.
    float x[values] = {};
#pragma unroll
    for (int h = 0; h < heads_at_once; ++h) {
      if (h >= count) break;
      float of_head[8];
      load<Whole>(of_head, q + (head + h) * static_cast<std::int64_t>(D), column, D);
#pragma unroll
      for (int i = 0; i < tokens_of_thread; ++i)
#pragma unroll
        for (int d = 0; d < 8; ++d) x[i * heads_at_once + h] = fmaf(of_head[d], to_float(k[i].value[d]), x[i * heads_at_once + h]);
    }
    const int first = sum_over_lanes(x, split.lanes, place);
#pragma unroll
    for (int j = 0; j < values; ++j)
      if (split.lanes <= values ? j * split.lanes < values : j == 0 && place % 2 == 0) {  // two of 32 lanes have the same sum
        const int i = (first + j) / heads_at_once, h = (first + j) % heads_at_once, in_piece = i * split.groups + mine;
        scores[h * split.tokens + in_piece] = begin + in_piece <= position ? x[j] * scale_base2 : -INFINITY;
      }
    __syncthreads();
    // 3. Weights: a warp has a head.
    for (int h = thread / warp_lanes; h < count; h += threads / warp_lanes) {
      const Piece piece(workspace, a, gridDim.x, blockIdx.z, head + h, blockIdx.x);
      float most, total;
      weigh(scores + h * split.tokens, split.tokens, thread % warp_lanes, most, total);
      if (thread % warp_lanes == 0) piece.most() = most, piece.total() = total;
    }
    __syncthreads();
    // 4. Each thread's tokens, weighted; then the groups in order.
#pragma unroll
    for (int h = 0; h < heads_at_once; ++h) {
      if (h >= count) break;
      float out[8] = {};
#pragma unroll
      for (int i = 0; i < tokens_of_thread; ++i) {
        const float weight = scores[h * split.tokens + i * split.groups + mine];
#pragma unroll
        for (int d = 0; d < 8; ++d) out[d] = fmaf(weight, to_float(v[i].value[d]), out[d]);
      }
      store_shared(partial + (mine * heads_at_once + h) * row, column, row, Converter<float, 8>::of(out));
    }
    __syncthreads();
    for (int c = thread; c < count * D; c += threads) {
      const int h = c / D, d = c % D;
      float sum_of_groups = 0;
      for (int g = 0; g < split.groups; ++g) sum_of_groups += partial[(g * heads_at_once + h) * row + d];
      Piece(workspace, a, gridDim.x, blockIdx.z, head + h, blockIdx.x).out()[d] = sum_of_groups;
    }
  }
}

/// A block joins 32 columns of one query head: each warp has every eighth piece, and the warps are added in order.
template <class T>
__global__ void __launch_bounds__(join_warps* warp_lanes)
    join_pieces(AttentionDecode a, float* workspace, std::int64_t pieces, int tokens) {
  __shared__ float totals[join_warps], outs[join_warps][warp_lanes];
  const int present = position_of(a) / tokens + 1, lane = static_cast<int>(threadIdx.x) % warp_lanes;
  const int warp = static_cast<int>(threadIdx.x) / warp_lanes;
  const std::int64_t head = blockIdx.y, batch = blockIdx.z, d = static_cast<std::int64_t>(blockIdx.x) * warp_lanes + lane;
  const auto piece_of = [&](int i) { return Piece(workspace, a, pieces, batch, head, i); };
  float most = -INFINITY, total = 0, out = 0;
  for (int i = static_cast<int>(threadIdx.x); i < present; i += join_warps * warp_lanes) most = fmaxf(most, piece_of(i).most());
  most = block_max(most);
#pragma unroll 8
  for (int i = warp; i < present; i += join_warps) {
    const Piece piece = piece_of(i);
    const float weight = exp2f(piece.most() - most);
    total = fmaf(piece.total(), weight, total);
    out = fmaf(d < a.shape.D ? piece.out()[d] : 0, weight, out);
  }
  outs[warp][lane] = out;
  if (lane == 0) totals[warp] = total;
  __syncthreads();
  if (warp > 0 || d >= a.shape.D) return;
  total = out = 0;
  for (int w = 0; w < join_warps; ++w) total += totals[w], out += outs[w][lane];
  static_cast<T*>(a.out)[(batch * a.shape.H + head) * a.shape.D + d] = rounded<T>(out / total);
}

template <class T>
void decode(const Context& context, const AttentionDecode& a) {
  const AttentionShape& s = a.shape;
  const Split split(s.D);
  const std::int64_t pieces = split.pieces(a.capacity);
  auto* workspace = reinterpret_cast<float*>(context.workspace.data());
  const dim3 grid(static_cast<unsigned>(pieces), static_cast<unsigned>(s.G), static_cast<unsigned>(s.B));
  with_whole(on_sixteen_bytes(a.qkv, a.cache_k, a.cache_v) && whole_vectors(8, {s.D}), [&](auto whole) {
    launch(stream_of(context), grid, static_cast<unsigned>(split.threads()), split.shared_bytes(), decode_piece<T, decltype(whole)>, a,
           workspace, log2_e / sqrtf(static_cast<float>(s.D)), split);
  });
  launch(stream_of(context), dim3(static_cast<unsigned>(ceil_div(s.D, warp_lanes)), static_cast<unsigned>(s.H), static_cast<unsigned>(s.B)),
         join_warps * warp_lanes, 0, join_pieces<T>, a, workspace, pieces, split.tokens);
}

}  // namespace

std::size_t attention_decode_workspace_bytes(const AttentionDecode& a) {
  check_shape(a.shape);
  return static_cast<std::size_t>(a.shape.B * a.shape.H * Split(a.shape.D).pieces(a.capacity) * (a.shape.D + 2)) * sizeof(float);
}

void attention_decode(const Context& context, const AttentionDecode& a) {
  check_shape(a.shape);
  TESSERA_CUDA_REQUIRE(a.capacity > 0 && a.capacity < (1 << 30) && a.shape.H < 65536);
  TESSERA_CUDA_REQUIRE(context.workspace.size() >= cuda::attention_decode_workspace_bytes(a));
  if (a.shape.B == 0) return;
  a.shape.dtype == DType::f32 ? decode<float>(context, a) : decode<bf16>(context, a);
}

}  // namespace tessera::kernels::cuda
