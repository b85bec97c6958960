#include <algorithm>

#include "kernels/step/step.hpp"
#include "kernels/sums/sums.hpp"
#include "schedule/build/schedule_builder.hpp"

namespace tessera {

void ScheduleBuilder::emit_epilogue() {
  for (int u = 0; u < units(); ++u)
    if (unit_at(u).learns() && !plan(u).gradient.offloaded && plan(u).counted) emit_norm(u);
  emit_finish(false);
  if (!updates_late()) emit_updates();
}

void ScheduleBuilder::emit_updates() {
  for (int u = 0; u < units(); ++u) emit_update(u);
  for (int u = 0; u < units(); ++u)
    if (unit_at(u).learns()) emit_pack(u);
}

void ScheduleBuilder::emit_update(int unit) {
  if (!unit_at(unit).learns()) return;
  if (plan(unit).gradient.offloaded)
    emit_offloaded_optimizer(unit);
  else
    emit_optimizer(unit);
  if (!refreshed_first(unit)) emit_publish_gather(unit, Lane::gather);
}

void ScheduleBuilder::owe_updates() {
  owed_.assign(layout_.units.size(), true);
  // Both ends of a pipeline meet in the update of what they share, before either waits for the other's micro-batches.
  for (int u = 0; u < units(); ++u)
    if (unit_at(u).owners & pipeline_ends) emit_owed_update(u);
}

void ScheduleBuilder::emit_owed_update(int unit) {
  if (owed_.empty() || !owed_[index(unit)]) return;
  owed_[index(unit)] = false;
  emit_update(unit);
  if (unit_at(unit).learns()) emit_pack(unit);
}

void ScheduleBuilder::emit_norm(int unit) {
  const UnitPlan& p = plan(unit);
  const std::size_t bytes = kernels::sum_of_squares_workspace_bytes({.n = p.shard, .dtype = p.gradient.kept}, schedule_.shape.backend);
  const int workspace =
      buffer("workspace.norm", Category::workspace, local_tier_, static_cast<std::int64_t>(std::max<std::size_t>(bytes, 64)));
  emit({.name = "norm " + unit_at(unit).name,
        .op = SumSquares{p.shard, p.gradient.kept},
        .uses = {gradient_use(unit, p.owned, Access::read),
                 whole(named("scalars"), Access::add),
                 {workspace, 0, static_cast<std::int64_t>(bytes), Access::write}}});
}

void ScheduleBuilder::emit_finish(bool evaluation) {
  const Use scalars = whole(named("scalars"), Access::add), inputs = whole(named("inputs"), Access::read);
  if (!evaluation && offloads()) {
    emit_upload({"offloaded_sums"});
    emit({.name = "join offloaded sums", .op = JoinSums{}, .uses = {scalars, whole(named("offloaded_sums"), Access::read)}});
  }
  emit({.name = "count flags", .op = CountFlags{}, .uses = {scalars, inputs}});
  if (request_.mesh.ranks() > 1)
    emit({.name = "all-reduce loss, norm and flags",
          .op = Collective{CollectiveKind::all_reduce, request_.axes(), kernels::step_sums, 0, DType::i64},
          .lane = Lane::reduce,
          .uses = {{named("scalars"), 0, 8 * kernels::step_sums, Access::add}}});
  if (schedule_.shape.loss_groups > 0) emit_totals("losses of groups", "group_losses");
  if (has_experts()) emit_totals("router totals", "router");
  emit({.name = evaluation ? "finish evaluation" : "norm, clip factor and learning rate",
        .op = FinishStep{},
        .uses = {whole(named("scalars"), Access::read), inputs, evaluation ? absent() : whole(named("adamw"), Access::write),
                 whole(named("report"), Access::write)}});
  if (!evaluation) emit_balance();
  emit_download("report");
  if (!evaluation && offloads()) emit_download("adamw");
}

void ScheduleBuilder::emit_totals(const char* what, const char* name) {
  const Use totals = whole(named(name), Access::add);
  if (request_.mesh.ranks() > 1)
    emit({.name = fmt::format("all-reduce {}", what),
          .op = Collective{CollectiveKind::all_reduce, request_.axes(), totals.bytes / 8, 0, DType::i64},
          .lane = Lane::reduce,
          .uses = {totals}});
  emit_download(name);
}

void ScheduleBuilder::emit_balance() {
  for (int u = 0; u < units(); ++u)
    if (!unit_at(u).trained)
      emit({.name = "balance routers",
            .op = balance_of(unit_at(u)),
            .uses = {parameter_use(u, plan(u).parameters, Access::add), whole(named("router"), Access::read),
                     whole(named("adamw"), Access::read)}});
}

BalanceRouters ScheduleBuilder::balance_of(const Unit& untrained) const {
  BalanceRouters op{.experts = deck_.model.experts,
                    .stride = round_up(deck_.model.experts, shard_block),
                    .rate = static_cast<float>(deck_.model.router_bias_rate),
                    .runs = {}};
  for (const Slot& slot : untrained.slots) {
    const std::int64_t layer = layout_.table[index(slot.parameter)].layer;
    if (op.runs.empty() || op.runs.back().layer + op.runs.back().layers != layer) op.runs.push_back({layer, 0, slot.offset});
    BalanceRouters::Run& run = op.runs.back();
    TESSERA_REQUIRE(slot.offset == run.offset + run.layers * op.stride, "layer {} begins at element {}", layer, slot.offset);
    ++run.layers;
  }
  return op;
}

void ScheduleBuilder::emit_optimizer(int unit) {
  const std::string& name = unit_at(unit).name;
  const UnitPlan& p = plan(unit);
  const bool copy = compute() != DType::f32;
  const std::int64_t group = std::max<std::int64_t>(shard_block, deck_.zero.sub_group_size / shard_block * shard_block);
  for (std::int64_t begin = p.state.begin; begin < p.state.end; begin += group) {
    const Range some{begin, std::min(p.state.end, begin + group)};
    const std::int64_t at = begin - p.state.begin, n = some.size();
    std::vector<Use> uses{copy ? Use{named("master." + name), 4 * at, 4 * n, Access::add} : parameter_use(unit, some, Access::add),
                          {named("adam_m." + name), 4 * at, 4 * n, Access::add},
                          {named("adam_v." + name), 4 * at, 4 * n, Access::add},
                          gradient_use(unit, some, Access::read),
                          whole(named("adamw"), Access::read)};
    if (copy) uses.push_back(parameter_use(unit, some, Access::write));
    emit({.name = "optimizer " + name, .op = optimizer_step(unit, some), .uses = std::move(uses)});
  }
}

OptimizerStep ScheduleBuilder::optimizer_step(int unit, const Range& elements) const {
  OptimizerStep op{.gradient = plan(unit).gradient.kept,
                   .copy = compute() != DType::f32,
                   .begin = elements.begin,
                   .pieces = pieces_in(unit_at(unit), elements.begin, elements.end),
                   .rates = {}};
  for (const Piece& piece : op.pieces) op.rates.push_back(rates_of(deck_.optimizer, layout_.table[index(piece.parameter)]));
  return op;
}

bool ScheduleBuilder::refreshed_first(int unit) const {
  const UnitPlan& p = plan(unit);
  return request_.training() && !unit_at(unit).frozen && p.sources.size > 1 && !p.storage.parameters_whole && !updates_late();
}

void ScheduleBuilder::emit_publish_gather(int unit, Lane lane) {
  const UnitPlan& p = plan(unit);
  if (!request_.training() || p.sources.size == 1) return;
  for (const Range& cut : cut_shard(p.shard, p.sources.size, deck_.zero.allgather_bucket_size)) {
    const std::int64_t first = p.parameters.begin;
    const Range all{first + cut.begin, first + (p.sources.size - 1) * p.shard + cut.end};
    const Range mine{p.owned.begin + cut.begin, p.owned.begin + cut.end};
    emit({.name = "gather " + unit_at(unit).name + " (updated)",
          .op = Collective{CollectiveKind::all_gather, p.sources.axes, cut.size(), p.shard, compute()},
          .lane = lane,
          .uses = {parameter_use(unit, all, Access::write), parameter_use(unit, mine, Access::read)},
          .bytes_moved = static_cast<double>(compute_bytes(cut.size())) * (p.sources.size - 1)});
  }
}

}  // namespace tessera
