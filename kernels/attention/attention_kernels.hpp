// The GPU code of attention by element type, and what its files share. attention.cu chooses.
#pragma once
#include "kernels/attention/attention.hpp"
#include "kernels/cuda/device.hpp"

namespace tessera::kernels::cuda {

inline constexpr float log2_e = 1.4426950408889634f, ln_2 = 0.6931471805599453f;

void attention_forward_bf16(const Context& context, const AttentionForward& arguments);
void attention_forward_fp32(const Context& context, const AttentionForward& arguments);

/// delta (B, H, rows) = rowsum(d_out * out) and lse_base2 (B, H, rows) = lse log2 e, where rows is T padded to whole tiles; in padding, 0
/// and infinity, so that a probability 2^(score - lse_base2) is 0 there.
struct RowTerms {
  float *delta, *lse_base2;
  std::int64_t rows;
};
constexpr std::int64_t padded_rows(std::int64_t T) { return round_up(T, 128); }

void attention_backward_bf16(const Context& context, const AttentionBackward& arguments, const RowTerms& terms);
void attention_backward_fp32(const Context& context, const AttentionBackward& arguments, const RowTerms& terms);

/// Where a query head's rows, and those of its key/value head, begin in a tensor of qkv's shape.
template <class T>
struct Heads {
  T *q, *k, *v;
  std::int64_t stride;
  __device__ __forceinline__ Heads(T* qkv, const AttentionShape& s, std::int64_t batch, std::int64_t head) : stride((s.H + 2 * s.G) * s.D) {
    const std::int64_t group = head / (s.H / s.G);
    T* row = qkv + batch * s.T * stride;
    q = row + head * s.D;
    k = row + (s.H + group) * s.D;
    v = k + s.G * s.D;
  }
};

}  // namespace tessera::kernels::cuda
