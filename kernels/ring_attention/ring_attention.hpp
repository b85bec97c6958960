// What ring attention does around its blocks (Liu et al., arXiv:2310.01889): keys and values are packed for their way over the ranks, what
// blocks give is merged by their log-sum-exp, and gradients of blocks are added in fp32. Each is one pass over its operands. The shapes are
// those of attention.hpp.
#pragma once
#include "kernels/attention/attention.hpp"
#include "kernels/elementwise/elementwise.hpp"

namespace tessera::kernels {

/// kv (B*T, G*(D+Dv)) = [key heads | value heads] of qkv. Where values follow keys there, in one copy.
inline void pack_keys(const Context& context, void* kv, const Qkv& qkv, const AttentionShape& s) {
  const auto element = static_cast<std::int64_t>(size_of(s.dtype));
  const std::int64_t row = s.kv_width() * element, keys = s.G * s.D * element;
  const auto copy = [&](std::int64_t at, const HeadRows<const void>& from, std::int64_t bytes) {
    void* to = static_cast<std::byte*>(kv) + at;
    copy_rows(context,
              {.to = to, .to_stride = row, .from = from.data, .from_stride = from.stride * element, .bytes = bytes, .rows = s.B * s.T});
  };
  if (qkv.v.stride == qkv.k.stride && qkv.v.data == static_cast<const std::byte*>(qkv.k.data) + keys) return copy(0, qkv.k, row);
  copy(0, qkv.k, keys), copy(keys, qkv.v, row - keys);
}

/// sum (B*T, H*Dv) in fp32 = out (B*T, H*Dv) of the rank's own keys. Its lse is the one that blocks are merged into.
inline void begin_merge(const Context& context, float* sum, const void* out, const AttentionShape& s) {
  cast(context, sum, DType::f32, out, s.dtype, s.B * s.T * s.out_width());
}
/// out (B*T, H*Dv) = sum, rounded.
inline void end_merge(const Context& context, void* out, const float* sum, const AttentionShape& s) {
  cast(context, out, s.dtype, sum, DType::f32, s.B * s.T * s.out_width());
}

/// What attention_block_forward gave joins what is there, in rows `queries` of each sequence:
///   new = log(e^lse + e^block_lse), sum = sum e^(lse - new) + block_out e^(block_lse - new), lse = new.
struct MergeBlock {
  float* sum = nullptr;              ///< (B*T, H*Dv)
  float* lse = nullptr;              ///< (B, H, T)
  const void* block_out = nullptr;   ///< (B*T, H*Dv)
  const float* block_lse = nullptr;  ///< (B, H, T)
  AttentionRows queries;
  AttentionShape shape;
};
TESSERA_OP(merge_block, (const Context& context, const MergeBlock& arguments), (context, arguments))

/// Rows of fp32 sums take in a block's gradient: of queries (W = H*D), or of keys and values (W = G*(D+Dv)).
struct AddBlockGradient {
  float* sum = nullptr;         ///< (B*T, W)
  const void* block = nullptr;  ///< (B*T, W)
  std::int64_t B = 0, T = 0, W = 0;
  AttentionRows rows;  ///< of each sequence; the others are not read of `block`
  bool first = false;  ///< the sums begin: `rows` are overwritten and the others become 0
  DType dtype = DType::f32;
};
TESSERA_OP(add_block_gradient, (const Context& context, const AddBlockGradient& arguments), (context, arguments))

/// The sums begin with what attention_backward gave for the rank's own keys.
struct BeginGradients {
  float* d_q = nullptr;   ///< (B*T, H*D)
  float* d_kv = nullptr;  ///< (B*T, G*(D+Dv)) = [key heads | value heads]
  Qkv d_qkv = {};
  AttentionShape shape;
};
TESSERA_OP(begin_gradients, (const Context& context, const BeginGradients& arguments), (context, arguments))

/// d_qkv = d_q and d_kv, rounded.
struct EndGradients {
  QkvGradient d_qkv = {};
  const float* d_q = nullptr;   ///< (B*T, H*D)
  const float* d_kv = nullptr;  ///< (B*T, G*(D+Dv))
  AttentionShape shape;
};
TESSERA_OP(end_gradients, (const Context& context, const EndGradients& arguments), (context, arguments))

}  // namespace tessera::kernels
