#include "model/axes/ring.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <array>

#include "kernels/ring_attention/ring_attention.hpp"
#include "model/axes/ring_turns.hpp"
#include "model/calls/attention.hpp"
#include "model/calls/parts.hpp"

namespace tessera {
namespace {

using enum Access;

kernels::AttentionBlock whole_block(const ModelShape& inside, bool from_before) {
  const kernels::AttentionRows all{0, inside.T}, first{0, inside.T / 2}, second{inside.T / 2, inside.T / 2};
  kernels::AttentionBlock block{.shape = attention_shape(inside), .queries = second, .keys = all};
  if (from_before) block.queries = all, block.keys = first;
  block.shape.window = 0;
  return block;
}

/// Of either block as a whole, so that ranks plan for the same.
template <class Bytes>
std::size_t most_of_blocks(const ModelShape& inside, Bytes bytes) {
  return std::max(bytes(whole_block(inside, true), inside.backend), bytes(whole_block(inside, false), inside.backend));
}

/// Queries of this rank, and keys and values of a block.
kernels::Qkv rows_of_block(const At& at, Value qkv, Value kv, const kernels::AttentionShape& s) {
  return kernels::packed_kv(kernels::packed_qkv(at.get(qkv), s).q, at.get(kv), s);
}

// Blocks of keys and values are (M, G (D+Dv)), and in `step` come from the rank that many before this one.

void pack_keys(Recorder& r, Value kv, Value qkv) {
  r.call({.name = "pack_keys",
          .touches = {{kv, write}, {qkv, read}},
          .work = MemoryWork{2.0 * static_cast<double>(r.at(kv).bytes)},
          .run = [=, s = attention_shape(r.inside)](const At& at) {
            kernels::pack_keys(at.context, at.get(kv), kernels::packed_qkv(at.get(qkv), s), s);
          }});
}

void rotate(Recorder& r, Value to, Value from, DType dtype, std::int64_t by, const std::string& name) {
  const std::int64_t elements = r.at(from).bytes / static_cast<std::int64_t>(size_of(dtype));
  r.exchange({.kind = CollectiveKind::rotate, .axis = Axis::cp, .count = elements, .dtype = dtype, .by = static_cast<int>(by)},
             "rotate " + name, to, from);
}

/// FLOPs of a block's forward pass.
double block_flops(const Recorder& r, std::int64_t step) {
  const Attention& a = r.inside.attention;
  return 2.0 * static_cast<double>(r.inside.B * a.H * (a.D + a.Dv)) * most_ring_pairs(r.s, step);
}

/// Attention to a block alone, of the rows that see it.
void attention_block(Recorder& r, Value out, Value lse, Value qkv, Value kv, std::int64_t step) {
  const ModelShape& s = r.s;
  const Value documents = r.document_starts();
  r.call({.name = "attention_block_forward",
          .touches = with_reads({{out, write}, {lse, write}, {qkv, read}, {kv, read}}, {documents}),
          .flops = block_flops(r, step),
          .work = AttentionWork{.tokens = r.inside.T, .head_dim = s.attention.mean_dim(), .window = s.kind.window},
          .workspace = most_of_blocks(r.inside, kernels::attention_block_forward_workspace_bytes),
          .run = [=, block = ring_block(s, step)](const At& at) {
            if (!block) return;  // other ranks see theirs
            kernels::attention_block_forward(at.context, {.out = at.get(out),
                                                          .lse = at.get<float>(lse),
                                                          .qkv = rows_of_block(at, qkv, kv, block->shape),
                                                          .block = *block,
                                                          .document_starts = at.get<std::int32_t>(documents)});
          }});
}

/// `out` and `lse` are those of all blocks together.
void attention_block_backward(Recorder& r, Value d_q, Value d_kv, Value d_out, Value qkv, Value kv, Value out, Value lse,
                              std::int64_t step) {
  const ModelShape& s = r.s;
  const Value documents = r.document_starts();
  r.call(
      {.name = "attention_block_backward",
       .touches = with_reads({{d_q, write}, {d_kv, write}, {d_out, read}, {qkv, read}, {kv, read}, {out, read}, {lse, read}}, {documents}),
       .flops = backward_ratio(s.attention) * block_flops(r, step),
       .work = AttentionWork{.backward = true, .tokens = r.inside.T, .head_dim = s.attention.mean_dim(), .window = s.kind.window},
       .workspace = most_of_blocks(r.inside, kernels::attention_block_backward_workspace_bytes),
       .run = [=, block = ring_block(s, step)](const At& at) {
         if (!block) return;
         const kernels::HeadRows<void> queries{at.get(d_q), block->shape.H * block->shape.D};
         kernels::attention_block_backward(at.context, {.d_qkv = kernels::packed_kv(queries, at.get(d_kv), block->shape),
                                                        .d_out = at.get(d_out),
                                                        .qkv = rows_of_block(at, qkv, kv, block->shape),
                                                        .out = at.get(out),
                                                        .lse = at.get<float>(lse),
                                                        .block = *block,
                                                        .document_starts = at.get<std::int32_t>(documents)});
       }});
}

/// sum (M, H Dv) fp32 starts with the rank's own, takes a block's in, and ends in out.
void begin_merge(Recorder& r, Value sum, Value out) {
  r.call({.name = "begin_merge", .touches = {{sum, write}, {out, read}}, .run = [=, s = r.inside](const At& at) {
            kernels::begin_merge(at.context, at.get<float>(sum), at.get(out), attention_shape(s));
          }});
}

void merge_block(Recorder& r, Value sum, Value lse, Value block_out, Value block_lse, std::int64_t step) {
  const ModelShape& s = r.s;
  r.call({.name = "merge_block",
          .touches = {{sum, Access::add}, {lse, Access::add}, {block_out, read}, {block_lse, read}},
          .run = [=, block = ring_block(s, step)](const At& at) {
            if (!block) return;
            kernels::merge_block(at.context, {.sum = at.get<float>(sum),
                                              .lse = at.get<float>(lse),
                                              .block_out = at.get(block_out),
                                              .block_lse = at.get<float>(block_lse),
                                              .queries = block->queries,
                                              .shape = block->shape});
          }});
}

void end_merge(Recorder& r, Value out, Value sum) {
  r.call({.name = "end_merge", .touches = {{out, write}, {sum, read}}, .run = [=, s = r.inside](const At& at) {
            kernels::end_merge(at.context, at.get(out), at.get<float>(sum), attention_shape(s));
          }});
}

/// fp32 sums of gradients, (M, H D) and (M, G (D+Dv)), start with those of the rank's own rows, and end in d_qkv.
void begin_gradients(Recorder& r, Value d_q, Value d_kv, Value d_qkv) {
  r.call({.name = "begin_gradients",
          .touches = {{d_q, write}, {d_kv, write}, {d_qkv, read}},
          .run = [=, s = attention_shape(r.inside)](const At& at) {
            kernels::begin_gradients(
                at.context,
                {.d_q = at.get<float>(d_q), .d_kv = at.get<float>(d_kv), .d_qkv = kernels::packed_qkv(at.get(d_qkv), s), .shape = s});
          }});
}

void add_block_gradient(Recorder& r, Value sum, Value block, std::int64_t W, const kernels::AttentionRows& rows) {
  r.call({.name = "add_block_gradient", .touches = {{sum, Access::add}, {block, read}}, .run = [=, s = r.inside](const At& at) {
            kernels::add_block_gradient(
                at.context,
                {.sum = at.get<float>(sum), .block = at.get(block), .B = s.B, .T = s.T, .W = W, .rows = rows, .dtype = s.dtype});
          }});
}

void end_gradients(Recorder& r, Value d_qkv, Value d_q, Value d_kv) {
  r.call({.name = "end_gradients",
          .touches = {{d_qkv, write}, {d_q, read}, {d_kv, read}},
          .run = [=, s = attention_shape(r.inside)](const At& at) {
            kernels::end_gradients(
                at.context,
                {.d_qkv = kernels::packed_qkv(at.get(d_qkv), s), .d_q = at.get<float>(d_q), .d_kv = at.get<float>(d_kv), .shape = s});
          }});
}

}  // namespace

void ring_attention(Recorder& r, Value out, Value lse, Value qkv) {
  const ModelShape& s = r.s;
  const std::vector<std::int64_t> steps = ring_turns(s);
  if (steps.empty()) return own_attention(r, out, lse, qkv);
  const std::int64_t M = s.tokens();
  const std::array kv = {r.value("keys_here", {M, r.inside.attention.kv_width()}),
                         r.value("keys_there", {M, r.inside.attention.kv_width()})};
  const Value sum = r.value("merged", {M, s.attention.context_width()}, DType::f32),
              block_out = r.value("block_context", {M, s.attention.context_width()}),
              block_lse = r.value("block_lse", {s.B, s.attention.H, r.inside.T}, DType::f32);
  r.turns = 1;
  pack_keys(r, kv[0], qkv);
  rotate(r, kv[1], kv[0], s.dtype, steps[0], fmt::format("keys {}", steps[0]));
  own_attention(r, out, lse, qkv);
  begin_merge(r, sum, out);
  for (std::size_t turn = 1; turn <= steps.size(); ++turn) {
    const std::int64_t step = steps[turn - 1];
    // The next block travels while this one is worked on.
    if (turn < steps.size()) rotate(r, kv[(turn + 1) % 2], kv[turn % 2], s.dtype, steps[turn] - step, fmt::format("keys {}", steps[turn]));
    attention_block(r, block_out, block_lse, qkv, kv[turn % 2], step);
    merge_block(r, sum, lse, block_out, block_lse, step);
  }
  end_merge(r, out, sum);
  r.turns = 0;
}

void ring_attention_backward(Recorder& r, Value d_qkv, Value d_out, Value qkv, Value out, Value lse) {
  const ModelShape& s = r.s;
  const std::vector<std::int64_t> steps = ring_turns(s);
  if (steps.empty()) return own_attention_backward(r, d_qkv, d_out, qkv, out, lse);
  const std::int64_t M = s.tokens(), W = r.inside.attention.kv_width();
  const std::array kv = {r.value("keys_here_again", {M, W}), r.value("keys_there_again", {M, W})},
                   d_kv = {r.value("d_keys_here", {M, W}, DType::f32), r.value("d_keys_there", {M, W}, DType::f32)};
  const Value d_q = r.value("d_queries", {M, s.attention.H * s.attention.D}, DType::f32),
              d_q_block = r.value("d_block_queries", {M, s.attention.H * s.attention.D}), d_kv_block = r.value("d_block_keys", {M, W});
  pack_keys(r, kv[0], qkv);
  rotate(r, kv[1], kv[0], s.dtype, steps[0], fmt::format("keys {}", steps[0]));
  own_attention_backward(r, d_qkv, d_out, qkv, out, lse);
  begin_gradients(r, d_q, d_kv[0], d_qkv);
  std::int64_t gone = 0;  // steps that the gradients have taken
  for (std::size_t turn = 1; turn <= steps.size(); ++turn) {
    const std::int64_t step = steps[turn - 1];
    if (turn < steps.size()) rotate(r, kv[(turn + 1) % 2], kv[turn % 2], s.dtype, steps[turn] - step, fmt::format("keys {}", steps[turn]));
    // The gradient of a block follows it, and comes while this rank's part of it is made.
    rotate(r, d_kv[turn % 2], d_kv[(turn - 1) % 2], DType::f32, step - gone, fmt::format("d_keys {}", step));
    gone = step;
    attention_block_backward(r, d_q_block, d_kv_block, d_out, qkv, kv[turn % 2], out, lse, step);
    const std::optional<kernels::AttentionBlock> block = ring_block(s, step);
    const kernels::AttentionRows none;
    add_block_gradient(r, d_q, d_q_block, s.attention.H * s.attention.D, block ? block->queries : none);
    add_block_gradient(r, d_kv[turn % 2], d_kv_block, W, block ? block->keys : none);
  }
  const Value home = d_kv[(steps.size() + 1) % 2];
  rotate(r, home, d_kv[steps.size() % 2], DType::f32, s.cp - gone, "d_keys home");
  end_gradients(r, d_qkv, d_q, home);
}

}  // namespace tessera
