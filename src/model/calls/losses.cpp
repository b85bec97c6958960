#include "model/calls/losses.hpp"

#include "kernels/argmax/argmax.hpp"
#include "kernels/cross_entropy/cross_entropy.hpp"
#include "kernels/elementwise/elementwise.hpp"
#include "kernels/group_losses/group_losses.hpp"
#include "kernels/preference_scale/preference_scale.hpp"
#include "kernels/step/step.hpp"
#include "model/calls/products.hpp"

namespace tessera {
namespace {

using enum Access;

}  // namespace

MemoryWork work_of_losses(const ModelShape& s, const LossRows& at, std::int64_t V, Value d_logits, Value logits) {
  const std::int64_t apart = d_logits && d_logits != logits ? s.bytes_of(1) : 0;
  return {static_cast<double>(at.rows.count * V * (2 * static_cast<std::int64_t>(sizeof(float)) + apart))};
}

void softmax_loss_of_rows(Recorder& r, Value losses, Value d_logits, Value logits, const LossRows& place) {
  const ModelShape& s = r.s;
  const Rows rows = place.rows;
  const CountedRows counted = place.targets.counted;
  const Value ids = place.targets.targets, weights = place.targets.weights, scale = d_logits ? r.gradient_scale() : Value{};
  std::vector<Touch> touches = {{losses, write}, {logits, Access::add}, {ids, read}, {weights, read}};
  if (scale) touches.push_back({scale, read});
  if (counted.count) touches.push_back({counted.count, read});
  if (d_logits && d_logits != logits) touches.push_back({d_logits, write});
  r.call({.name = "softmax_loss",
          .touches = std::move(touches),
          .work = work_of_losses(s, place, s.V, d_logits, logits),
          .run = [=, s = s](const At& at) {
            softmax_loss_rows(at.context, {.losses = at.get<float>(losses) + rows.first,
                                           .logits = at.get<float>(logits) + place.logits * s.V,
                                           .d_logits = d_logits ? at.get<std::byte>(d_logits) + s.bytes_of(place.d_logits * s.V) : nullptr,
                                           .targets = at.get<std::int32_t>(ids) + rows.first,
                                           .weights = at.get<float>(weights) + rows.first,
                                           .grad_scale = scale ? &at.get<kernels::GradientScale>(scale)->of_targets : nullptr,
                                           .rows = counted.of(at, rows),
                                           .V = s.V,
                                           .dtype = s.dtype,
                                           .map = s.logit_map});
          }});
}

void sum_losses(Recorder& r, Value sum, Value losses) {
  const ModelShape& s = r.s;
  r.call({.name = "sum_losses", .touches = {{sum, write}, {losses, read}}, .run = [=, s = s](const At& at) {
            kernels::sum_losses(at.context,
                                {.sum = at.get<double>(sum), .losses = at.get<float>(losses) + s.tp_index * s.rows(), .M = s.rows()});
          }});
}

void add_group_losses(Recorder& r, Value losses) {
  const ModelShape& s = r.s;
  if (s.loss_groups == 0) return;
  const Value weights = r.row_weights(), members = r.declare({.kind = ValueKind::token_groups, .name = "token_groups"}),
              totals = r.declare({.kind = ValueKind::group_losses, .name = "group_losses"});
  r.call({.name = "add_group_losses",
          .touches = {{totals, Access::add}, {losses, read}, {weights, read}, {members, read}},
          .run = [=, s = s, first = s.tp_index * s.rows()](const At& at) {
            kernels::add_group_losses(at.context, {.totals = at.get<kernels::GroupTotals>(totals),
                                                   .losses = at.get<float>(losses) + first,
                                                   .weights = at.get<float>(weights) + first,
                                                   .members = at.get<std::int32_t>(members) + first,
                                                   .M = s.rows(),
                                                   .groups = s.loss_groups});
          }});
}

void sum_sequences(Recorder& r, Value sums, Value losses) {
  const ModelShape& s = r.s;
  const Value weights = r.row_weights(), sequences = r.declare({.kind = ValueKind::sequences, .name = "sequences"});
  const std::int64_t number = s.sequences() * kernels::group_sums;
  r.call({.name = "sum_sequences",
          .touches = {{sums, write}, {losses, read}, {weights, read}, {sequences, read}},
          .run = [=, M = s.tokens(), groups = s.sequences()](const At& at) {
            auto* totals = at.get<kernels::GroupTotals>(sums);
            kernels::fill_zero(at.context, totals, static_cast<std::size_t>(number) * sizeof(std::int64_t));
            kernels::add_group_losses(at.context, {.totals = totals,
                                                   .losses = at.get<float>(losses),
                                                   .weights = at.get<float>(weights),
                                                   .members = at.get<std::int32_t>(sequences),
                                                   .M = M,
                                                   .groups = groups});
          }});
  if (s.cp > 1)
    r.exchange({.kind = CollectiveKind::all_reduce, .axis = Axis::cp, .count = number, .dtype = DType::i64}, "reduce " + r.name_of(sums),
               sums, sums);
}

void preference_loss(Recorder& r, Value weights, Value sums) {
  const ModelShape& s = r.s;
  const Value counts = r.declare({.kind = ValueKind::sequence_counts, .name = "sequence_counts"}),
              reference = s.preference.has_reference ? r.declare({.kind = ValueKind::reference_logps, .name = "reference_logps"}) : Value{},
              totals = r.declare({.kind = ValueKind::preference_totals, .name = "preference"}), scalars = r.scalars(),
              coefficients = weights ? r.value("coefficients", {s.sequences()}, DType::f32) : Value{},
              scale = r.value("preference_scale", {3}, DType::i64);  // doubles
  r.call({.name = "preference_scale", .touches = {{scale, write}, {scalars, read}}, .run = [=](const At& at) {
            kernels::preference_scale(at.context, at.get<kernels::PreferenceScale>(scale), at.get<kernels::StepScalars>(scalars));
          }});
  std::vector<Touch> touches = {{scalars, Access::add}, {totals, Access::add}, {sums, read}, {counts, read}, {scale, read}};
  if (reference) touches.push_back({reference, read});
  if (coefficients) touches.push_back({coefficients, write});
  // Of ranks that share the micro-batch one counts it.
  r.call({.name = "preference_coefficients",
          .touches = std::move(touches),
          .run = [=, S = s.sequences(), rules = s.preference.rules, counted = s.tp_index == 0 && s.cp_index == 0](const At& at) {
            auto* step = at.get<kernels::StepScalars>(scalars);
            kernels::preference_coefficients(at.context, {.coefficients = at.get<float>(coefficients),
                                                          .loss = counted ? &step->loss : nullptr,
                                                          .totals = counted ? at.get<kernels::PreferenceTotals>(totals) : nullptr,
                                                          .not_finite = &step->not_finite,
                                                          .sums = at.get<kernels::GroupTotals>(sums),
                                                          .counts = at.get<std::int32_t>(counts),
                                                          .reference = at.get<double>(reference),
                                                          .scale = at.get<kernels::PreferenceScale>(scale),
                                                          .rules = rules,
                                                          .S = S});
          }});
  if (!weights) return;
  const Value sequences = r.declare({.kind = ValueKind::sequences, .name = "sequences"});
  r.call({.name = "preference_row_weights",
          .touches = {{weights, write}, {coefficients, read}, {sequences, read}},
          .run = [=, M = s.tokens(), number = s.sequences()](const At& at) {
            kernels::preference_row_weights(at.context, {.weights = at.get<float>(weights),
                                                         .coefficients = at.get<float>(coefficients),
                                                         .groups = at.get<std::int32_t>(sequences),
                                                         .M = M,
                                                         .number = number});
          }});
}

void make_reference(Recorder& r, Value sums) {
  const Value counts = r.declare({.kind = ValueKind::sequence_counts, .name = "sequence_counts"}),
              reference = r.declare({.kind = ValueKind::reference_logps, .name = "reference_logps"}), scalars = r.scalars();
  r.call({.name = "sequence_log_probabilities",
          .touches = {{reference, write}, {scalars, Access::add}, {sums, read}, {counts, read}},
          .run = [=, S = r.s.sequences()](const At& at) {
            kernels::sequence_log_probabilities(at.context, {.log_probabilities = at.get<double>(reference),
                                                             .not_finite = &at.get<kernels::StepScalars>(scalars)->not_finite,
                                                             .sums = at.get<kernels::GroupTotals>(sums),
                                                             .counts = at.get<std::int32_t>(counts),
                                                             .S = S});
          }});
}

void add_loss(Recorder& r, Value sum) {
  const Value scalars = r.scalars();
  r.call({.name = "add_loss", .touches = {{sum, read}, {scalars, Access::add}}, .run = [=](const At& at) {
            kernels::add_loss(at.context, {.scalars = at.get<kernels::StepScalars>(scalars), .loss_sum = at.get<double>(sum)});
          }});
}

void next_token(Recorder& r, Value x, const std::string& w) {
  const ModelShape& s = r.s;
  const Value logits = r.declare({.kind = ValueKind::logits, .name = "logits", .bytes = 4 * s.V});
  linear(r, logits, x, w, s.V, s.C, {.bias = head_bias(s), .rows = Rows{s.tokens() - 1, 1}, .fp32 = true});
  if (s.logit_map != kernels::LogitMap{})
    r.call({.name = "map_logits", .touches = {{logits, Access::add}}, .run = [=, s = s](const At& at) {
              kernels::map_logits(at.context, at.get<float>(logits), s.V, s.logit_map);
            }});
  if (!s.likeliest) return;
  const Value id = r.declare({.kind = ValueKind::likeliest, .name = "likeliest"});
  r.call({.name = "argmax", .touches = {{id, write}, {logits, read}}, .run = [=, s = s](const At& at) {
            argmax(at.context, {.index = at.get<std::int32_t>(id), .x = at.get<float>(logits), .n = s.V});
          }});
}

}  // namespace tessera
