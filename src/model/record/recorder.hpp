// What the text of a layer speaks: it declares values and calls kernels on them, and each call is written down with what it reads and
// writes. No graph is built and nothing is differentiated: the backward pass is a text of its own, which names the forward pass's values.
#pragma once
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "kernels/dispatch/dispatch.hpp"
#include "model/record/segment.hpp"
#include "model/table/lora.hpp"

namespace tessera {

/// Rows [first, first + count) of a value of M rows.
struct Rows {
  std::int64_t first = 0, count = 0;
};

/// What a linear layer does beside its product.
struct LinearExtra {
  std::string bias = {};          ///< (N), added: a tensor's name
  Value add = {};                 ///< (M,N), added: a residual
  std::optional<Rows> rows = {};  ///< of x; y holds these alone
  bool fp32 = false;              ///< y is fp32 whatever the compute type
};

/// Where the rows of experts come from and go to (kernels/dispatch).
struct Dispatch {
  Value counts;   ///< (E) int32
  Value offsets;  ///< (E+1) int32
  Value places;   ///< (M,k) int32
  Value sources;  ///< (R) int32
};

/// Rows that have come to this rank's experts (kernels/expert_blocks); alone, its own.
struct Arrivals {
  Value offsets;  ///< (E / ep + 1) int32
  Value order;    ///< (R) int32, of sorted rows; alone absent, as the others are
  Value places;   ///< (R) int32, of rows as they have arrived
  Value weights;  ///< (R) fp32, of the same
};

/// One of the three products by a matrix (N,K) of an adapter.
struct AdapterProduct {
  linear::Product product = linear::Product::forward;
  std::int64_t N = 0, K = 0;
  float scale = 1;
  bool accumulate = false;
  /// Where one operand, of a forward product the result, is columns of a wider matrix: its first one, and that matrix's width.
  std::int64_t first = 0, stride = 0;
};

/// What a token's rows come together with.
struct CombineExtra {
  Value weights = {};  ///< (M,k), with `shared` (M,k+1): what rows count for; absent: 1
  Value shared = {};   ///< (M,C)
  Value add = {};      ///< (M,C)
};

class Recorder {
 public:
  Recorder(const ModelShape& shape, std::string name, int layer = -1) : s(shape), inside(inside_attention(shape)) {
    segment_.name = std::move(name), segment_.layer = layer;
  }

  // ---- Values. Extents stand beside each name; without a type it is the compute type. ----

  Value stream_in() { return declare({.kind = ValueKind::stream_in, .name = "stream", .bytes = stream_bytes()}); }
  Value stream_out() { return declare({.kind = ValueKind::stream_out, .name = "stream", .bytes = stream_bytes()}); }
  Value d_stream() { return declare({.kind = ValueKind::d_stream, .name = "d_stream", .bytes = stream_bytes()}); }
  /// An activation. Where the backward pass reads it, the forward pass's bytes are kept for it or, with recompute, made again.
  Value value(const char* name, const Shape& dims) { return value(name, dims, s.dtype); }
  Value value(const char* name, const Shape& dims, DType dtype) { return activation(name, dims.elements(), dtype, false); }
  /// An activation that the backward pass always makes again: a pass over memory costs less than bytes that are kept.
  Value remade(const char* name, const Shape& dims) { return activation(name, dims.elements(), s.dtype, true); }
  Value weight(const std::string& tensor) { return declare({.kind = ValueKind::weight, .name = tensor}); }
  Value gradient(const std::string& tensor) { return declare({.kind = ValueKind::weight_gradient, .name = tensor}); }
  Value tokens();
  Value targets() { return declare({.kind = ValueKind::targets, .name = "targets"}); }

  // ---- Over tensor-parallel ranks (exchanges.cpp): each holds R = M / tp rows of the stream, and all rows inside a segment's products.
  // Alone, a rank's part is the whole, and nothing is called. ----

  /// All ranks' rows (M,N) of a part (R,N), to be gathered; made again in the backward pass.
  Value whole_of(Value part, const char* name, std::int64_t N);
  void gather_rows(Value whole, Value part);
  /// The backward pass will read a whole: where it makes it again it does so from here on, so that it is gathered beside what comes
  /// between.
  void will_need(Value whole);
  /// Where the gradient of a part (R,N) comes to lie. Alone it is the part itself, which is not needed again; among others the whole of the
  /// part is gathered while the gradient's sums meet.
  Value gradient_of_part(Value part, const char* name, std::int64_t N) { return s.tp == 1 ? part : value(name, {s.rows(), N}); }
  /// part (R,N) = this rank's rows of the sum over ranks of `sums` (M,N).
  void scatter_rows(Value part, Value sums);

