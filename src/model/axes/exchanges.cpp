// What texts call over tensor-parallel ranks (Megatron-LM, arXiv:1909.08053; rows of the stream are shared as in Korthikanti et al.,
// arXiv:2205.05198): products that read the stream have a part of their outputs on each rank and gather its rows before, products that
// write it have a part of their inputs and sum over ranks after. And over context-parallel ranks (Jacobs et al., DeepSpeed Ulysses,
// arXiv:2309.14509), which exchange tokens for heads before attention and heads for tokens after it. And over expert-parallel ranks
// (GShard, arXiv:2006.16668), which exchange rows of tokens for rows of their experts, and back.
#include "kernels/cross_entropy/softmax_slice.hpp"
#include "kernels/dispatch/dispatch.hpp"
#include "kernels/elementwise/elementwise.hpp"
#include "kernels/expert_blocks/expert_blocks.hpp"
#include "kernels/head_blocks/head_blocks.hpp"
#include "kernels/key_parts/key_parts.hpp"
#include "model/record/recorder.hpp"

namespace tessera {
namespace {

using enum Access;

constexpr std::int64_t slice_numbers = 3;  // a row, of SoftmaxSliceSums

kernels::HeadBlocks head_blocks(const ModelShape& s, std::int64_t H, std::int64_t G) {
  return {.B = s.B, .T = s.T / s.cp, .N = s.cp, .H = H, .G = G, .D = s.D, .dtype = s.dtype};
}

kernels::KeyParts key_parts(const ModelShape& s) {
  const int first = s.tp_index / s.keys_shared * s.keys_shared;
  return {.M = s.tokens(), .H = s.H, .D = s.D, .N = s.tp, .sharing = s.keys_shared, .first = first, .dtype = s.dtype};
}

kernels::ExpertBlocks expert_blocks(const ModelShape& s) { return {.N = s.ep, .E = s.own_experts(), .rows = s.expert_block()}; }

/// Weights of a token.
std::int64_t slots_of(const ModelShape& s) { return s.experts.k + (s.experts.S > 0 ? 1 : 0); }

}  // namespace

void Recorder::exchange(const Exchange& exchange, const std::string& name, Value to, Value from) {
  for (const Value value : {to, from}) segment_.values[static_cast<std::size_t>(value.id)].exchanged = true;
  call({.name = name, .touches = {{to, write}, {from, read}}, .run = {}, .exchange = exchange});
}

Value Recorder::whole_of(Value part, const char* name, std::int64_t N) { return s.tp == 1 ? part : remade(name, {s.tokens(), N}); }

void Recorder::gather_rows(Value whole, Value part) {
  if (s.tp == 1) return;
  const std::int64_t elements = segment_.at(part).bytes / s.bytes_of(1);
  exchange({.kind = CollectiveKind::all_gather, .count = elements, .dtype = s.dtype}, "gather " + name_of(part), whole, part);
}

void Recorder::scatter_rows(Value part, Value sums) {
  if (s.tp == 1) return;
  const std::int64_t elements = segment_.at(part).bytes / s.bytes_of(1);
  exchange({.kind = CollectiveKind::reduce_scatter, .count = elements, .dtype = s.dtype}, "reduce " + name_of(sums), part, sums);
}

void Recorder::gather_keys(Value rows, Value made) {
  if (!s.shares_keys()) return;
  const kernels::KeyParts p = key_parts(s);
  const Value mine = remade("key_part", {p.M, 2 * p.part()}), all = remade("key_parts", {p.N, p.M, 2 * p.part()});
  const auto moved = [&](Value value) { return MemoryWork{2.0 * static_cast<double>(segment_.at(value).bytes)}; };
  call({.name = "take_key_part", .touches = {{mine, write}, {made, read}}, .work = moved(mine), .run = [=](const At& at) {
          kernels::take_key_part(at.context, at.get(mine), at.get(made), p);
        }});
  gather_rows(all, mine);
  call({.name = "join_key_parts", .touches = {{rows, write}, {made, read}, {all, read}}, .work = moved(rows), .run = [=](const At& at) {
          kernels::join_key_parts(at.context, {.rows = at.get(rows), .made = at.get(made), .parts = at.get(all), .shape = p});
        }});
}

void Recorder::scatter_keys(Value d_made, Value d_rows) {
  if (!s.shares_keys()) return;
  const kernels::KeyParts p = key_parts(s);
  const Value all = value("d_key_parts", {p.N, p.M, 2 * p.part()}), mine = value("d_key_part", {p.M, 2 * p.part()});
  call({.name = "spread_key_gradients",
        .touches = {{all, write}, {d_rows, read}},
        .work = MemoryWork{static_cast<double>(segment_.at(all).bytes + s.bytes_of(2 * p.M * p.D))},
        .run = [=](const At& at) {
          kernels::spread_key_gradients(at.context, {.parts = at.get(all), .d_rows = at.get(d_rows), .shape = p});
        }});
  scatter_rows(mine, all);
  call({.name = "put_key_part",
        .touches = {{d_made, write}, {d_rows, read}, {mine, read}},
        .work = MemoryWork{2.0 * static_cast<double>(segment_.at(d_made).bytes)},
        .run = [=](const At& at) { kernels::put_key_part(at.context, at.get(d_made), at.get(d_rows), at.get(mine), p); }});
}

void Recorder::will_need(Value whole) {
  if (s.tp > 1) call({.name = "will_need " + name_of(whole), .touches = {{whole, read}}, .run = {}});
}

void Recorder::linear_to_stream(Value out, Value x, const std::string& w, std::int64_t N, std::int64_t K, Value residual) {
  if (s.tp == 1) return linear(out, x, w, N, K, {.add = residual});
  const Value sums = value("sums", {s.tokens(), N}), met = value("met", {s.rows(), N});
  linear(sums, x, w, N, K);
  scatter_rows(met, sums);
  call({.name = "add", .touches = {{out, write}, {met, read}, {residual, read}}, .run = [=, s = s](const At& at) {
          kernels::add(at.context, at.get(out), at.get(met), at.get(residual), s.rows() * N, s.dtype);
        }});
}

void Recorder::linear_backward_to_part(Value d_part, Value d_y, Value x, const std::string& w, std::int64_t N, std::int64_t K) {
  if (s.tp == 1) return linear_backward(d_part, d_y, x, w, N, K);
  const Value sums = value("d_sums", {s.tokens(), K});
  input_gradient(sums, d_y, w, N, K);
  scatter_rows(d_part, sums);
  weight_gradient(d_y, x, w, N, K);
}

void Recorder::turn_blocks(Value to, Value from, std::int64_t W) {
  exchange({.kind = CollectiveKind::all_to_all, .axis = Axis::cp, .count = s.T / s.cp * W, .dtype = s.dtype, .times = s.B},
           "exchange " + name_of(from), to, from);
}

void Recorder::rows_to_heads(Value of_heads, Value rows, std::int64_t H, std::int64_t G) {
  if (!s.exchanges_heads()) return;
  const std::int64_t W = width_of_rank(H, G);
  const Value blocks = value((name_of(rows) + "_blocks").c_str(), {s.tokens(), s.cp * W});
  call({.name = "rows_to_head_blocks", .touches = {{blocks, write}, {rows, read}}, .run = [=, p = head_blocks(s, H, G)](const At& at) {
          auto here = p;
          here.to = at.get(blocks), here.from = at.get(rows);
          kernels::rows_to_head_blocks(at.context, here);
        }});
  // Blocks of a sequence come one rank's tokens after the other's, which is the order of its rows.
  turn_blocks(of_heads, blocks, W);
}

void Recorder::heads_to_rows(Value rows, Value of_heads, std::int64_t H, std::int64_t G) {
  if (!s.exchanges_heads()) return;
  const std::int64_t W = width_of_rank(H, G);
  const Value blocks = value((name_of(rows) + "_blocks").c_str(), {s.tokens(), s.cp * W});
  turn_blocks(blocks, of_heads, W);
  call({.name = "head_blocks_to_rows", .touches = {{rows, write}, {blocks, read}}, .run = [=, p = head_blocks(s, H, G)](const At& at) {
          auto here = p;
          here.to = at.get(rows), here.from = at.get(blocks);
          kernels::head_blocks_to_rows(at.context, here);
        }});
}

void Recorder::linear_backward_to_heads(Value d_heads, Value d_x, Value d_y, Value x, const std::string& w, std::int64_t N,
                                        std::int64_t K) {
  if (!s.exchanges_heads()) return linear_backward(d_x, d_y, x, w, N, K);
  input_gradient(d_x, d_y, w, N, K);
  rows_to_heads(d_heads, d_x, K / s.D, 0);
  weight_gradient(d_y, x, w, N, K);
}

void Recorder::exchange_blocks(Value to, Value from, std::int64_t count, DType dtype) {
  exchange({.kind = CollectiveKind::all_to_all, .axis = Axis::ep, .count = count, .dtype = dtype}, "exchange " + name_of(from), to, from);
}

Value Recorder::counts_of_all(const Dispatch& to) {
  Value counts = to.counts;
  std::int64_t parts = 1;
  const auto gather = [&](Axis axis, std::int64_t ranks, const char* name) {
    if (ranks == 1 || s.feed != Feed::samples) return;
    const std::int64_t mine = parts * s.experts.E;
    const Value all = value(name, {ranks, mine}, DType::u32);
    exchange({.kind = CollectiveKind::all_gather, .axis = axis, .count = mine, .dtype = DType::u32}, "gather " + name_of(counts), all,
             counts);
    counts = all, parts *= ranks;
  };
  gather(Axis::tp, s.apart, "counts_over_tp");
  gather(Axis::cp, s.cp, "counts_over_cp");
  return counts;
}

Value Recorder::send_labels(const Dispatch& to, Value weights) {
  if (s.ep == 1) return {};
  const kernels::ExpertBlocks blocks = expert_blocks(s);
  const Value sent = value("labels", {s.ep, blocks.labels()}, DType::u32),
              arrived = value("arrived_labels", {s.ep, blocks.labels()}, DType::u32);
  call({.name = "label_blocks",
        .touches = {{sent, write}, {to.offsets, read}, {to.sources, read}, {weights, read}},
        .run = [=, s = s](const At& at) {
          kernels::label_blocks(at.context, {.labels = at.get<std::uint32_t>(sent),
                                             .offsets = at.get<std::int32_t>(to.offsets),
                                             .sources = at.get<std::int32_t>(to.sources),
                                             .weights = at.get<float>(weights),
                                             .k = s.experts.k,
                                             .slots = slots_of(s),
                                             .blocks = blocks});
        }});
  exchange_blocks(arrived, sent, blocks.labels(), DType::u32);
  return arrived;
}

void Recorder::send_rows(Value in, const Dispatch& to) {
  if (s.ep == 1) return;
  const Shape dims{s.arriving_rows(), s.C};
  // The forward pass's may be made again, so that each is written in one place.
  const Value sent = value(in_backward_ ? "d_blocks_here" : "blocks", dims);
  blocks_arrived_ = value(in_backward_ ? "d_blocks_there" : "arrived_blocks", dims);
  if (in_backward_) d_blocks_here_ = sent, d_blocks_there_ = blocks_arrived_;
  gather_rows(sent, in, to);
  exchange_blocks(blocks_arrived_, sent, s.expert_block() * s.C, s.dtype);
}

Arrivals Recorder::arrivals(Value labels, const Dispatch& to) {
  if (s.ep == 1) return {.offsets = to.offsets, .order = {}, .places = {}, .weights = {}};
  const std::int64_t R = s.arriving_rows();
  const Arrivals here{.offsets = value("arrived_offsets", {s.own_experts() + 1}, DType::u32),
                      .order = value("arrived_order", {R}, DType::u32),
                      .places = value("arrived_places", {R}, DType::u32),
                      .weights = value("arrived_weights", {R}, DType::f32)};
  call({.name = "plan_arrivals",
        .touches = {{here.offsets, write}, {here.order, write}, {here.places, write}, {here.weights, write}, {labels, read}},
        .run = [=, blocks = expert_blocks(s)](const At& at) {
          kernels::plan_arrivals(at.context, {.offsets = at.get<std::int32_t>(here.offsets),
                                              .order = at.get<std::int32_t>(here.order),
                                              .places = at.get<std::int32_t>(here.places),
                                              .weights = at.get<float>(here.weights),
                                              .labels = at.get<std::uint32_t>(labels),
                                              .blocks = blocks});
        }});
  return here;
}

void Recorder::sort_rows(Value out, Value in, Value sources) {
  call({.name = "sort_rows " + name_of(out), .touches = {{out, write}, {in, read}, {sources, read}}, .run = [=, s = s](const At& at) {
          kernels::gather_rows(at.context, {.out = at.get(out),
                                            .in = at.get(in),
                                            .sources = at.get<std::int32_t>(sources),
                                            .k = 1,
                                            .rows = s.arriving_rows(),
                                            .C = s.C,
                                            .dtype = s.dtype});
        }});
}

void Recorder::take_rows(Value rows, Value in, const Dispatch& to, const Arrivals& here) {
  if (s.ep == 1) return gather_rows(rows, in, to);
  sort_rows(rows, blocks_arrived_, here.order);
}

Value Recorder::return_rows(Value rows, const Arrivals& here) {
  if (s.ep == 1) return rows;
  const Shape dims{s.arriving_rows(), s.C};
  const Value there = in_backward_ ? d_blocks_there_ : value("out_blocks", dims);
  const Value back = in_backward_ ? d_blocks_here_ : value("returned_blocks", dims);
  sort_rows(there, rows, here.places);
  exchange_blocks(back, there, s.expert_block() * s.C, s.dtype);
  return back;
}

void Recorder::collect_weights(Value d_weights, const Dispatch& to) {
  if (s.ep == 1) return;
  call({.name = "collect_rows " + name_of(d_weights),
        .touches = {{d_weights, write}, {d_row_weights_, read}, {to.places, read}},
        .run = [=, s = s, rows = d_row_weights_](const At& at) {
          kernels::collect_rows(at.context, {.out = at.get<float>(d_weights),
                                             .rows = at.get<float>(rows),
                                             .places = at.get<std::int32_t>(to.places),
                                             .M = s.tokens(),
                                             .k = s.experts.k,
                                             .slots = slots_of(s)});
        }});
}

Value Recorder::expert_backward_to_rows(Value d_x, Value d_y, Value x, const Arrivals& here, const std::string& w, std::int64_t N,
                                        std::int64_t K) {
  if (s.ep == 1) {
    expert_weight_gradient(d_y, x, here, w, N, K);
    expert_input_gradient(d_x, d_y, here, w, N, K);
    return d_x;
  }
  expert_input_gradient(d_x, d_y, here, w, N, K);
  const Value back = return_rows(d_x, here);
  expert_weight_gradient(d_y, x, here, w, N, K);
  return back;
}

void Recorder::softmax_loss_of_slice(Value losses, Value d_logits, Value logits, const Rows& rows) {
  const Value ids = targets();
  if (!slice_sums_) {  // doubles; the first rows are the most at a time
    slice_sums_ = value("slice_sums", {rows.count, slice_numbers}, DType::i64);
    all_sums_ = value("all_sums", {s.tp, rows.count, slice_numbers}, DType::i64);
  }
  const Value mine = slice_sums_, all = all_sums_;
  const Range vocabulary = s.vocabulary();
  call({.name = "softmax_slice_sums", .touches = {{mine, write}, {logits, read}, {ids, read}}, .run = [=](const At& at) {
          kernels::softmax_slice_sums(at.context, {.sums = at.get<double>(mine),
                                                   .logits = at.get<float>(logits),
                                                   .targets = at.get<std::int32_t>(ids) + rows.first,
                                                   .rows = rows.count,
                                                   .V = vocabulary.size(),
                                                   .first = vocabulary.begin});
        }});
  exchange({.kind = CollectiveKind::all_gather, .count = rows.count * slice_numbers, .dtype = DType::i64}, "gather slice_sums", all, mine);
  std::vector<Touch> touches = {{losses, write}, {logits, d_logits == logits ? Access::add : read}, {all, read}, {ids, read}};
  if (d_logits && d_logits != logits) touches.push_back({d_logits, write});
  call({.name = "softmax_slice_loss", .touches = std::move(touches), .run = [=, s = s](const At& at) {
          kernels::softmax_slice_loss(at.context, {.losses = at.get<float>(losses) + rows.first,
                                                   .logits = at.get<float>(logits),
                                                   .d_logits = at.get(d_logits),
                                                   .sums = at.get<double>(all),
                                                   .targets = at.get<std::int32_t>(ids) + rows.first,
                                                   .grad_scale = at.grad_scale,
                                                   .rows = rows.count,
                                                   .V = vocabulary.size(),
                                                   .first = vocabulary.begin,
                                                   .slices = s.tp,
                                                   .dtype = s.dtype});
        }});
}

}  // namespace tessera
