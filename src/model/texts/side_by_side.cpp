// Attention and MLP of a layer side by side (GPT-J): they read one norm, and what they make joins the stream together. So over
// tensor-parallel ranks a layer has one gather and one sum each way.
#include <fmt/format.h>

#include "model/axes/block.hpp"
#include "model/calls/products.hpp"
#include "model/texts/inside.hpp"

namespace tessera {

/// out = x + attention(norm(x)) + mlp(norm(x)), as their own texts have them; the norm is attention's.
Segment side_by_side_segment(const ModelShape& s, int layer) {
  Recorder r(in_layer(s, layer), fmt::format("layers.{}.block", layer), layer);
  const std::string a = fmt::format("layers.{}.attention.", layer), m = fmt::format("layers.{}.mlp.", layer);
  const BlockEnds ends = block_ends(r);
  const Value whole = whole_of(r, ends.input, "normed_whole", s.C);
  const AttentionInside attention = attention_inside(r, whole);
  const MlpInside mlp = mlp_inside(r, whole);
  enter_block(r, ends, a);
  gather_rows(r, whole, ends.input);
  attend(r, a, attention);
  feed(r, m, mlp);
  leave_block(r, ends, a, {attention_leaving(r, a, attention), mlp_leaving(r, m, mlp)});
  if (!r.backward()) return r.take();

  const Value d_block = enter_block_backward(r, ends, a), d_out = whole_of(r, d_block, "d_out", s.C);
  if (s.attention.out_bias) bias_backward(r, d_block, a + "bo", s.C, Rows{0, s.rows()});
  if (s.block.mlp_bias) bias_backward(r, d_block, m + "b_down", s.C, Rows{0, s.rows()});
  gather_rows(r, d_out, d_block);
  will_need(r, whole);
  const EnteringProduct gate_up = feed_backward(r, m, mlp, d_out), qkv = attend_backward(r, a, attention, d_out);
  const Value d_input = gradient_of_input(r, ends);
  linear_backward_to_part(r, d_input, {gate_up, qkv}, whole);
  leave_block_backward(r, ends, a, d_input);
  return r.take();
}

}  // namespace tessera