  // Of fewer key heads than ranks, neighbours have the same one (kernels/key_parts): a rank's product makes a part of its features, beside
  // queries of whole heads, (M, made_width) in all. Else that is what attention reads, and nothing is called.

  /// What the product makes of rows (M, (H+2G) D).
  Value made_of(Value rows, const char* name) { return s.shares_keys() ? remade(name, {s.tokens(), s.made_width()}) : rows; }
  /// rows from what the products of the ranks have made.
  void gather_keys(Value rows, Value made);
  /// The gradient of what this rank has made, from those of rows: of keys and values the sum over the ranks that have them.
  void scatter_keys(Value d_made, Value d_rows);

  // ---- Over context-parallel ranks that exchange heads (exchanges.cpp): each holds M = B T / cp tokens, and inside attention all B T
  // tokens with a part of the heads (`inside`). Alone and in a ring (ring.cpp) both are the same, and nothing is called. ----

  /// The M rows of N that attention has as `of_heads`.
  Value rows_of(Value of_heads, const char* name, std::int64_t N) { return s.exchanges_heads() ? value(name, {s.tokens(), N}) : of_heads; }
  /// The B T rows of N / cp that attention has of rows of N, which have query heads alone.
  Value heads_of(Value rows, const char* name, std::int64_t N) { return s.exchanges_heads() ? value(name, {s.B * s.T, N / s.cp}) : rows; }
  /// of_heads from rows of H query heads and twice G key heads (0: none), each of all ranks' tokens.
  void rows_to_heads(Value of_heads, Value rows, std::int64_t H, std::int64_t G);
  /// rows from of_heads: gradients of key heads that several ranks have are added.
  void heads_to_rows(Value rows, Value of_heads, std::int64_t H, std::int64_t G);
  /// linear_backward where x holds rows of what attention had made: d_heads is the gradient of that, and the weight's is made while it is
  /// on its way. d_x are its rows.
  void linear_backward_to_heads(Value d_heads, Value d_x, Value d_y, Value x, const std::string& w, std::int64_t N, std::int64_t K);

  // ---- Over expert-parallel ranks (exchanges.cpp): each has E / ep experts, and sends rows of its tokens to those that are elsewhere, in
  // a block for each rank. R = ep times the rows of a block, most of which are nobody's perhaps. Alone, nothing is sent. ----

  /// Choices of each expert by the tokens of the whole micro-batch, (parts,E) int32, of which tensor- and context-parallel ranks have
  /// parts.
  Value counts_of_all(const Dispatch& to);
  /// What tells the rows of blocks apart goes to where they go.
  Value send_labels(const Dispatch& to, Value weights);
  /// Of each choice its token's row of `in` (M,C) goes to its expert.
  void send_rows(Value in, const Dispatch& to);
  /// Which rows come here.
  Arrivals arrivals(Value labels, const Dispatch& to);
  /// rows (R,C), expert by expert, of what was sent last. Alone they are gathered from `in`.
  void take_rows(Value rows, Value in, const Dispatch& to, const Arrivals& here);
  /// What was made of rows (R,C) goes back: the rows as tokens have sent them.
  Value return_rows(Value rows, const Arrivals& here);
  /// d_weights gets what weigh_rows has found for this rank's tokens on other ranks.
  void collect_weights(Value d_weights, const Dispatch& to);
  /// Weight and input gradient of expert_linear, the latter by way of d_x (R,K) back to where tokens are: returns it there. Alone d_x may
  /// be x; among others the weight's gradient is made while it is on its way.
  Value expert_backward_to_rows(Value d_x, Value d_y, Value x, const Arrivals& here, const std::string& w, std::int64_t N, std::int64_t K);

  // ---- Calls (calls.cpp). Rows are the M tokens of the pass, of streams and norms the R of this rank; `w` names a tensor of the table,
  // with those joined to it. What a text of generate does otherwise than a micro-batch is decided in them, by s.feed. ----

