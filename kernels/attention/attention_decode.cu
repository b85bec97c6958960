// One new token a sequence against the cache. The cache is split into pieces of 128 tokens: a block takes one piece of one key/value head
// and leaves, for each query head of the group, its largest score, its sum and its unscaled output; a second kernel joins the pieces in
// order. Pieces depend on the length alone, so bits do not depend on the device.
//
// Bound by memory: the cache's `length` tokens are read once (a group's second head finds its piece in the first cache), 4 G D bytes a
// token in bf16. Not yet measured.
#include "kernels/attention/attention_kernels.hpp"

namespace tessera::kernels::cuda {
namespace {
using namespace tessera::cuda;

constexpr int piece_tokens = 128, threads = 128, tokens_at_once = 4;

std::int64_t pieces_of(std::int64_t length) { return ceil_div(length, piece_tokens); }

// A piece's result for one query head, in workspace (B, H, pieces, D + 2): largest score (base 2), sum, output.
struct Piece {
  float* base;
  __device__ __forceinline__ Piece(float* workspace, const AttentionDecode& a, std::int64_t pieces, std::int64_t batch, std::int64_t head,
                                   std::int64_t piece)
      : base(workspace + ((batch * a.shape.H + head) * pieces + piece) * (a.shape.D + 2)) {}
  __device__ __forceinline__ float& most() const { return base[0]; }
  __device__ __forceinline__ float& total() const { return base[1]; }
  __device__ __forceinline__ float* out() const { return base + 2; }
};

// A softmax on its way over tokens: what lanes that share a token hold of it, eight columns each.
struct Running {
  float most = -INFINITY, total = 0, out[8] = {};
};

// Tokens first, first + step, ... of the next few, up to end. `lanes` lanes of a row add up a score.
template <class T>
__device__ __forceinline__ void take_tokens(Running& r, const float (&q)[8], const T* keys, const T* values, std::int64_t stride, int first,
                                            int step, int end, int lanes, int valid, bool wide) {
  float scores[tokens_at_once], v[tokens_at_once][8];
#pragma unroll
  for (int i = 0; i < tokens_at_once; ++i) {
    const int token = first + i * step;
    float k[8] = {};
    for (float& x : v[i]) x = 0;
    if (token < end && valid > 0) {
      load_8(k, keys + token * stride, valid, wide);
      load_8(v[i], values + token * stride, valid, wide);
    }
    scores[i] = 0;
#pragma unroll
    for (int d = 0; d < 8; ++d) scores[i] = fmaf(q[d], k[d], scores[i]);
  }
  float most = r.most;
#pragma unroll
  for (int i = 0; i < tokens_at_once; ++i) {
    for (int bits = lanes / 2; bits > 0; bits /= 2) scores[i] += __shfl_xor_sync(all_lanes, scores[i], bits);
    if (first + i * step >= end) scores[i] = -INFINITY;
    most = fmaxf(most, scores[i]);
  }
  if (first >= end) return;
  const float rescale = exp2f(r.most - most);
  r.most = most;
  r.total *= rescale;
#pragma unroll
  for (int d = 0; d < 8; ++d) r.out[d] *= rescale;
#pragma unroll
  for (int i = 0; i < tokens_at_once; ++i) {
    const float p = exp2f(scores[i] - most);
    r.total += p;
#pragma unroll
    for (int d = 0; d < 8; ++d) r.out[d] = fmaf(p, v[i][d], r.out[d]);
  }
}

template <class T>
__global__ void __launch_bounds__(threads) decode_piece(AttentionDecode a, float* workspace, float scale_base2, int lanes, bool wide) {
  __shared__ float most[threads], total[threads], out[threads * 8];  // of each group of lanes
  const int D = static_cast<int>(a.shape.D), thread = static_cast<int>(threadIdx.x);
  const int place = thread % lanes, mine = thread / lanes, groups = threads / lanes, heads = static_cast<int>(a.shape.H / a.shape.G);
  const int begin = static_cast<int>(blockIdx.x) * piece_tokens, end = min(begin + piece_tokens, static_cast<int>(a.length));
  const std::int64_t stride = a.shape.G * D, at = (blockIdx.z * a.capacity * a.shape.G + blockIdx.y) * D + 8 * place;
  const T *keys = static_cast<const T*>(a.cache_k) + at, *values = static_cast<const T*>(a.cache_v) + at;
  for (int h = 0; h < heads; ++h) {
    const std::int64_t head = blockIdx.y * heads + h;
    float q[8] = {};
    if (8 * place < D) load_8(q, static_cast<const T*>(a.q) + (blockIdx.z * a.shape.H + head) * D + 8 * place, D - 8 * place, wide);
    for (float& x : q) x *= scale_base2;
    Running running;
    for (int first = begin; first < end; first += groups * tokens_at_once)
      take_tokens(running, q, keys, values, stride, first + mine, groups, end, lanes, D - 8 * place, wide);
    __syncthreads();  // all have read the last head's
    if (place == 0) {
      most[mine] = running.most;
      total[mine] = running.total;
    }
    for (int d = 0; d < 8; ++d) out[mine * lanes * 8 + 8 * place + d] = running.out[d];
    __syncthreads();
    float piece_most = -INFINITY;
    for (int g = 0; g < groups; ++g) piece_most = fmaxf(piece_most, most[g]);
    const Piece piece(workspace, a, gridDim.x, blockIdx.z, head, blockIdx.x);
    for (int d = thread; d < D; d += threads) {
      float sum = 0;
      for (int g = 0; g < groups; ++g) sum = fmaf(out[g * lanes * 8 + d], exp2f(most[g] - piece_most), sum);
      piece.out()[d] = sum;
    }
    if (thread == 0) {
      float sum = 0;
      for (int g = 0; g < groups; ++g) sum = fmaf(total[g], exp2f(most[g] - piece_most), sum);
      piece.most() = piece_most;
      piece.total() = sum;
    }
  }
}

__device__ __forceinline__ void store(float* to, float x) { *to = x; }
__device__ __forceinline__ void store(bf16* to, float x) { to->bits = __bfloat16_as_ushort(__float2bfloat16_rn(x)); }

// Thread d joins column d of a query head's pieces.
template <class T>
__global__ void join_pieces(AttentionDecode a, float* workspace, std::int64_t pieces) {
  const std::int64_t head = blockIdx.x, batch = blockIdx.y;
  const auto d = static_cast<int>(threadIdx.x);
  if (d >= a.shape.D) return;
  float most = -INFINITY, total = 0, out = 0;
  for (std::int64_t i = 0; i < pieces; ++i) most = fmaxf(most, Piece(workspace, a, pieces, batch, head, i).most());
#pragma unroll 4
  for (std::int64_t i = 0; i < pieces; ++i) {
    const Piece piece(workspace, a, pieces, batch, head, i);
    const float weight = exp2f(piece.most() - most);
    total = fmaf(piece.total(), weight, total);
    out = fmaf(piece.out()[d], weight, out);
  }
  store(static_cast<T*>(a.out) + (batch * a.shape.H + head) * a.shape.D + d, out / total);
}

template <class T>
void decode(const Context& context, const AttentionDecode& a) {
  const AttentionShape& s = a.shape;
  const std::int64_t pieces = pieces_of(a.length);
  auto* workspace = reinterpret_cast<float*>(context.workspace.data());
  const auto address =
      reinterpret_cast<std::uintptr_t>(a.q) | reinterpret_cast<std::uintptr_t>(a.cache_k) | reinterpret_cast<std::uintptr_t>(a.cache_v);
  const dim3 grid(static_cast<unsigned>(pieces), static_cast<unsigned>(s.G), static_cast<unsigned>(s.B));
  launch(stream_of(context), grid, threads, 0, decode_piece<T>, a, workspace, log2_e / sqrtf(static_cast<float>(s.D)), lanes_of_row(s.D),
         s.D % 8 == 0 && address % 16 == 0);
  launch(stream_of(context), dim3(static_cast<unsigned>(s.H), static_cast<unsigned>(s.B)), static_cast<unsigned>(round_up(s.D, warp_lanes)),
         0, join_pieces<T>, a, workspace, pieces);
}

}  // namespace

std::size_t attention_decode_workspace_bytes(const AttentionDecode& a) {
  check_shape(a.shape);
  return static_cast<std::size_t>(a.shape.B * a.shape.H * pieces_of(a.capacity) * (a.shape.D + 2)) * sizeof(float);
}

void attention_decode(const Context& context, const AttentionDecode& a) {
  check_shape(a.shape);
  TESSERA_CUDA_REQUIRE(a.length > 0 && a.length <= a.capacity && a.length < (1 << 30));
  TESSERA_CUDA_REQUIRE(context.workspace.size() >= cuda::attention_decode_workspace_bytes(a));
  if (a.shape.B == 0) return;
  a.shape.dtype == DType::f32 ? decode<float>(context, a) : decode<bf16>(context, a);
}

}  // namespace tessera::kernels::cuda
