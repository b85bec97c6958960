// The head: final norm, logits, loss. A training step makes loss and gradient in one pass; an evaluation makes the loss alone, and a text
// the logits of what follows.
#include "model/axes/tensor.hpp"
#include "model/calls/losses.hpp"
#include "model/calls/norms.hpp"
#include "model/calls/products.hpp"

namespace tessera {
namespace {

/// Logits and losses of a chunk, whose gradients d_logits (m,V) has from its first row on: `most` rows at a time, so that logits are in a
/// cache when they are read. Logits hold these alone, or in place lie where their gradients will, in an evaluation too: where lines of the
/// cache begin says how a row is summed.
void losses_of(Recorder& r, const CountedTargets& targets, const Rows& chunk, std::int64_t most, bool in_place, Value losses,
               Value d_logits, Value logits, Value x, const std::string& w) {
  for (const Rows& rows : Recorder::chunks(chunk, most)) {
    const std::int64_t first = rows.first - chunk.first;
    const LossRows at{.targets = targets, .rows = rows, .twice = r.s.preference.on, .logits = in_place ? first : 0, .d_logits = first};
    linear(r, logits, x, w, r.vocabulary(), r.s.C,
           {.bias = head_bias(r.s), .rows = rows, .y_first = at.logits, .fp32 = true, .counted = targets.counted});
    softmax_loss(r, losses, d_logits, logits, at);
  }
}

}  // namespace

Segment head_segment(const ModelShape& s) {
  Recorder r(s, "head");
  const std::int64_t M = s.tokens(), R = s.rows(), C = s.C, V = r.vocabulary(), m = s.loss_chunk;
  const std::int64_t at_once = s.logit_rows == 0 ? m : std::min(m, s.logit_rows);
  const std::string w = s.tied ? "embedding.weight" : "head.weight";
  const Value x = r.stream_in(), normed = r.value("normed", {R, C}), rstd = norm_rows(r, "rstd");
  const Value whole = whole_of(r, normed, "normed_whole", C);

  norm(r, normed, rstd, x, "head.norm");
  gather_rows(r, whole, normed);
  if (s.feed != Feed::samples) {
    next_token(r, whole, w);
    return r.take();
  }
  // (M,V) is never held whole: gradients are those of m tokens at a time, for a product with them reads the weight, and writes its
  // gradient, whole. In fp32 they take the place of the logits.
  const bool in_place = s.dtype == DType::f32;
  const Value losses = r.value("losses", {M}, DType::f32), sum = r.value("loss_sum", {1}, DType::i64);  // a double
  const Value logits = r.value("logits", {in_place ? m : at_once, V}, DType::f32);
  const CountedTargets targets = counted_targets(r, at_once);
  count_rows(r, targets);
  gather_counted(r, whole, C, s.dtype, targets);
  for (const Rows& chunk : r.chunks(m)) losses_of(r, targets, chunk, at_once, in_place, losses, {}, logits, whole, w);
  spread_counted(r, losses, 1, DType::f32, targets);
  const Value sequences = s.preference.on ? r.value("sequence_sums", {s.sequences(), kernels::group_sums}, DType::i64) : Value{};
  if (s.preference.on) {
    add_group_losses(r, losses);
    sum_sequences(r, sequences, losses);
    s.preference.makes_reference ? make_reference(r, sequences) : preference_loss(r, {}, sequences);
  } else {
    sum_losses(r, sum, losses);
    add_group_losses(r, losses);
    add_loss(r, sum);
  }

  r.backward_with_forward("loss", "loss and gradient");
  const Value d_normed = r.value("d_normed", {R, C}), d_whole = s.tp == 1 ? d_normed : r.value("d_normed_whole", {M, C}),
              d_logits = in_place ? logits : r.value("d_logits", {m, V});
  norm(r, normed, rstd, x, "head.norm");
  gather_rows(r, whole, normed);
  count_rows(r, targets);
  gather_counted(r, whole, C, s.dtype, targets);
  CountedTargets weighted = targets;  // by the gradient of the loss
  if (s.preference.on) {
    for (const Rows& chunk : r.chunks(m)) losses_of(r, targets, chunk, at_once, in_place, losses, {}, logits, whole, w);
    spread_counted(r, losses, 1, DType::f32, targets);
    add_group_losses(r, losses);
    sum_sequences(r, sequences, losses);
    weighted.weights = r.value("gradient_weights", {M}, DType::f32);
    preference_loss(r, weighted.weights, sequences);
    gather_counted(r, weighted.weights, 1, DType::f32, targets);
  }
  for (const Rows& chunk : r.chunks(m)) {
    losses_of(r, weighted, chunk, at_once, in_place, losses, d_logits, logits, whole, w);
    linear_backward(r, d_whole, d_logits, whole, w, V, C, chunk, targets.counted);
    if (s.head_bias) bias_backward(r, d_logits, head_bias(s), V, chunk, targets.counted);
  }
  spread_counted(r, d_whole, C, s.dtype, targets);
  scatter_rows(r, d_normed, d_whole);
  if (!s.preference.on) {
    spread_counted(r, losses, 1, DType::f32, targets);
    sum_losses(r, sum, losses);
    add_group_losses(r, losses);
    add_loss(r, sum);
  }
  norm_backward(r, r.d_stream(), d_normed, x, "head.norm", rstd, false);
  return r.take();
}

}  // namespace tessera