  /// out (R,C) = norm(x) w; rstd (R) fp32.
  void rmsnorm(Value out, Value rstd, Value x, const std::string& w);
  /// d_x = gradient through the norm, and w's gradient. With `residual` d_x holds the residual's gradient, which the norm's joins.
  void rmsnorm_backward(Value d_x, Value d_out, Value x, const std::string& w, Value rstd, bool residual);
  /// y (M,N) = x (M,K) w (N,K)^T, plus what adapters of w and `extra` add.
  void linear(Value y, Value x, const std::string& w, std::int64_t N, std::int64_t K, const LinearExtra& extra = {});
  /// The gradient of w and its adapters from d_y (M,N) and x (M,K). With `only`, d_y holds these rows of x alone.
  void weight_gradient(Value d_y, Value x, const std::string& w, std::int64_t N, std::int64_t K, const std::optional<Rows>& only = {});
  /// d_x (M,K) = d_y w. With `only`, d_y holds these rows of d_x alone.
  void input_gradient(Value d_x, Value d_y, const std::string& w, std::int64_t N, std::int64_t K, const std::optional<Rows>& only = {});
  /// Both, in this order: d_x may be x.
  void linear_backward(Value d_x, Value d_y, Value x, const std::string& w, std::int64_t N, std::int64_t K,
                       const std::optional<Rows>& only = {});
  /// out (R,N) = x (M,K) w (N,K)^T + residual (R,N), where each tensor-parallel rank has a part of K: their sums meet.
  void linear_to_stream(Value out, Value x, const std::string& w, std::int64_t N, std::int64_t K, Value residual);
  /// linear_backward where x is the whole of a part (R,K), whose gradient is d_part: sums of ranks meet beside the weight's gradient. Alone
  /// d_part may be x.
  void linear_backward_to_part(Value d_part, Value d_y, Value x, const std::string& w, std::int64_t N, std::int64_t K);
  /// The bias's gradient: sums over the rows of d_y (M,N).
  void bias_backward(Value d_y, const std::string& bias, std::int64_t N);
  /// out (M,F) = silu(gate) * up of gate_up (M,2F).
  void swiglu(Value out, Value gate_up, std::int64_t M, std::int64_t F);
  /// d_gate_up may be gate_up.
  void swiglu_backward(Value d_gate_up, Value d_out, Value gate_up, std::int64_t M, std::int64_t F);

  // Experts (expert_calls.cpp). R rows of a micro-batch, expert by expert; `w` names the first of the matrices of this rank's experts.

  /// The k experts of each token, (M,k) int32, and what they count for, (M, slots) fp32, of logits (M, E + shared) fp32. With a bias (E)
  /// fp32 they are chosen by their probabilities and it.
  void router(Value experts, Value weights, Value logits, Value bias);
  /// Gradient of logits, from those of weights and by the router's own losses.
  void router_backward(Value d_logits, Value d_weights, Value weights, Value experts, Value logits, Value counts);
  /// The router's losses, drops and loads join the step's. Of a text: nothing.
  void router_totals(Value logits, Value counts, const Dispatch& d);
  Dispatch dispatch(Value experts);
  /// out (R,C): each row is that of its token in `in` (M,C).
  void gather_rows(Value out, Value in, const Dispatch& d);
  /// out (M,C) of each token: the sum of its rows (R,C), and what `extra` adds.
  void combine_rows(Value out, Value rows, const Dispatch& d, const CombineExtra& extra);
  /// Of d (R,F), the gradient of inputs a (R,F) but for the weights that their rows count by: d_weights, and both times their weights.
  /// Of tokens on other ranks, what comes to d_weights goes there (collect_weights).
  void weigh_rows(Value d_weights, Value d, Value a, Value weights, const Dispatch& to, const Arrivals& here);
  /// The same of the shared expert's (M,S): the last weight of each token. d_weights holds the others.
  void weigh_shared(Value d_weights, Value d, Value a, Value weights);
  /// y (R,N) = x (R,K) w (E,N,K)^T, each row with its expert's.
  void expert_linear(Value y, Value x, const Arrivals& here, const std::string& w, std::int64_t N, std::int64_t K);
  void expert_weight_gradient(Value d_y, Value x, const Arrivals& here, const std::string& w, std::int64_t N, std::int64_t K);
  void expert_input_gradient(Value d_x, Value d_y, const Arrivals& here, const std::string& w, std::int64_t N, std::int64_t K);

  // Attention, of rows and heads as `inside` counts them.

