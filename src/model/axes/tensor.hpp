// Over tensor-parallel ranks (Megatron-LM, arXiv:1909.08053; rows of the stream are shared as in Korthikanti et al., arXiv:2205.05198):
// products that read the stream have a part of their outputs on each rank and gather its rows before, products that write it have a part
// of their inputs and sum over ranks after. Each rank holds R = M / tp rows of the stream, and all rows inside a segment's products. Alone,
// a rank's part is the whole, and nothing is called.
#pragma once
#include "model/calls/losses.hpp"

namespace tessera {

/// All ranks' rows (M,N) of a part (R,N), to be gathered; made again in the backward pass.
Value whole_of(Recorder& r, Value part, const char* name, std::int64_t N);
void gather_rows(Recorder& r, Value whole, Value part);
/// The backward pass will read a whole: where it makes it again it does so from here on, so that it is gathered beside what comes
/// between.
void will_need(Recorder& r, Value whole);
/// part (R,N) = this rank's rows of the sum over ranks of `sums` (M,N).
void scatter_rows(Recorder& r, Value part, Value sums);
/// Where those sums come to lie: alone in the part.
Value sums_of(Recorder& r, Value part, const char* name, std::int64_t N);
/// A product that makes what leaves a block: y (M,K) matrix (C,K)^T + bias (C); "" where it has none.
struct LeavingProduct {
  Value y;
  std::string matrix;
  std::int64_t K = 0;
  std::string bias = "";
};
/// out (R,C) = the sum of the products + residual (R,C), which may be absent; each rank has a part of each K, and their sums meet.
void linear_to_stream(Recorder& r, Value out, const std::vector<LeavingProduct>& leaving, Value residual);
/// The gradient d_y (M,N) of a product that reads what enters a block, and its matrix (N,C).
struct EnteringProduct {
  Value d_y;
  std::string matrix;
  std::int64_t N = 0;
};
/// linear_backward of all products that read x, the whole of a part (R,C), whose gradient is d_part: sums of ranks meet beside the weights'
/// gradients. Alone d_part may be x.
void linear_backward_to_part(Recorder& r, Value d_part, const std::vector<EnteringProduct>& entering, Value x);
/// Losses (M) fp32 from logits (.,V) fp32, which are destroyed, and with d_logits their gradient: see softmax_loss_of_rows. Each rank has
/// the logits of its vocabulary.
void softmax_loss(Recorder& r, Value losses, Value d_logits, Value logits, const LossRows& at);

// Of fewer key heads than ranks, neighbours have the same one (kernels/key_parts): a rank's product makes a part of its features, beside
// queries of whole heads, (M, own_qkv_width) in all. Else that is what attention reads, and nothing is called.

/// What the product makes of rows (M, (H+2G) D).
Value own_qkv(Recorder& r, Value rows, const char* name);
/// rows from what the products of the ranks have made.
void gather_keys(Recorder& r, Value rows, Value made);
/// The gradient of what this rank has made, from those of rows: of keys and values the sum over the ranks that have them.
void scatter_keys(Recorder& r, Value d_made, Value d_rows);

}  // namespace tessera
