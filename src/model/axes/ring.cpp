// Ring attention over context-parallel ranks (Liu et al., arXiv:2310.01889). A rank keeps its tokens, and blocks of keys and values go
// round: in step s it has those of the rank that is s before it, and what its queries make of them joins what they have. A rank's tokens
// are a chunk of the sequence's first half and one of its second (positions_of), so that what the causal mask leaves of a block is half of
// it in every step on every rank: of a rank before this one the keys of the first chunk, for all queries; of one after it all keys, for the
// queries of the second chunk. Which of both it is, is decided inside the calls: all ranks run one schedule.
#include "kernels/ring_attention/ring_attention.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "model/record/recorder.hpp"

namespace tessera {
namespace {

using enum Access;

kernels::AttentionBlock block_of(const ModelShape& inside, bool from_before) {
  const kernels::AttentionRows all{0, inside.T}, first{0, inside.T / 2}, second{inside.T / 2, inside.T / 2};
  if (from_before) return {.shape = attention_shape(inside), .queries = all, .keys = first};
  return {.shape = attention_shape(inside), .queries = second, .keys = all};
}

/// Of the step, on this rank.
kernels::AttentionBlock block_at(const ModelShape& s, const ModelShape& inside, std::int64_t step) {
  return block_of(inside, step <= s.cp_index);
}

/// Of either block, so that ranks plan for the same.
template <class Bytes>
std::size_t most_of_blocks(const ModelShape& inside, Bytes bytes) {
  return std::max(bytes(block_of(inside, true), inside.backend), bytes(block_of(inside, false), inside.backend));
}

std::int64_t key_width(const ModelShape& s) { return 2 * s.G * s.D; }

}  // namespace

void Recorder::pack_keys(Value kv, Value qkv) {
  call({.name = "pack_keys",
        .touches = {{kv, write}, {qkv, read}},
        .work = MemoryWork{2.0 * static_cast<double>(segment_.at(kv).bytes)},
        .run = [=, s = inside](const At& at) { kernels::pack_keys(at.context, at.get(kv), at.get(qkv), attention_shape(s)); }});
}

void Recorder::rotate(Value to, Value from, DType dtype, const std::string& name) {
  const std::int64_t elements = segment_.at(from).bytes / static_cast<std::int64_t>(size_of(dtype));
  exchange({.kind = CollectiveKind::rotate, .axis = Axis::cp, .count = elements, .dtype = dtype}, "rotate " + name, to, from);
}

void Recorder::attention_block(Value out, Value lse, Value qkv, Value kv, std::int64_t step) {
  call({.name = "attention_block_forward",
        .touches = {{out, write}, {lse, write}, {qkv, read}, {kv, read}},
        .flops = causal_flops(inside),
        .work = AttentionWork{.tokens = inside.T, .head_dim = s.D},
        .workspace = most_of_blocks(inside, kernels::attention_block_forward_workspace_bytes),
        .run = [=, block = block_at(s, inside, step)](const At& at) {
          kernels::attention_block_forward(
              at.context, {.out = at.get(out), .lse = at.get<float>(lse), .qkv = at.get(qkv), .kv = at.get(kv), .block = block});
        }});
}

void Recorder::attention_block_backward(Value d_q, Value d_kv, Value d_out, Value qkv, Value kv, Value out, Value lse, std::int64_t step) {
  call({.name = "attention_block_backward",
        .touches = {{d_q, write}, {d_kv, write}, {d_out, read}, {qkv, read}, {kv, read}, {out, read}, {lse, read}},
        .flops = 2.5 * causal_flops(inside),
        .work = AttentionWork{.backward = true, .tokens = inside.T, .head_dim = s.D},
        .workspace = most_of_blocks(inside, kernels::attention_block_backward_workspace_bytes),
        .run = [=, block = block_at(s, inside, step)](const At& at) {
          kernels::attention_block_backward(at.context, {.d_q = at.get(d_q),
                                                         .d_kv = at.get(d_kv),
                                                         .d_out = at.get(d_out),
                                                         .qkv = at.get(qkv),
                                                         .kv = at.get(kv),
                                                         .out = at.get(out),
                                                         .lse = at.get<float>(lse),
                                                         .block = block});
        }});
}

void Recorder::begin_merge(Value sum, Value out) {
  call({.name = "begin_merge", .touches = {{sum, write}, {out, read}}, .run = [=, s = inside](const At& at) {
          kernels::begin_merge(at.context, at.get<float>(sum), at.get(out), attention_shape(s));
        }});
}

void Recorder::merge_block(Value sum, Value lse, Value block_out, Value block_lse, std::int64_t step) {
  call({.name = "merge_block",
        .touches = {{sum, Access::add}, {lse, Access::add}, {block_out, read}, {block_lse, read}},
        .run = [=, block = block_at(s, inside, step)](const At& at) {
          kernels::merge_block(at.context, {.sum = at.get<float>(sum),
                                            .lse = at.get<float>(lse),
                                            .block_out = at.get(block_out),
                                            .block_lse = at.get<float>(block_lse),
                                            .queries = block.queries,
                                            .shape = block.shape});
        }});
}

void Recorder::end_merge(Value out, Value sum) {
  call({.name = "end_merge", .touches = {{out, write}, {sum, read}}, .run = [=, s = inside](const At& at) {
          kernels::end_merge(at.context, at.get(out), at.get<float>(sum), attention_shape(s));
        }});
}

void Recorder::begin_gradients(Value d_q, Value d_kv, Value d_qkv) {
  call({.name = "begin_gradients", .touches = {{d_q, write}, {d_kv, write}, {d_qkv, read}}, .run = [=, s = inside](const At& at) {
          kernels::begin_gradients(
              at.context, {.d_q = at.get<float>(d_q), .d_kv = at.get<float>(d_kv), .d_qkv = at.get(d_qkv), .shape = attention_shape(s)});
        }});
}

void Recorder::add_block_gradient(Value sum, Value block, std::int64_t W, const kernels::AttentionRows& rows) {
  call({.name = "add_block_gradient", .touches = {{sum, Access::add}, {block, read}}, .run = [=, s = inside](const At& at) {
          kernels::add_block_gradient(
              at.context, {.sum = at.get<float>(sum), .block = at.get(block), .B = s.B, .T = s.T, .W = W, .rows = rows, .dtype = s.dtype});
        }});
}

void Recorder::end_gradients(Value d_qkv, Value d_q, Value d_kv) {
  call({.name = "end_gradients", .touches = {{d_qkv, write}, {d_q, read}, {d_kv, read}}, .run = [=, s = inside](const At& at) {
          kernels::end_gradients(
              at.context, {.d_qkv = at.get(d_qkv), .d_q = at.get<float>(d_q), .d_kv = at.get<float>(d_kv), .shape = attention_shape(s)});
        }});
}

void Recorder::ring_attention(Value out, Value lse, Value qkv) {
  const std::int64_t M = s.tokens();
  const std::array kv = {value("keys_here", {M, key_width(inside)}), value("keys_there", {M, key_width(inside)})};
  const Value sum = value("merged", {M, s.H * s.D}, DType::f32), block_out = value("block_context", {M, s.H * s.D}),
              block_lse = value("block_lse", {s.B, s.H, inside.T}, DType::f32);
  const auto block = [&](std::int64_t step) { return kv[static_cast<std::size_t>(step % 2)]; };
  turns_ = 1;
  pack_keys(block(0), qkv);
  rotate(block(1), block(0), s.dtype, "keys 1");
  own_attention(out, lse, qkv);
  begin_merge(sum, out);
  for (std::int64_t step = 1; step < s.cp; ++step) {
    // The next block travels while this one is worked on.
    if (step + 1 < s.cp) rotate(block(step + 1), block(step), s.dtype, fmt::format("keys {}", step + 1));
    attention_block(block_out, block_lse, qkv, block(step), step);
    merge_block(sum, lse, block_out, block_lse, step);
  }
  end_merge(out, sum);
  turns_ = 0;
}

void Recorder::ring_attention_backward(Value d_qkv, Value d_out, Value qkv, Value out, Value lse) {
  const std::int64_t M = s.tokens(), W = key_width(inside);
  const std::array kv = {value("keys_here_again", {M, W}), value("keys_there_again", {M, W})},
                   d_kv = {value("d_keys_here", {M, W}, DType::f32), value("d_keys_there", {M, W}, DType::f32)};
  const Value d_q = value("d_queries", {M, s.H * s.D}, DType::f32), d_q_block = value("d_block_queries", {M, s.H * s.D}),
              d_kv_block = value("d_block_keys", {M, W});
  const auto turn = [](std::int64_t step) { return static_cast<std::size_t>(step % 2); };
  pack_keys(kv[0], qkv);
  rotate(kv[1], kv[0], s.dtype, "keys 1");
  own_attention_backward(d_qkv, d_out, qkv, out, lse);
  begin_gradients(d_q, d_kv[0], d_qkv);
  for (std::int64_t step = 1; step < s.cp; ++step) {
    if (step + 1 < s.cp) rotate(kv[turn(step + 1)], kv[turn(step)], s.dtype, fmt::format("keys {}", step + 1));
    // The gradient of a block follows it, and comes while this rank's part of it is made.
    rotate(d_kv[turn(step)], d_kv[turn(step - 1)], DType::f32, fmt::format("d_keys {}", step));
    attention_block_backward(d_q_block, d_kv_block, d_out, qkv, kv[turn(step)], out, lse, step);
    const kernels::AttentionBlock block = block_at(s, inside, step);
    add_block_gradient(d_q, d_q_block, s.H * s.D, block.queries);
    add_block_gradient(d_kv[turn(step)], d_kv_block, W, block.keys);
  }
  rotate(d_kv[turn(s.cp)], d_kv[turn(s.cp - 1)], DType::f32, "d_keys home");
  end_gradients(d_qkv, d_q, d_kv[turn(s.cp)]);
}

}  // namespace tessera