  /// In place, the query and key heads of qkv (M, (H+2G) D).
  void rope(Value qkv);
  void rope_backward(Value d_qkv);
  /// out = rope(norm(x)) of the query and key heads, value heads as they are; rstd (M, H+G) fp32.
  void qk_norm_rope(Value out, Value rstd, Value x, const std::string& q_norm, const std::string& k_norm);
  /// In place on d_qkv.
  void qk_norm_rope_backward(Value d_qkv, Value x, Value rstd, const std::string& q_norm, const std::string& k_norm);
  /// out (M, H D) and lse (B,H,T) fp32 of qkv (M, (H+2G) D), causal. Keys and values of a prompt also begin the caches; a token's join
  /// them, and it sees all that they hold (no lse).
  void attention(Value out, Value lse, Value qkv);
  void attention_backward(Value d_qkv, Value d_out, Value qkv, Value out, Value lse);
  /// What rope reads: the table where positions are 0 to T-1; a token's row of it is found here, once for all layers.
  void positions();
  /// out (R,C): rows of w (V,C), whose vocabulary tensor-parallel ranks share.
  void embedding(Value out, const std::string& w);
  void embedding_backward(Value d_out, const std::string& w);
  /// Losses (M) fp32 of `rows` from their logits (m,V) fp32, which are destroyed. With d_logits (m,V), which may be logits in fp32, also
  /// their gradient. Of tensor-parallel ranks each has the logits of its vocabulary.
  void softmax_loss(Value losses, Value d_logits, Value logits, const Rows& rows);
  /// sum (1 double) of losses (M), on tensor-parallel ranks of this rank's rows.
  void sum_losses(Value sum, Value losses);
  /// The losses (M) of this rank's rows join the totals of the groups that their tokens belong to; nothing where there are none.
  void add_group_losses(Value losses);
  /// The micro-batch's loss joins the step's.
  void add_loss(Value sum);
  /// Of a text: what follows its last token, from the last row of x (M,C) and the head w (V,C): logits, and the likeliest token if asked
  /// for.
  void next_token(Value x, const std::string& w);

  /// From here on calls belong to the backward pass. False where there is none: a text is only read forward.
  bool backward() { return in_backward_ = s.feed == Feed::samples; }
  /// The same, where it makes what the forward pass makes as well. The verbs name the tasks.
  void backward_with_forward(const char* forward_verb, const char* backward_verb) {
    backward();
    segment_.joint = true, segment_.forward_verb = forward_verb, segment_.backward_verb = backward_verb;
  }
  /// Tokens of the vocabulary whose logits this rank has.
  std::int64_t vocabulary() const { return s.vocabulary().size(); }
  Rows all_rows() const { return {0, s.tokens()}; }
  /// All rows, `most` at a time.
  std::vector<Rows> chunks(std::int64_t most) const {
    std::vector<Rows> result;
    for (Rows rows; rows.first < s.tokens(); rows.first += rows.count)
      result.push_back(rows = {rows.first, std::min(most, s.tokens() - rows.first)});
    return result;
  }
  /// The record; the recorder is done.
  Segment take() { return std::move(segment_); }

  const ModelShape s;
  const ModelShape inside;  ///< s inside attention

 private:
  /// Values that are not activations exist once, however often the text asks for them.
  Value declare(const ValueInfo& info);
  Value activation(const char* name, std::int64_t elements, DType dtype, bool remade) {
    return add(
        {.kind = ValueKind::activation, .name = name, .bytes = elements * static_cast<std::int64_t>(size_of(dtype)), .remade = remade});
  }
  Value add(ValueInfo info);
  Value rope_table() { return declare({.kind = ValueKind::rope_table, .name = "rope"}); }
  /// Where documents begin, of a micro-batch; absent where sequences are not masked by them.
  Value document_starts();
  /// Rows of rotations by position, as rope counts positions: m % T.
  Value rotations();
  Value cached_keys() { return declare({.kind = ValueKind::cached_keys, .name = "keys", .bytes = s.bytes_of(s.capacity * s.G * s.D)}); }
  Value cached_values() {
    return declare({.kind = ValueKind::cached_values, .name = "values", .bytes = s.bytes_of(s.capacity * s.G * s.D)});
  }
  Value position() { return declare({.kind = ValueKind::position, .name = "position", .bytes = sizeof(std::int32_t)}); }
  /// `clears`: elements of d_weights, of which some belong to no row.
  void weigh(Value d_weights, Value d, Value a, Value weights, const kernels::WeighRows& rows, Value sources, std::int64_t clears);
  /// A block for each expert-parallel rank, of `count` elements: `to` has those of all ranks for this one.
  void exchange_blocks(Value to, Value from, std::int64_t count, DType dtype);
  /// out row r = in row sources[r]; where that is negative, zeros.
  void sort_rows(Value out, Value in, Value sources);
  void softmax_loss_of_slice(Value losses, Value d_logits, Value logits, const Rows& rows);
  void exchange(const Exchange& exchange, const std::string& name, Value to, Value from);
  /// Blocks (B, cp, T / cp, W) of a rank each are turned: to (B, cp, T / cp, W) has those of all ranks.
  void turn_blocks(Value to, Value from, std::int64_t W);
  /// W: elements of a rank's row of H query heads and, with G, key and value heads.
  std::int64_t width_of_rank(std::int64_t H, std::int64_t G) const { return (H / s.cp + (G == 0 ? 0 : 2 * inside.G)) * s.D; }
  /// Attention of this rank's rows alone.
  void own_attention(Value out, Value lse, Value qkv);
  void own_attention_backward(Value d_qkv, Value d_out, Value qkv, Value out, Value lse);

