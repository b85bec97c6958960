#include "model/calls/losses.hpp"

#include "kernels/argmax/argmax.hpp"
#include "kernels/cross_entropy/cross_entropy.hpp"
#include "kernels/group_losses/group_losses.hpp"
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
