#include "model/axes/tensor.hpp"

#include "kernels/cross_entropy/softmax_slice.hpp"
#include "kernels/elementwise/elementwise.hpp"
#include "kernels/key_parts/key_parts.hpp"
#include "kernels/step/step.hpp"
#include "model/calls/losses.hpp"
#include "model/calls/parts.hpp"
#include "model/calls/products.hpp"

namespace tessera {
namespace {

using enum Access;

constexpr std::int64_t slice_numbers = 3;  // a row, of SoftmaxSliceSums

kernels::KeyParts key_parts(const ModelShape& s) {
  const int first = s.tp_index / s.keys_shared * s.keys_shared;
  return {.M = s.tokens(),
          .H = s.attention.H,
          .D = s.attention.D,
          .Dv = s.attention.Dv,
          .N = s.tp,
          .sharing = s.keys_shared,
          .first = first,
          .dtype = s.dtype};
}

/// Alone, a rank's slice is the vocabulary, and the sums of rows are kept from the pass that makes losses for the one that makes gradients.
void softmax_loss_of_slice(Recorder& r, Value losses, Value d_logits, Value logits, const LossRows& place) {
  const ModelShape& s = r.s;
  const Rows rows = place.rows;
  const CountedRows counted = place.targets.counted;
  const bool alone = s.tp == 1, again = place.twice && d_logits;
  const Value ids = place.targets.targets, weights = place.targets.weights, scale = d_logits ? r.gradient_scale() : Value{};
  Value &noted = r.note("slice_sums"), &noted_all = r.note("all_sums");
  if (!noted) {  // doubles; the first rows are the most at a time
    noted = r.value("slice_sums", {alone ? s.tokens() : rows.count, slice_numbers}, DType::i64);
    noted_all = alone ? noted : r.value("all_sums", {s.tp, rows.count, slice_numbers}, DType::i64);
  }
  const Value mine = noted, all = noted_all;
  const Range vocabulary = s.vocabulary();
  const std::int64_t first_logit = place.logits * vocabulary.size(), first_sum = alone ? rows.first * slice_numbers : 0;
  if (!alone || !again)
    r.call({.name = "softmax_slice_sums",
            .touches = with_reads({{mine, write}, {logits, read}, {ids, read}}, {counted.count}),
            .work = MemoryWork{static_cast<double>(rows.count * vocabulary.size()) * sizeof(float)},
            .run = [=, map = s.logit_map](const At& at) {
              kernels::softmax_slice_sums(at.context, {.sums = at.get<double>(mine) + first_sum,
                                                       .logits = at.get<float>(logits) + first_logit,
                                                       .targets = at.get<std::int32_t>(ids) + rows.first,
                                                       .rows = counted.of(at, rows),
                                                       .V = vocabulary.size(),
                                                       .first = vocabulary.begin,
                                                       .map = map});
            }});
  if (!alone)
    r.exchange({.kind = CollectiveKind::all_gather, .count = rows.count * slice_numbers, .dtype = DType::i64}, "gather slice_sums", all,
               mine);
  std::vector<Touch> touches = {{logits, d_logits == logits ? Access::add : read}, {all, read}, {ids, read}, {weights, read}};
  if (!again) touches.push_back({losses, write});
  if (scale) touches.push_back({scale, read});
  if (counted.count) touches.push_back({counted.count, read});
  if (d_logits && d_logits != logits) touches.push_back({d_logits, write});
  const std::int64_t first_gradient = s.bytes_of(place.d_logits * vocabulary.size());
  r.call({.name = "softmax_slice_loss",
          .touches = std::move(touches),
          .work = work_of_losses(s, place, vocabulary.size(), d_logits, logits),
          .run = [=, s = s](const At& at) {
            // Sums of all ranks lie as many rows apart as a chunk has, so it is made whole or not at all.
            const std::int64_t count = counted.of(at, rows);
            if (count == 0) return;
            kernels::softmax_slice_loss(at.context, {.losses = again ? nullptr : at.get<float>(losses) + rows.first,
                                                     .logits = at.get<float>(logits) + first_logit,
                                                     .d_logits = d_logits ? at.get<std::byte>(d_logits) + first_gradient : nullptr,
                                                     .sums = at.get<double>(all) + first_sum,
                                                     .targets = at.get<std::int32_t>(ids) + rows.first,
                                                     .weights = at.get<float>(weights) + rows.first,
                                                     .grad_scale = scale ? &at.get<kernels::GradientScale>(scale)->of_targets : nullptr,
                                                     .rows = alone ? count : rows.count,
                                                     .V = vocabulary.size(),
                                                     .first = vocabulary.begin,
                                                     .slices = s.tp,
                                                     .dtype = s.dtype,
                                                     .map = s.logit_map});
          }});
}

}  // namespace

Value whole_of(Recorder& r, Value part, const char* name, std::int64_t N) { return r.s.tp == 1 ? part : r.remade(name, {r.s.tokens(), N}); }

void gather_rows(Recorder& r, Value whole, Value part) {
  const ModelShape& s = r.s;
  if (s.tp == 1) return;
  const std::int64_t elements = r.at(part).bytes / s.bytes_of(1);
  r.exchange({.kind = CollectiveKind::all_gather, .count = elements, .dtype = s.dtype}, "gather " + r.name_of(part), whole, part);
}

void will_need(Recorder& r, Value whole) {
  const ModelShape& s = r.s;
  if (s.tp > 1) r.call({.name = "will_need " + r.name_of(whole), .touches = {{whole, read}}, .run = {}});
}

void scatter_rows(Recorder& r, Value part, Value sums) {
  const ModelShape& s = r.s;
  if (s.tp == 1) return;
  const std::int64_t elements = r.at(part).bytes / s.bytes_of(1);
  r.exchange({.kind = CollectiveKind::reduce_scatter, .count = elements, .dtype = s.dtype}, "reduce " + r.name_of(sums), part, sums);
}

Value sums_of(Recorder& r, Value part, const char* name, std::int64_t N) { return r.s.tp == 1 ? part : r.value(name, {r.s.tokens(), N}); }

Value own_qkv(Recorder& r, Value rows, const char* name) {
  return r.s.shares_keys() ? r.remade(name, {r.s.tokens(), r.s.own_qkv_width()}) : rows;
}

void linear_to_stream(Recorder& r, Value out, const std::vector<LeavingProduct>& leaving, Value residual) {
  const ModelShape& s = r.s;
  const bool alone = s.tp == 1;
  const Value sums = alone ? out : r.value("sums", {s.tokens(), s.C}), met = alone || !residual ? out : r.value("met", {s.rows(), s.C});
  for (const LeavingProduct& p : leaving) {
    const bool first = &p == leaving.data();
    // Of the sums that meet one has a bias.
    linear(r, sums, p.y, p.matrix, s.C, p.K,
           {.bias = s.tp_index == 0 ? p.bias : "", .add = alone && first ? residual : Value{}, .adds = !first});
  }
  if (alone) return;
  scatter_rows(r, met, sums);
  if (!residual) return;
  r.call({.name = "add", .touches = {{out, write}, {met, read}, {residual, read}}, .run = [=, s = s](const At& at) {
            kernels::add(at.context, at.get(out), at.get(met), at.get(residual), s.rows() * s.C, s.dtype);
          }});
}

void linear_backward_to_part(Recorder& r, Value d_part, const std::vector<EnteringProduct>& entering, Value x) {
  const ModelShape& s = r.s;
  const auto weights = [&] {
    for (const EnteringProduct& p : entering) weight_gradient(r, p.d_y, x, p.matrix, p.N, s.C);
  };
  if (s.tp == 1) weights();
  const Value sums = s.tp == 1 ? d_part : r.value("d_sums", {s.tokens(), s.C});
  for (const EnteringProduct& p : entering) input_gradient(r, sums, p.d_y, p.matrix, p.N, s.C, {}, &p != entering.data());
  if (s.tp == 1) return;
  scatter_rows(r, d_part, sums);
  weights();
}

void softmax_loss(Recorder& r, Value losses, Value d_logits, Value logits, const LossRows& at) {
  r.s.tp == 1 && !at.twice ? softmax_loss_of_rows(r, losses, d_logits, logits, at) : softmax_loss_of_slice(r, losses, d_logits, logits, at);
}

void gather_keys(Recorder& r, Value rows, Value made) {
  const ModelShape& s = r.s;
  if (!s.shares_keys()) return;
  const kernels::KeyParts p = key_parts(s);
  const Value mine = r.remade("key_part", {p.M, p.part()}), all = r.remade("key_parts", {p.N, p.M, p.part()});
  const auto moved = [&](Value value) { return MemoryWork{2.0 * static_cast<double>(r.at(value).bytes)}; };
  r.call({.name = "take_key_part", .touches = {{mine, write}, {made, read}}, .work = moved(mine), .run = [=](const At& at) {
            kernels::take_key_part(at.context, at.get(mine), at.get(made), p);
          }});
  gather_rows(r, all, mine);
  r.call({.name = "join_key_parts", .touches = {{rows, write}, {made, read}, {all, read}}, .work = moved(rows), .run = [=](const At& at) {
            kernels::join_key_parts(at.context, {.rows = at.get(rows), .made = at.get(made), .parts = at.get(all), .shape = p});
          }});
}

void scatter_keys(Recorder& r, Value d_made, Value d_rows) {
  const ModelShape& s = r.s;
  if (!s.shares_keys()) return;
  const kernels::KeyParts p = key_parts(s);
  const Value all = r.value("d_key_parts", {p.N, p.M, p.part()}), mine = r.value("d_key_part", {p.M, p.part()});
  r.call({.name = "spread_key_gradients",
          .touches = {{all, write}, {d_rows, read}},
          .work = MemoryWork{static_cast<double>(r.at(all).bytes + s.bytes_of(p.M * (p.D + p.value_dim())))},
          .run = [=](const At& at) {
            kernels::spread_key_gradients(at.context, {.parts = at.get(all), .d_rows = at.get(d_rows), .shape = p});
          }});
  scatter_rows(r, mine, all);
  r.call({.name = "put_key_part",
          .touches = {{d_made, write}, {d_rows, read}, {mine, read}},
          .work = MemoryWork{2.0 * static_cast<double>(r.at(d_made).bytes)},
          .run = [=](const At& at) { kernels::put_key_part(at.context, at.get(d_made), at.get(d_rows), at.get(mine), p); }});
}

}  // namespace tessera
