// Losses of a micro-batch, and of a text what follows it.
#pragma once
#include "model/calls/counted.hpp"

namespace tessera {

/// The tensor that logits have added; "": none.
inline std::string head_bias(const ModelShape& s) { return s.head_bias ? "head.bias" : ""; }

/// Rows whose losses are made, and from which rows on their logits and the gradients of these lie.
struct LossRows {
  const CountedTargets& targets;
  Rows rows;
  bool twice = false;  ///< losses in one pass and gradients in another, which keeps each row's sums and takes weights of either sign
  std::int64_t logits = 0, d_logits = 0;
};
/// Losses (M) fp32 from logits (.,V) fp32, which are destroyed. With d_logits (.,V), which may be logits in fp32, also their gradient.
void softmax_loss_of_rows(Recorder& r, Value losses, Value d_logits, Value logits, const LossRows& at);
/// What a row pass over logits of V tokens of the vocabulary moves: logits are read, and exponentials or gradients written.
MemoryWork work_of_losses(const ModelShape& s, const LossRows& at, std::int64_t V, Value d_logits, Value logits);
/// sum (1 double) of losses (M), on tensor-parallel ranks of this rank's rows.
void sum_losses(Recorder& r, Value sum, Value losses);
/// sums (sequences) GroupTotals of losses (M) of weight 1, over all ranks that share the micro-batch.
void sum_sequences(Recorder& r, Value sums, Value losses);
/// From these sums the loss of pairs, which joins the step's, and weights (M) of the rows in its gradient; absent in an evaluation.
void preference_loss(Recorder& r, Value weights, Value sums);
/// Or what a reference makes of them: log-probabilities of the texts.
void make_reference(Recorder& r, Value sums);
/// The losses (M) of this rank's rows join the totals of the groups that their tokens belong to; nothing where there are none.
void add_group_losses(Recorder& r, Value losses);
/// The micro-batch's loss joins the step's.
void add_loss(Recorder& r, Value sum);
/// Of a text: what follows its last token, from the last row of x (M,C) and the head w (V,C): logits, and the likeliest token if asked
/// for.
void next_token(Recorder& r, Value x, const std::string& w);

}  // namespace tessera
