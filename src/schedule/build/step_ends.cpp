#include "schedule/build/step_ends.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/step/step.hpp"
#include "kernels/sums/sums.hpp"
#include "schedule/build/fp8_scales.hpp"
#include "schedule/build/unit_update.hpp"
#include "schedule/inputs.hpp"

namespace tessera {
namespace {

void emit_norm(Emitter& out, int unit) {
  const UnitPlan& p = out.frame.plan(unit);
  const Range counted = p.gradient.own ? p.gradient.held : p.owned;
  const kernels::SumOfSquares shape{.n = counted.size(), .dtype = p.gradient.kept};
  const auto bytes = static_cast<std::int64_t>(kernels::sum_of_squares_workspace_bytes(shape, out.frame.shape.backend));
  const int workspace = out.buffers.declare("workspace.norm", Category::workspace, out.frame.local_tier, std::max<std::int64_t>(bytes, 64));
  out.emit({.name = "norm " + out.frame.unit_at(unit).name,
            .op = SumSquares{counted.size(), p.gradient.kept},
            .uses = {out.buffers.gradients(unit, counted, Access::read),
                     out.buffers.whole("scalars", Access::add),
                     {workspace, 0, bytes, Access::write},
                     out.frame.scales_sums() ? out.buffers.whole("run", Access::read) : out.buffers.absent()}});
}

/// Adds up int64 totals of a buffer over all ranks, for the host to read.
void emit_totals(Emitter& out, const char* what, const char* name) {
  const Use totals = out.buffers.whole(name, Access::add);
  if (out.frame.request.mesh.ranks() > 1)
    out.emit({.name = fmt::format("all-reduce {}", what),
              .op = Collective{CollectiveKind::all_reduce, out.frame.request.axes(), totals.bytes / 8, 0, DType::i64},
              .lane = Lane::reduce,
              .uses = {totals}});
  emit_download(out, name);
}

BalanceRouters balance_of(const Emitter& out, const Unit& untrained) {
  BalanceRouters op{.experts = out.frame.deck.model.experts,
                    .stride = round_up(out.frame.deck.model.experts, shard_block),
                    .rate = static_cast<float>(out.frame.deck.model.router_bias_rate),
                    .runs = {}};
  for (const Slot& slot : untrained.slots) {
    const std::int64_t layer = out.frame.layout.table[index(slot.parameter)].layer;
    if (op.runs.empty() || op.runs.back().layer + op.runs.back().layers != layer) op.runs.push_back({layer, 0, slot.offset});
    BalanceRouters::Run& run = op.runs.back();
    TESSERA_REQUIRE(slot.offset == run.offset + run.layers * op.stride, "layer {} begins at element {}", layer, slot.offset);
    ++run.layers;
  }
  return op;
}

/// Moves the biases of routers by the step's loads.
void emit_balance(Emitter& out) {
  for (int u = 0; u < out.frame.units(); ++u)
    if (!out.frame.unit_at(u).trained && !out.frame.unit_at(u).frozen)
      out.emit({.name = "balance routers",
                .op = balance_of(out, out.frame.unit_at(u)),
                .uses = {out.buffers.parameters(u, out.frame.plan(u).parameters, Access::add), out.buffers.whole("router", Access::read),
                         out.buffers.whole("update", Access::read)}});
}

}  // namespace

void emit_sums_over_ranks(Emitter& out, const std::string& name, std::int64_t first, std::int64_t count, const std::string& scalars) {
  if (out.frame.request.mesh.ranks() == 1) return;
  out.emit({.name = name,
            .op = Collective{CollectiveKind::all_reduce, out.frame.request.axes(), count, 0, DType::i64},
            .lane = Lane::reduce,
            .uses = {{out.buffers.named(scalars), 8 * first, 8 * count, Access::add}}});
}

void emit_copy(Emitter& out, const char* verb, const std::string& to, const std::string& from) {
  out.emit({.name = fmt::format("{} {}", verb, to),
            .op = Copy{},
            .uses = {out.buffers.whole(to, Access::write), out.buffers.whole(from, Access::read)}});
}

void emit_upload(Emitter& out, const std::vector<std::string>& names) {
  if (!out.frame.on_gpu()) return;
  for (const std::string& name : names)
    if (out.buffers.has(name)) emit_copy(out, "upload", name, Buffers::host_side(name));
}

void emit_download(Emitter& out, const std::string& name) {
  if (out.frame.on_gpu()) emit_copy(out, "download", Buffers::host_side(name), name);
}

void emit_begin(Emitter& out) {
  for (const InputRow& row : input_rows) emit_upload(out, {row.name});
  if (out.frame.shape.rotation.by_longest)
    for (int rotation = 0; rotation < static_cast<int>(out.frame.shape.rotation.tables.size()); ++rotation)
      emit_upload(out, {name_of_rotation("rope", rotation)});
  emit_upload(out, {"inputs"});
  out.emit({.name = "begin sums",
            .op = BeginStep{},
            .uses = {out.buffers.whole("scalars", Access::write), out.buffers.whole("inputs", Access::read)}});
  emit_sums_over_ranks(out, "all-reduce counts of the batch", 0, kernels::step_counts);
  if (out.frame.shape.loss_groups > 0)
    out.emit({.name = "clear losses of groups", .op = Zero{}, .uses = {out.buffers.whole("group_losses", Access::write)}});
  if (out.frame.shape.preference.on)
    out.emit({.name = "clear totals of preferences", .op = Zero{}, .uses = {out.buffers.whole("preference", Access::write)}});
  if (out.frame.has_experts())
    out.emit({.name = "clear router totals", .op = Zero{}, .uses = {out.buffers.whole("router", Access::write)}});
  for (int u = 0; u < out.frame.units(); ++u)
    if (out.frame.refreshed_first(u)) emit_publish_gather(out, u, Lane::reduce);
}

void emit_errors_cleared(Emitter& out) {
  for (int u = 0; u < out.frame.units(); ++u) {
    if (!out.frame.plan(u).gradient.keeps_error) continue;
    std::vector<Use> errors;
    for (const GradientHop& hop : gradient_hops(out.frame.plan(u), out.frame.unit_at(u).elements))
      errors.push_back(out.buffers.whole(out.frame.error_name(u, hop.wire), Access::write));
    out.emit({.name = "clear errors of " + out.frame.unit_at(u).name, .op = Zero{}, .uses = std::move(errors)});
  }
}

void emit_gradient_scale(Emitter& out) {
  out.emit({.name = "scale of gradients",
            .op = ScaleGradients{},
            .uses = {out.buffers.whole("gradient_scale", Access::write), out.buffers.whole("scalars", Access::read),
                     out.buffers.whole("inputs", Access::read), out.buffers.whole("run", Access::read)}});
}

void emit_epilogue(Emitter& out) {
  for (int u = 0; u < out.frame.units(); ++u)
    if (out.frame.unit_at(u).learns() && !out.frame.plan(u).gradient.offloaded && out.frame.plan(u).counted) emit_norm(out, u);
  emit_finish(out, false);
  emit_fp8_scales(out, true);
  if (!out.frame.updates_late()) emit_updates(out);
}

void emit_finish(Emitter& out, bool evaluation) {
  const Use scalars = out.buffers.whole("scalars", Access::add), inputs = out.buffers.whole("inputs", Access::read);
  if (!evaluation && out.frame.offloads()) {
    emit_upload(out, {"offloaded_sums"});
    out.emit({.name = "join offloaded sums", .op = JoinSums{}, .uses = {scalars, out.buffers.whole("offloaded_sums", Access::read)}});
  }
  out.emit({.name = "count flags", .op = CountFlags{}, .uses = {scalars, inputs}});
  emit_sums_over_ranks(out, "all-reduce loss, norm and flags", kernels::step_counts, kernels::step_sums);
  if (out.frame.shape.loss_groups > 0) emit_totals(out, "losses of groups", "group_losses");
  if (out.frame.shape.preference.on) emit_totals(out, "totals of preferences", "preference");
  if (out.frame.has_experts()) emit_totals(out, "router totals", "router");
  out.emit(
      {.name = evaluation ? "finish evaluation" : "norm, clip factor and learning rate",
       .op = FinishStep{},
       .uses = {out.buffers.whole("scalars", Access::read), inputs,
                evaluation ? out.buffers.absent() : out.buffers.whole("update", Access::write), out.buffers.whole("report", Access::write),
                evaluation ? out.buffers.absent() : out.buffers.whole("run", Access::add)}});
  if (!evaluation && out.frame.deck.model.router_bias_rate > 0) emit_balance(out);
  emit_download(out, "report");
  if (!evaluation) emit_download(out, "run");
  if (!evaluation && out.frame.offloads()) emit_download(out, "update");
}

}  // namespace tessera
