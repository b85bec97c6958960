// One new token a sequence against the cache, which its key and value join on the way. The cache is cut into pieces of a fixed number of
// tokens (64 where D is above 8): a block takes a piece of one key/value head and leaves, for each query head of the group, its largest
// score, its sum and its unscaled output; a second kernel joins the pieces in order. Pieces that lie before a window are passed over, and
// what lies before it in its first piece is not read: the cache may hold a later token there. What pieces there are depends on the position
// and the window alone, so bits depend neither on the device nor on the cache's capacity. The position is read on the device, so that a
// launch is the same for each token.
//
// Bound by memory: 4 G D bytes a token of the cache in bf16, each read once for all query heads of its group; the floor is 4 G D length /
// bandwidth. A thread asks for four tokens' keys and values before it uses any, so that a block has its whole piece (32 KiB at D = 128) on
// the way at once, and a multiprocessor two of them: 8192 tokens of two key/value heads are 256 blocks. Not yet measured.
#include <algorithm>
#include <cfloat>

#include "kernels/attention/attention_kernels.hpp"
#include "kernels/attention/softcap.hpp"
#include "kernels/cuda/reduce.hpp"
#include "kernels/cuda/vector.hpp"

namespace tessera::kernels::cuda {
namespace {
using namespace tessera::cuda;

constexpr int heads_at_once = 4, most_threads = 512, join_warps = 8, joined_at_once = 8;
// Twice what 132 multiprocessors hold at D = 128. More would only be blocks that find nothing to do in a text far below the capacity.
constexpr std::int64_t most_blocks = 528;

/// How a block shares out a piece: `lanes` threads, a power of two, have a token, eight columns each, and groups of so many threads have
/// four tokens each.
struct Split {
  int lanes, groups, tokens;
  explicit Split(std::int64_t D) : lanes(lanes_of_row(D)), groups(groups_of_piece(D)), tokens(tokens_of_thread * groups) {}
  __device__ __forceinline__ int place(int thread) const { return thread & (lanes - 1); }
  __device__ __forceinline__ int group(int thread) const { return thread >> (__ffs(lanes) - 1); }
  int threads() const { return groups * lanes; }
  /// Scores (heads_at_once, tokens), partial sums (groups, heads_at_once, 8 * lanes) and queries (heads_at_once, 8 * lanes).
  std::size_t shared_bytes() const { return static_cast<std::size_t>(heads_at_once * (tokens + 8 * (threads() + lanes))) * sizeof(float); }
};

// A piece's result for one query head, in workspace (B, H, pieces that are seen, Dv + 2): largest score (base 2), sum, output.
struct Piece {
  float* base;
  __device__ __forceinline__ Piece(float* workspace, const AttentionDecode& a, std::int64_t pieces, std::int64_t batch, std::int64_t head,
                                   std::int64_t piece)
      : base(workspace + ((batch * a.shape.H + head) * pieces + piece) * (a.shape.Dv + 2)) {}
  __device__ __forceinline__ float& most() const { return base[0]; }
  __device__ __forceinline__ float& total() const { return base[1]; }
  __device__ __forceinline__ float* out() const { return base + 2; }
};

__device__ __forceinline__ int position_of(const AttentionDecode& a) {
  const int position = *a.position;
  require(position >= 0 && (position < a.capacity || holds_a_window(a)));
  return position;
}

/// The first token that its queries see.
__device__ __forceinline__ int first_token(const AttentionDecode& a, int position) {
  return a.shape.window > 0 && a.shape.window <= position ? position + 1 - static_cast<int>(a.shape.window) : 0;
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

/// What a thread holds of its block's key/value head and of the piece at hand.
template <class T, class Whole>
struct Decoding {
  const AttentionDecode& a;
  const Split& split;
  int position, first = first_token(a, position), thread = static_cast<int>(threadIdx.x), D = static_cast<int>(a.shape.D);
  int Dv = static_cast<int>(a.shape.Dv);
  int place = split.place(thread), mine = split.group(thread), column = 8 * place, row = 8 * split.lanes;
  int rows = static_cast<int>(a.capacity), lap = position / rows * rows;  // lap: the token of row 0
  std::int64_t first_row = static_cast<std::int64_t>(blockIdx.z) * rows;
  T* keys = static_cast<T*>(a.cached_k.data) + first_row * a.cached_k.stride + blockIdx.y * D;
  T* cached_values = static_cast<T*>(a.cached_v.data) + first_row * a.cached_v.stride + blockIdx.y * Dv;
  const T* q = static_cast<const T*>(a.qkv.q.data) + blockIdx.z * a.qkv.q.stride;
  float *scores = dynamic_shared<float>(), *partial = scores + heads_at_once * split.tokens;
  float* queries = partial + heads_at_once * row * split.groups;
  Vector<T, 8> k[tokens_of_thread], v[tokens_of_thread];

  __device__ __forceinline__ Decoding(const AttentionDecode& a, const Split& split) : a(a), split(split), position(position_of(a)) {}

  /// Where a token that is seen lies in the cache: in row 0 or behind it, or in what is left of the lap before.
  __device__ __forceinline__ std::int64_t row_of(int token) const { return token - lap + (token < lap ? rows : 0); }
  __device__ __forceinline__ bool sees(int token) const { return first <= token && token <= position; }

  /// The piece, into registers. The new token comes from qkv, and goes into the cache.
  __device__ __forceinline__ void load_piece(int begin) {
    const T* new_key = static_cast<const T*>(a.qkv.k.data) + blockIdx.z * a.qkv.k.stride + blockIdx.y * D;
    const T* new_value = static_cast<const T*>(a.qkv.v.data) + blockIdx.z * a.qkv.v.stride + blockIdx.y * Dv;
#pragma unroll
    for (int i = 0; i < tokens_of_thread; ++i) {
      const int token = begin + i * split.groups + mine;
      k[i] = load<Whole, 8>(token == position ? new_key : keys + row_of(token) * a.cached_k.stride, column, sees(token) ? D : 0);
      v[i] =
          load<Whole, 8>(token == position ? new_value : cached_values + row_of(token) * a.cached_v.stride, column, sees(token) ? Dv : 0);
    }
#pragma unroll
    for (int i = 0; i < tokens_of_thread; ++i)
      if (const int token = begin + i * split.groups + mine; token == position) {
        store<Whole>(keys + row_of(token) * a.cached_k.stride, column, D, k[i]);
        store<Whole>(cached_values + row_of(token) * a.cached_v.stride, column, Dv, v[i]);
      }
  }

  /// Queries of `count` heads, into shared memory: read by each lane itself they would be as many waits for the second-level cache.
  __device__ __forceinline__ void share_queries(int head, int count) {
    for (int c = thread; c < count * row; c += static_cast<int>(blockDim.x)) {
      const int d = c & (row - 1);
      queries[c] = d < D ? to_float(q[(head + c / row) * static_cast<std::int64_t>(D) + d]) : 0;
    }
  }

  /// Scores of `count` heads: a lane has eight columns of each of its tokens.
  __device__ __forceinline__ void score(int begin, int count, float scale_base2) {
    float x[values] = {};
#pragma unroll
    for (int h = 0; h < heads_at_once; ++h) {
      if (h >= count) break;
      float of_head[8];
      load<std::true_type>(of_head, queries + h * row, column, row);
#pragma unroll
      for (int i = 0; i < tokens_of_thread; ++i)
#pragma unroll
        for (int d = 0; d < 8; ++d) x[i * heads_at_once + h] = fmaf(of_head[d], to_float(k[i].value[d]), x[i * heads_at_once + h]);
    }
    const int first_value = sum_over_lanes(x, split.lanes, place);
#pragma unroll
    for (int j = 0; j < values; ++j)
      if (split.lanes <= values ? j * split.lanes < values : j == 0 && place % 2 == 0) {  // two of 32 lanes have the same sum
        const int i = (first_value + j) / heads_at_once, h = (first_value + j) % heads_at_once, token = begin + i * split.groups + mine;
        scores[h * split.tokens + token - begin] = sees(token) ? x[j] * scale_base2 : -INFINITY;
      }
  }

  /// A head's scores of the tokens that count are bent below the cap. One warp, each lane those that it weighs.
  __device__ __forceinline__ void bend(float* of_head, int begin, int lane, float cap_base2) const {
    for (int c = lane; c < split.tokens; c += warp_lanes)
      if (sees(begin + c)) of_head[c] = tanh_of_score(of_head[c]) * cap_base2;
  }

  /// This thread's tokens by their weights.
  __device__ __forceinline__ void add_values(int count) {
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
  }

  /// Column d of a head, over the groups in order.
  __device__ __forceinline__ float sum_of_groups(int h, int d) const {
    float sum = 0;
    for (int g = 0; g < split.groups; ++g) sum += partial[(g * heads_at_once + h) * row + d];
    return sum;
  }
};

/// The workspace has room for so many pieces a head. A block takes a piece, then the one gridDim.x further on. Capped apart: with what a
/// cap takes of registers the compiler would order the other's loads anew.
template <class T, class Whole, bool capped>
__global__ void __launch_bounds__(most_threads)
    decode_pieces(AttentionDecode a, float* workspace, std::int64_t pieces, float scale_base2, Split split, float cap_base2) {
  Decoding<T, Whole> work(a, split);
  const int thread = work.thread, threads = static_cast<int>(blockDim.x), lane = thread % warp_lanes;
  const int heads = static_cast<int>(a.shape.H) / static_cast<int>(a.shape.G), first_head = static_cast<int>(blockIdx.y) * heads;
  const int before = work.first / split.tokens, first_piece = before + static_cast<int>(blockIdx.x);
  for (int piece = first_piece; piece <= work.position / split.tokens; piece += static_cast<int>(gridDim.x)) {
    const int begin = piece * split.tokens;
    work.load_piece(begin);
    if (piece == first_piece) {
      work.share_queries(first_head, min(heads_at_once, heads));
      __syncthreads();
    }
    for (int head = first_head; head < first_head + heads; head += heads_at_once) {
      const int count = min(heads_at_once, first_head + heads - head);
      const auto result = [&](int h) { return Piece(workspace, a, pieces, blockIdx.z, head + h, piece - before); };
#pragma unroll
      for (int i = 0; i < tokens_of_thread; ++i) keep_packed(work.k[i]), keep_packed(work.v[i]);
      work.score(begin, count, scale_base2);
      __syncthreads();
      if (heads > heads_at_once) {  // or they stay: the next turn's, or of the next piece's first
        const int next = head + heads_at_once < first_head + heads ? head + heads_at_once : first_head;
        work.share_queries(next, min(heads_at_once, first_head + heads - next));
      }
      for (int h = thread / warp_lanes; h < count; h += threads / warp_lanes) {  // a warp has a head
        float most, total;
        if (capped) work.bend(work.scores + h * split.tokens, begin, lane, cap_base2);
        weigh(work.scores + h * split.tokens, split.tokens, lane, most, total);
        if (lane == 0) result(h).most() = most, result(h).total() = total;
      }
      __syncthreads();
      work.add_values(count);
      __syncthreads();  // the next scores and sums are written after those that follow it
      for (int c = thread; c < count * work.Dv; c += threads)
        result(c / work.Dv).out()[c % work.Dv] = work.sum_of_groups(c / work.Dv, c % work.Dv);
    }
  }
}

/// A block joins 32 columns of one query head: each warp has every eighth piece, and the warps are added in order. Asked for two blocks a
/// multiprocessor the compiler gives a thread registers for all that it loads at once; by itself it takes 32, and loads in turns.
template <class T>
__global__ void __launch_bounds__(join_warps* warp_lanes, 2)
    join_pieces(AttentionDecode a, float* workspace, std::int64_t pieces, int tokens) {
  __shared__ float totals[join_warps], outs[join_warps][warp_lanes];
  const int position = position_of(a), before = first_token(a, position) / tokens, present = position / tokens + 1 - before;
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes;
  const int warp = static_cast<int>(threadIdx.x) / warp_lanes;
  const std::int64_t head = blockIdx.y, batch = blockIdx.z, d = static_cast<std::int64_t>(blockIdx.x) * warp_lanes + lane;
  const auto piece_of = [&](int i) { return Piece(workspace, a, pieces, batch, head, i); };
  float most = -INFINITY, total = 0, out = 0;
  for (int i = static_cast<int>(threadIdx.x); i < present; i += join_warps * warp_lanes) most = fmaxf(most, piece_of(i).most());
  most = block_max(most);
  float sink = 0;
  if (a.sinks) {  // as a piece whose output is 0; a number, so that it has a difference from any other
    sink = to_float(static_cast<const T*>(a.sinks)[head]) * log2_e;
    sink = sink > FLT_MAX ? FLT_MAX : sink;
    most = fmaxf(most, sink);
  }
  for (int first = warp; first < present; first += joined_at_once * join_warps) {
    float mosts[joined_at_once], sums[joined_at_once], columns[joined_at_once];
#pragma unroll
    for (int u = 0; u < joined_at_once; ++u) {  // all are asked for before any is used: each is a way to the second-level cache
      const int i = first + u * join_warps;
      const bool there = i < present;
      mosts[u] = there ? piece_of(i).most() : -INFINITY;
      sums[u] = there ? piece_of(i).total() : 0;
      columns[u] = there && d < a.shape.Dv ? piece_of(i).out()[d] : 0;
    }
#pragma unroll
    for (int u = 0; u < joined_at_once; ++u) {
      const float weight = exp2f(mosts[u] - most);
      total = fmaf(sums[u], weight, total);
      out = fmaf(columns[u], weight, out);
    }
  }
  outs[warp][lane] = out;
  if (lane == 0) totals[warp] = total;
  __syncthreads();
  if (warp > 0 || d >= a.shape.Dv) return;
  total = out = 0;
  for (int w = 0; w < join_warps; ++w) total += totals[w], out += outs[w][lane];
  if (a.sinks) total += exp2f(sink - most);
  static_cast<T*>(a.out)[(batch * a.shape.H + head) * a.shape.Dv + d] = rounded<T>(out / total);
}

template <class T>
void decode(const Context& context, const AttentionDecode& a) {
  const AttentionShape& s = a.shape;
  const Split split(wider_dim(s));
  const std::int64_t pieces = decode_pieces_of(a);
  auto* workspace = reinterpret_cast<float*>(context.workspace.data());
  const std::int64_t blocks = std::min(pieces, std::max<std::int64_t>(1, most_blocks / (s.G * s.B)));
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(s.G), static_cast<unsigned>(s.B));
  const auto rows = [](const auto& r) { return on_sixteen_bytes(r.data) && r.stride % 8 == 0; };
  const bool on_sixteen = rows(a.qkv.k) && rows(a.qkv.v) && rows(a.cached_k) && rows(a.cached_v);
  with_whole(on_sixteen && whole_vectors(8, {s.D, s.Dv}), [&](auto whole) {
    const auto launch_pieces = [&](auto kernel, float scale_base2) {
      launch(stream_of(context), grid, static_cast<unsigned>(split.threads()), split.shared_bytes(), kernel, a, workspace, pieces,
             scale_base2, split, s.softcap * log2_e);
    };
    if (s.softcap > 0)
      launch_pieces(decode_pieces<T, decltype(whole), true>, scaled(s, 1) / s.softcap);
    else
      launch_pieces(decode_pieces<T, decltype(whole), false>, scaled(s, log2_e));
  });
  launch(stream_of(context),
         dim3(static_cast<unsigned>(ceil_div(s.Dv, warp_lanes)), static_cast<unsigned>(s.H), static_cast<unsigned>(s.B)),
         join_warps * warp_lanes, 0, join_pieces<T>, a, workspace, pieces, split.tokens);
}

}  // namespace

void attention_decode(const Context& context, const AttentionDecode& a) {
  check_shape(a.shape);
  require_rows(a.qkv, a.shape);
  TESSERA_CUDA_REQUIRE(a.capacity > 0 && a.capacity < (1 << 30) && a.shape.H < 65536);
  TESSERA_CUDA_REQUIRE(context.workspace.size() >= cuda::attention_decode_workspace_bytes(a));
  if (a.shape.B == 0) return;
  AttentionDecode with_value_dim = a;
  with_value_dim.shape.Dv = a.shape.value_dim();
  with_float_type(a.shape.dtype, [&](auto type) { decode<decltype(type)>(context, with_value_dim); });
}

}  // namespace tessera::kernels::cuda