  // Of adapters (lora_calls.cpp): `inner` (M,r) = s x A^T, of which B makes what joins y.

  // With `offsets`, those of the rows of experts (R rows), each expert's with its own matrices.

  /// y += what the adapters of w and the tensors joined to it make of x.
  void add_adapters(Value y, Value x, const std::string& w, std::int64_t N, std::int64_t K, Value offsets = {});
  void adapter_weight_gradients(Value d_y, Value x, const std::string& w, std::int64_t N, std::int64_t K, Value offsets = {});
  void add_adapter_input_gradients(Value d_x, Value d_y, const std::string& w, std::int64_t N, std::int64_t K, Value offsets = {});
  /// inner = s x A^T of a tensor.
  void adapter_inner(const AdaptedColumns& columns, Value inner, Value x, std::int64_t K, Value offsets);
  /// d_inner from the columns of d_y (M,N) that the tensor makes; made once.
  Value adapter_inner_gradient(const AdaptedColumns& columns, Value d_y, std::int64_t N, Value offsets);
  /// y is the result, x the operand that is no matrix of the adapter; `with` that matrix, or in its gradient what it multiplied.
  void adapter_product(const AdapterProduct& product, Value y, Value x, Value with, Value offsets);

  // Of a ring (ring.cpp), M tokens of this rank: blocks of keys are (M, 2 G D), and in `step` come from the rank that many before it.

  void ring_attention(Value out, Value lse, Value qkv);
  void ring_attention_backward(Value d_qkv, Value d_out, Value qkv, Value out, Value lse);
  void rotate(Value to, Value from, DType dtype, const std::string& name);
  void pack_keys(Value kv, Value qkv);
  /// Attention to a block alone, of the rows that see it.
  void attention_block(Value out, Value lse, Value qkv, Value kv, std::int64_t step);
  /// `out` and `lse` are those of all blocks together.
  void attention_block_backward(Value d_q, Value d_kv, Value d_out, Value qkv, Value kv, Value out, Value lse, std::int64_t step);
  /// sum (M, H D) fp32 starts with the rank's own, takes a block's in, and ends in out.
  void begin_merge(Value sum, Value out);
  void merge_block(Value sum, Value lse, Value block_out, Value block_lse, std::int64_t step);
  void end_merge(Value out, Value sum);
  /// fp32 sums of gradients, (M, H D) and (M, 2 G D), start with those of the rank's own rows, and end in d_qkv.
  void begin_gradients(Value d_q, Value d_kv, Value d_qkv);
  void add_block_gradient(Value sum, Value block, std::int64_t W, const kernels::AttentionRows& rows);
  void end_gradients(Value d_qkv, Value d_q, Value d_kv);

  /// rope and rope_backward.
  void rotate_heads(const char* name, Value heads, bool inverse);
  void fill_caches(Value qkv);
  void attention_decode(Value out, Value qkv);
  /// The packed copy of a tensor that `product` reads as its b; absent where none is kept.
  Value packed(const std::string& tensor, const kernels::Gemm& product);
  void call(Call call);
  std::int64_t stream_bytes() const { return s.bytes_of(s.rows() * s.C); }
  const std::string& name_of(Value value) const { return segment_.at(value).name; }

  Segment segment_;
  Value slice_sums_ = {}, all_sums_ = {};
  std::map<std::string, Value> adapter_inner_, d_adapter_inner_;  // by the tensor that has an adapter
  std::set<int> weighed_;                                         // values whose rows weigh() has multiplied by what they count for
  Value blocks_arrived_ = {};                                     // by send_rows
  Value d_blocks_here_ = {}, d_blocks_there_ = {};                // of the backward pass: blocks of this rank's tokens, and for its experts
  Value d_row_weights_ = {};                                      // by weigh_rows: in the order in which this rank has sent its rows
  int turns_ = 0;                                                 // of calls from here on
  bool in_backward_ = false;
};

}  // namespace tessera
