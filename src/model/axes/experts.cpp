#include "model/axes/experts.hpp"

#include "kernels/expert_blocks/expert_blocks.hpp"

namespace tessera {
namespace {

using enum Access;

// What the recorder notes: blocks that send_rows brings; of the backward pass those of this rank's tokens, and those for its experts; and
// by weigh_rows the gradients of weights, in the order in which this rank has sent its rows.
constexpr const char *blocks = "blocks", *d_blocks_here = "d_blocks_here", *d_blocks_there = "d_blocks_there",
                     *row_weights = "d_row_weights";

kernels::ExpertBlocks expert_blocks(const ModelShape& s) { return {.N = s.ep, .E = s.own_experts(), .rows = s.expert_block()}; }

/// A block for each rank, of `count` elements: `to` has those of all ranks for this one.
void exchange_blocks(Recorder& r, Value to, Value from, std::int64_t count, DType dtype) {
  r.exchange({.kind = CollectiveKind::all_to_all, .axis = Axis::ep, .count = count, .dtype = dtype}, "exchange " + r.name_of(from), to,
             from);
}

/// out row i = in row sources[i]; where that is negative, zeros.
void sort_rows(Recorder& r, Value out, Value in, Value sources) {
  const ModelShape& s = r.s;
  r.call({.name = "sort_rows " + r.name_of(out), .touches = {{out, write}, {in, read}, {sources, read}}, .run = [=, s = s](const At& at) {
            kernels::gather_rows(at.context, {.out = at.get(out),
                                              .in = at.get(in),
                                              .sources = at.get<std::int32_t>(sources),
                                              .k = 1,
                                              .rows = s.arriving_rows(),
                                              .C = s.C,
                                              .dtype = s.dtype});
          }});
}

}  // namespace

Value counts_of_all(Recorder& r, const Dispatch& to) {
  const ModelShape& s = r.s;
  Value counts = to.counts;
  std::int64_t parts = 1;
  const auto gather = [&](Axis axis, std::int64_t ranks, const char* name) {
    if (ranks == 1 || s.feed != Feed::samples) return;
    const std::int64_t mine = parts * s.router.E;
    const Value all = r.value(name, {ranks, mine}, DType::u32);
    r.exchange({.kind = CollectiveKind::all_gather, .axis = axis, .count = mine, .dtype = DType::u32}, "gather " + r.name_of(counts), all,
               counts);
    counts = all, parts *= ranks;
  };
  gather(Axis::tp, s.row_ranks, "counts_over_tp");
  gather(Axis::cp, s.cp, "counts_over_cp");
  return counts;
}

Value send_labels(Recorder& r, const Dispatch& to, Value weights) {
  const ModelShape& s = r.s;
  if (s.ep == 1) return {};
  const kernels::ExpertBlocks blocks = expert_blocks(s);
  const Value sent = r.value("labels", {s.ep, blocks.labels()}, DType::u32),
              arrived = r.value("arrived_labels", {s.ep, blocks.labels()}, DType::u32);
  r.call({.name = "label_blocks",
          .touches = {{sent, write}, {to.offsets, read}, {to.sources, read}, {weights, read}},
          .run = [=, s = s](const At& at) {
            kernels::label_blocks(at.context, {.labels = at.get<std::uint32_t>(sent),
                                               .offsets = at.get<std::int32_t>(to.offsets),
                                               .sources = at.get<std::int32_t>(to.sources),
                                               .weights = at.get<float>(weights),
                                               .k = s.router.k,
                                               .slots = router_shape(s).slots(),
                                               .blocks = blocks});
          }});
  exchange_blocks(r, arrived, sent, blocks.labels(), DType::u32);
  return arrived;
}

void send_rows(Recorder& r, Value in, const Dispatch& to) {
  const ModelShape& s = r.s;
  if (s.ep == 1) return;
  const Shape dims{s.arriving_rows(), s.C};
  // The forward pass's may be made again, so that each is written in one place.
  const Value sent = r.value(r.in_backward() ? "d_blocks_here" : "blocks", dims);
  r.note(blocks) = r.value(r.in_backward() ? "d_blocks_there" : "arrived_blocks", dims);
  if (r.in_backward()) r.note(d_blocks_here) = sent, r.note(d_blocks_there) = r.note(blocks);
  gather_rows(r, sent, in, to);
  exchange_blocks(r, r.note(blocks), sent, s.expert_block() * s.C, s.dtype);
}

Arrivals arrivals(Recorder& r, Value labels, const Dispatch& to) {
  const ModelShape& s = r.s;
  if (s.ep == 1) return {.offsets = to.offsets, .order = {}, .places = {}, .weights = {}};
  const std::int64_t R = s.arriving_rows();
  const Arrivals here{.offsets = r.value("arrived_offsets", {s.own_experts() + 1}, DType::u32),
                      .order = r.value("arrived_order", {R}, DType::u32),
                      .places = r.value("arrived_places", {R}, DType::u32),
                      .weights = r.value("arrived_weights", {R}, DType::f32)};
  r.call({.name = "plan_arrivals",
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

void take_rows(Recorder& r, Value rows, Value in, const Dispatch& to, const Arrivals& here) {
  const ModelShape& s = r.s;
  if (s.ep == 1) return gather_rows(r, rows, in, to);
  sort_rows(r, rows, r.note(blocks), here.order);
}

Value return_rows(Recorder& r, Value rows, const Arrivals& here) {
  const ModelShape& s = r.s;
  if (s.ep == 1) return rows;
  const Shape dims{s.arriving_rows(), s.C};
  const Value there = r.in_backward() ? r.note(d_blocks_there) : r.value("out_blocks", dims);
  const Value back = r.in_backward() ? r.note(d_blocks_here) : r.value("returned_blocks", dims);
  sort_rows(r, there, rows, here.places);
  exchange_blocks(r, back, there, s.expert_block() * s.C, s.dtype);
  return back;
}

void weigh_rows(Recorder& r, Value d_weights, Value d, Value a, Value weights, const Dispatch& to, const Arrivals& here, Value d_y,
                const std::string& bias) {
  const ModelShape& s = r.s;
  const std::int64_t R = s.arriving_rows();
  kernels::WeighRows rows{.k = s.router.k, .slots = router_shape(s).slots(), .rows = R, .F = s.router.F, .dtype = s.dtype};
  const auto weigh_bias = [&](Value d_weights, const RowWeights& row) {
    if (bias.empty()) return;
    weigh_expert_bias(r, d_weights, d_y, here, bias, s.C, row);
    expert_bias_gradient(r, d_y, here, bias, s.C, row);
  };
  if (s.ep == 1) {
    weigh(r, d_weights, d, a, weights, rows, to.sources, s.tokens() * rows.slots);
    return weigh_bias(d_weights, {weights, to.sources, rows.k, rows.slots});
  }
  rows.k = rows.slots = 1;  // a weight a row, as rows have arrived
  const Value found = r.value("d_arrived_weights", {R}, DType::f32);
  r.note(row_weights) = r.value("d_row_weights", {R}, DType::f32);
  weigh(r, found, d, a, here.weights, rows, here.order, R);
  weigh_bias(found, {here.weights, here.order});
  exchange_blocks(r, r.note(row_weights), found, s.expert_block(), DType::f32);
}

void weigh_shared(Recorder& r, Value d_weights, Value d, Value a, Value weights) {
  const ModelShape& s = r.s;
  const kernels::WeighRows rows{.k = s.router.k, .slots = router_shape(s).slots(), .rows = s.tokens(), .F = s.router.S, .dtype = s.dtype};
  weigh(r, d_weights, d, a, weights, rows, {}, 0);
}

void collect_weights(Recorder& r, Value d_weights, const Dispatch& to) {
  const ModelShape& s = r.s;
  if (s.ep == 1) return;
  r.call({.name = "collect_rows " + r.name_of(d_weights),
          .touches = {{d_weights, write}, {r.note(row_weights), read}, {to.places, read}},
          .run = [=, s = s, rows = r.note(row_weights)](const At& at) {
            kernels::collect_rows(at.context, {.out = at.get<float>(d_weights),
                                               .rows = at.get<float>(rows),
                                               .places = at.get<std::int32_t>(to.places),
                                               .M = s.tokens(),
                                               .k = s.router.k,
                                               .slots = router_shape(s).slots()});
          }});
}

Value expert_backward_to_rows(Recorder& r, Value d_x, Value d_y, Value x, const Arrivals& here, const std::string& w, std::int64_t N,
                              std::int64_t K) {
  const ModelShape& s = r.s;
  if (s.ep == 1) {
    expert_weight_gradient(r, d_y, x, here, w, N, K);
    expert_input_gradient(r, d_x, d_y, here, w, N, K);
    return d_x;
  }
  expert_input_gradient(r, d_x, d_y, here, w, N, K);
  const Value back = return_rows(r, d_x, here);
  expert_weight_gradient(r, d_y, x, here, w, N, K);
  return back;
}

}  // namespace tessera
