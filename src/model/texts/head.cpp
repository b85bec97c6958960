// The head: final norm, logits, loss. A training step makes loss and gradient in one pass; an evaluation makes the loss alone, and a text
// the logits of what follows.
#include "model/axes/tensor.hpp"
#include "model/calls/losses.hpp"
#include "model/calls/norms.hpp"
#include "model/calls/products.hpp"

namespace tessera {

Segment head_segment(const ModelShape& s) {
  Recorder r(s, "head");
  const std::int64_t M = s.tokens(), R = s.rows(), C = s.C, V = r.vocabulary(), m = s.loss_chunk;
  const std::string w = s.tied ? "embedding.weight" : "head.weight";
  const Value x = r.stream_in(), normed = r.value("normed", {R, C}), rstd = norm_rows(r, "rstd");
  const Value whole = whole_of(r, normed, "normed_whole", C);

  norm(r, normed, rstd, x, "head.norm");
  gather_rows(r, whole, normed);
  if (s.feed != Feed::samples) {
    next_token(r, whole, w);
    return r.take();
  }
  // (M,V) is never held whole: logits are those of m tokens at a time.
  const Value losses = r.value("losses", {M}, DType::f32), sum = r.value("loss_sum", {1}, DType::i64);  // a double
  const Value logits = r.value("logits", {m, V}, DType::f32);
  for (const Rows& rows : r.chunks(m)) {
    linear(r, logits, whole, w, V, C, {.rows = rows, .fp32 = true});
    softmax_loss(r, losses, {}, logits, rows);
  }
  sum_losses(r, sum, losses);
  add_group_losses(r, losses);
  add_loss(r, sum);

  r.backward_with_forward("loss", "loss and gradient");
  const bool in_place = s.dtype == DType::f32;
  const Value d_normed = r.value("d_normed", {R, C}), d_whole = s.tp == 1 ? d_normed : r.value("d_normed_whole", {M, C}),
              d_logits = in_place ? logits : r.value("d_logits", {m, V});
  norm(r, normed, rstd, x, "head.norm");
  gather_rows(r, whole, normed);
  for (const Rows& rows : r.chunks(m)) {
    linear(r, logits, whole, w, V, C, {.rows = rows, .fp32 = true});
    softmax_loss(r, losses, d_logits, logits, rows);
    linear_backward(r, d_whole, d_logits, whole, w, V, C, rows);
  }
  scatter_rows(r, d_normed, d_whole);
  sum_losses(r, sum, losses);
  add_group_losses(r, losses);
  add_loss(r, sum);
  norm_backward(r, r.d_stream(), d_normed, x, "head.norm", rstd, false);
  return r.take();
}

std::vector<Segment> model_segments(const ModelShape& s) {
  std::vector<Segment> segments{embedding_segment(s)};
  for (int layer = 0; layer < s.L; ++layer) {
    if (s.block.side_by_side()) {
      segments.push_back(side_by_side_segment(s, layer));
      continue;
    }
    segments.push_back(attention_segment(s, layer));
    segments.push_back(s.has_experts(layer) ? moe_segment(s, layer) : mlp_segment(s, layer));
  }
  segments.push_back(head_segment(s));
  return segments;
}

}  // namespace tessera
