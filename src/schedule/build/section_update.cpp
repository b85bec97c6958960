// Begin and end of a step: what comes up and is cleared, norms and scalars, updates and the compute copies that they change.
#include <fmt/format.h>

#include <algorithm>

#include "kernels/fixed/fixed_sum.hpp"
#include "kernels/step/step.hpp"
#include "kernels/sums/sums.hpp"
#include "schedule/build/section_builder.hpp"
#include "schedule/inputs.hpp"

namespace tessera {

namespace {

/// Of the sums of lines of a unit, before those of a slot.
std::int64_t words_before(const LinesBefore& lines, std::int64_t slots) {
  return kernels::words_of_line * (lines.rows + lines.columns) + kernels::words_of_matrix * slots;
}

}  // namespace

void SectionBuilder::emit_copy(const char* verb, const std::string& to, const std::string& from) {
  emit({.name = fmt::format("{} {}", verb, to),
        .op = Copy{},
        .uses = {buffers_.whole(to, Access::write), buffers_.whole(from, Access::read)}});
}

void SectionBuilder::emit_upload(const std::vector<std::string>& names) {
  if (!frame_.on_gpu()) return;
  for (const std::string& name : names)
    if (buffers_.has(name)) emit_copy("upload", name, Buffers::host_side(name));
}

void SectionBuilder::emit_download(const std::string& name) {
  if (frame_.on_gpu()) emit_copy("download", Buffers::host_side(name), name);
}

void SectionBuilder::emit_begin() {
  for (const InputRow& row : input_rows) emit_upload({row.name});
  if (frame_.shape.turns_by_longest)
    for (int rotation = 0; rotation < static_cast<int>(frame_.shape.rotations.size()); ++rotation)
      emit_upload({name_of_rotation("rope", rotation)});
  emit_upload({"inputs"});
  emit({.name = "begin sums",
        .op = BeginStep{},
        .uses = {buffers_.whole("scalars", Access::write), buffers_.whole("inputs", Access::read)}});
  emit_sums_over_ranks("all-reduce counts of the batch", 0, kernels::step_counts);
  if (frame_.shape.loss_groups > 0)
    emit({.name = "clear losses of groups", .op = Zero{}, .uses = {buffers_.whole("group_losses", Access::write)}});
  if (frame_.has_experts()) emit({.name = "clear router totals", .op = Zero{}, .uses = {buffers_.whole("router", Access::write)}});
  for (int u = 0; u < frame_.units(); ++u)
    if (frame_.refreshed_first(u)) emit_publish_gather(u, Lane::reduce);
}

void SectionBuilder::emit_errors_cleared() {
  for (int u = 0; u < frame_.units(); ++u) {
    if (!frame_.plan(u).gradient.keeps_error) continue;
    std::vector<Use> errors;
    for (const GradientHop& hop : gradient_hops(frame_.plan(u), frame_.unit_at(u).elements))
      errors.push_back(buffers_.whole(frame_.error_name(u, hop.wire), Access::write));
    emit({.name = "clear errors of " + frame_.unit_at(u).name, .op = Zero{}, .uses = std::move(errors)});
  }
}

void SectionBuilder::emit_sums_over_ranks(const std::string& name, std::int64_t first, std::int64_t count, const std::string& scalars) {
  if (frame_.request.mesh.ranks() == 1) return;
  emit({.name = name,
        .op = Collective{CollectiveKind::all_reduce, frame_.request.axes(), count, 0, DType::i64},
        .lane = Lane::reduce,
        .uses = {{buffers_.named(scalars), 8 * first, 8 * count, Access::add}}});
}

void SectionBuilder::emit_gradient_scale() {
  emit({.name = "scale of gradients",
        .op = ScaleGradients{},
        .uses = {buffers_.whole("gradient_scale", Access::write), buffers_.whole("scalars", Access::read),
                 buffers_.whole("inputs", Access::read), buffers_.whole("run", Access::read)}});
}

void SectionBuilder::emit_cast(int unit) {
  if (frame_.plan(unit).gradient.offloaded) return emit_offloaded_cast(unit);
  if (!frame_.training() || frame_.unit_at(unit).frozen || frame_.copy_is_master(unit)) return;
  const Range& state = frame_.plan(unit).state;
  if (frame_.plan(unit).encoded) {
    emit(encoding(unit, state, buffers_.parameters(unit, state, Access::write), buffers_.master(unit, state, Access::read)));
    return;
  }
  emit({.name = "cast " + frame_.unit_at(unit).name,
        .op = Round{.count = state.size(), .to = frame_.type_of(unit)},
        .uses = {buffers_.parameters(unit, state, Access::write), buffers_.whole("master." + frame_.unit_at(unit).name, Access::read)}});
}

void SectionBuilder::emit_pack(int unit) {
  for (const auto& [of, v] : frame_.packed()) {
    if (of != unit) continue;
    const TensorRef ref = frame_.layout.find(v->name);
    const Use weight{buffers_.named("parameters." + frame_.unit_at(unit).name), frame_.compute_bytes(ref.offset),
                     frame_.compute_bytes(ref.elements), Access::read};
    emit({.name = fmt::format("pack {} ({})", v->name, v->product.b_transposed ? "forward" : "backward"),
          .op = PackWeight{v->product},
          .uses = {buffers_.whole(packed_name(*v), Access::write), weight,
                   has_scale(unit) ? fp8_of_weight("fp8_multipliers", v->name, Access::read) : buffers_.absent(),
                   has_scale(unit) ? fp8_of_weight("fp8_largest", v->name, Access::add) : buffers_.absent()}});
  }
}

void SectionBuilder::emit_epilogue() {
  for (int u = 0; u < frame_.units(); ++u)
    if (frame_.unit_at(u).learns() && !frame_.plan(u).gradient.offloaded && frame_.plan(u).counted) emit_norm(u);
  emit_finish(false);
  emit_fp8_scales(true);
  if (!frame_.updates_late()) emit_updates();
}

void SectionBuilder::emit_updates() {
  // While ranks add up sums of one unit, others are updated.
  bool more = true;
  for (std::size_t phase = 0; more; ++phase) {
    more = false;
    for (int u = 0; u < frame_.units(); ++u)
      if (!takes_matrices(u)) more |= emit_update_phase(u, phase);
  }
  emit_updates_of_matrices();
  for (int u = 0; u < frame_.units(); ++u)
    if (packs_again(u)) emit_pack(u);
}

void SectionBuilder::emit_update(int unit) {
  if (takes_matrices(unit)) return emit_updates_of_matrices({unit});
  for (std::size_t phase = 0; emit_update_phase(unit, phase);) ++phase;
}

bool SectionBuilder::emit_update_phase(int unit, std::size_t phase) {
  if (!frame_.unit_at(unit).learns()) return false;
  const UpdateRecord& update = frame_.optimizer_of(unit).update;
  if (phase >= update.phases.size()) return false;
  std::vector<Use> sums;
  if (phase == 0 && update.sums > 0) sums.push_back(tensor_sums(unit, UpdateOperand::Kind::sums, Access::write));
  if (phase == 0 && update.lines) sums.push_back(tensor_sums(unit, UpdateOperand::Kind::lines, Access::write));
  if (!sums.empty())
    emit({.name = "clear sums of " + frame_.unit_at(unit).name,
          .op = Zero{},
          .lane = frame_.plan(unit).gradient.offloaded ? Lane::cpu_optimizer : Lane::compute,
          .uses = std::move(sums)});
  if (phase > 0 && update.phases[phase - 1].meets == UpdateOperand::Kind::mean_signs) emit_momenta_of_signs(unit);
  emit_optimizer(unit, update.phases[phase].calls);
  const bool more = phase + 1 < update.phases.size();
  if (more)
    emit_meeting(unit, update.phases[phase].meets);
  else if (!frame_.refreshed_first(unit))
    emit_publish_gather(unit, Lane::gather);
  return more;
}

void SectionBuilder::emit_meeting(int unit, UpdateOperand::Kind kind) {
  if (kind == UpdateOperand::Kind::signs) return emit_exchange_of_signs(unit);
  if (kind == UpdateOperand::Kind::mean_signs) return emit_gather_of_signs(unit);
  emit_meeting_of_sums(unit, kind);
}

std::string SectionBuilder::name_of_sums(int unit, UpdateOperand::Kind kind) const {
  return (kind == UpdateOperand::Kind::lines ? "line_sums." : "tensor_sums.") + frame_.unit_at(unit).name;
}

Use SectionBuilder::tensor_sums(int unit, UpdateOperand::Kind kind, Access access) {
  const std::string name = name_of_sums(unit, kind);
  const Unit& u = frame_.unit_at(unit);
  const std::int64_t bytes =
      kind == UpdateOperand::Kind::lines
          ? 8 * words_before(lines_before(frame_.layout, u).back(), std::ssize(u.slots))
          : std::ssize(u.slots) * frame_.optimizer_of(unit).update.sums * static_cast<std::int64_t>(sizeof(kernels::FixedSum));
  if (frame_.plan(unit).gradient.offloaded && frame_.on_gpu())
    return buffers_.first_of(Buffers::host_side(name), Category::workspace, Tier::pinned, bytes, access);
  return buffers_.first_of(name, Category::workspace, frame_.local_tier, bytes, access);
}

void SectionBuilder::emit_meeting_of_sums(int unit, UpdateOperand::Kind kind) {
  const UnitPlan& p = frame_.plan(unit);
  const Unit& u = frame_.unit_at(unit);
  Axes apart = p.storage.optimizer_whole ? Axes{0} : p.owners.axes;
  for (const Slot& slot : u.slots)
    if (slot.elements < frame_.layout.table[index(slot.parameter)].shape.elements()) apart |= axes({Axis::tp});
  if (frame_.request.group(apart).size == 1) return;
  const std::string name = name_of_sums(unit, kind);
  const Use mine = tensor_sums(unit, kind, Access::add);
  const bool elsewhere = p.gradient.offloaded && frame_.on_gpu();
  const Use sums = elsewhere ? buffers_.first_of(name, Category::workspace, frame_.local_tier, mine.bytes, Access::add) : mine;
  if (elsewhere) emit_copy("upload", name, Buffers::host_side(name));
  emit({.name = "all-reduce sums of " + u.name,
        .op = Collective{CollectiveKind::all_reduce, apart, sums.bytes / 8, 0, DType::i64},
        .lane = Lane::reduce,
        .uses = {sums}});
  if (elsewhere) emit_copy("download", Buffers::host_side(name), name);
}

void SectionBuilder::owe_updates() {
  owed_.assign(frame_.layout.units.size(), true);
  // Both ends of a pipeline meet in the update of what they share, before either waits for the other's micro-batches. Tensor ranks meet in
  // that of what none of them cuts, which one of them alone may read, such as the bias of a sum over them: not where it is read first.
  for (int u = 0; u < frame_.units(); ++u)
    if (frame_.unit_at(u).owners & (pipeline_ends | axes({Axis::tp}))) emit_owed_update(u);
}

void SectionBuilder::emit_owed_update(int unit) {
  if (owed_.empty() || !owed_[index(unit)]) return;
  owed_[index(unit)] = false;
  emit_update(unit);
  if (packs_again(unit)) emit_pack(unit);
}

void SectionBuilder::emit_norm(int unit) {
  const UnitPlan& p = frame_.plan(unit);
  const Range counted = p.gradient.own ? p.gradient.held : p.owned;
  const kernels::SumOfSquares shape{.n = counted.size(), .dtype = p.gradient.kept};
  const auto bytes = static_cast<std::int64_t>(kernels::sum_of_squares_workspace_bytes(shape, frame_.shape.backend));
  const int workspace = buffers_.declare("workspace.norm", Category::workspace, frame_.local_tier, std::max<std::int64_t>(bytes, 64));
  emit({.name = "norm " + frame_.unit_at(unit).name,
        .op = SumSquares{counted.size(), p.gradient.kept},
        .uses = {buffers_.gradients(unit, counted, Access::read),
                 buffers_.whole("scalars", Access::add),
                 {workspace, 0, bytes, Access::write},
                 frame_.scales_sums() ? buffers_.whole("run", Access::read) : buffers_.absent()}});
}

void SectionBuilder::emit_finish(bool evaluation) {
  const Use scalars = buffers_.whole("scalars", Access::add), inputs = buffers_.whole("inputs", Access::read);
  if (!evaluation && frame_.offloads()) {
    emit_upload({"offloaded_sums"});
    emit({.name = "join offloaded sums", .op = JoinSums{}, .uses = {scalars, buffers_.whole("offloaded_sums", Access::read)}});
  }
  emit({.name = "count flags", .op = CountFlags{}, .uses = {scalars, inputs}});
  emit_sums_over_ranks("all-reduce loss, norm and flags", kernels::step_counts, kernels::step_sums);
  if (frame_.shape.loss_groups > 0) emit_totals("losses of groups", "group_losses");
  if (frame_.has_experts()) emit_totals("router totals", "router");
  emit({.name = evaluation ? "finish evaluation" : "norm, clip factor and learning rate",
        .op = FinishStep{},
        .uses = {buffers_.whole("scalars", Access::read), inputs, evaluation ? buffers_.absent() : buffers_.whole("update", Access::write),
                 buffers_.whole("report", Access::write), evaluation ? buffers_.absent() : buffers_.whole("run", Access::add)}});
  if (!evaluation && frame_.deck.model.router_bias_rate > 0) emit_balance();
  emit_download("report");
  if (!evaluation) emit_download("run");
  if (!evaluation && frame_.offloads()) emit_download("update");
}

void SectionBuilder::emit_totals(const char* what, const char* name) {
  const Use totals = buffers_.whole(name, Access::add);
  if (frame_.request.mesh.ranks() > 1)
    emit({.name = fmt::format("all-reduce {}", what),
          .op = Collective{CollectiveKind::all_reduce, frame_.request.axes(), totals.bytes / 8, 0, DType::i64},
          .lane = Lane::reduce,
          .uses = {totals}});
  emit_download(name);
}

void SectionBuilder::emit_balance() {
  for (int u = 0; u < frame_.units(); ++u)
    if (!frame_.unit_at(u).trained && !frame_.unit_at(u).frozen)
      emit({.name = "balance routers",
            .op = balance_of(frame_.unit_at(u)),
            .uses = {buffers_.parameters(u, frame_.plan(u).parameters, Access::add), buffers_.whole("router", Access::read),
                     buffers_.whole("update", Access::read)}});
}

BalanceRouters SectionBuilder::balance_of(const Unit& untrained) const {
  BalanceRouters op{.experts = frame_.deck.model.experts,
                    .stride = round_up(frame_.deck.model.experts, shard_block),
                    .rate = static_cast<float>(frame_.deck.model.router_bias_rate),
                    .runs = {}};
  for (const Slot& slot : untrained.slots) {
    const std::int64_t layer = frame_.layout.table[index(slot.parameter)].layer;
    if (op.runs.empty() || op.runs.back().layer + op.runs.back().layers != layer) op.runs.push_back({layer, 0, slot.offset});
    BalanceRouters::Run& run = op.runs.back();
    TESSERA_REQUIRE(slot.offset == run.offset + run.layers * op.stride, "layer {} begins at element {}", layer, slot.offset);
    ++run.layers;
  }
  return op;
}

Use SectionBuilder::bind(const UpdateUse& use, int unit, const Range& elements) {
  const bool below = frame_.plan(unit).gradient.offloaded;
  switch (use.operand.kind) {
    case UpdateOperand::Kind::master:
      return buffers_.master(unit, elements, use.access);
    case UpdateOperand::Kind::state:
      return buffers_.state(frame_.optimizer_of(unit).update.state[index(use.operand.row)], unit, elements, use.access);
    case UpdateOperand::Kind::gradient:
      return buffers_.gradients(unit, elements, use.access);
    case UpdateOperand::Kind::copy:
      return below ? made_on_host(unit, elements) : buffers_.parameters(unit, elements, use.access);
    case UpdateOperand::Kind::values: {
      constexpr std::int64_t bytes = sizeof(kernels::UpdateScalars);
      return {buffers_.named(below ? buffers_.on_host("update") : "update"), bytes * frame_.optimizer_number(unit), bytes, use.access};
    }
    case UpdateOperand::Kind::sums:
    case UpdateOperand::Kind::lines:
      return tensor_sums(unit, use.operand.kind, use.access);
    case UpdateOperand::Kind::signs:
    case UpdateOperand::Kind::mean_signs:
      break;
    case UpdateOperand::Kind::matrices:
      return below ? buffers_.staging("matrices", matrices_of(unit, elements, use.access).bytes, use.access)
                   : matrices_of(unit, elements, use.access);
  }
  fail(ExitCode::internal, "operand {} of an update", static_cast<int>(use.operand.kind));
}

void SectionBuilder::emit_optimizer(int unit, const std::vector<UpdateCall>& calls) {
  const UnitPlan& p = frame_.plan(unit);
  const bool below = p.gradient.offloaded;
  const auto task_of = [&](const UpdateCall& call, const Range& some) {
    OptimizerStep op = optimizer_step(unit, some, call);
    std::vector<Use> uses;
    for (const UpdateUse& use : op.update.uses) uses.push_back(bind(use, unit, some));
    return Task{.name = "optimizer " + frame_.unit_at(unit).name, .op = std::move(op), .uses = std::move(uses)};
  };
  for (const UpdateCall& call : calls) {
    if (!call.once) continue;
    Task task = task_of(call, {0, frame_.unit_at(unit).elements});
    if (below) task.lane = Lane::cpu_optimizer;
    emit(std::move(task));
  }
  for (const Range& cut : cut_shard(p.state.size(), 1, below ? frame_.offload_piece() : frame_.deck.zero.sub_group_size)) {
    const Range some{p.state.begin + cut.begin, p.state.begin + cut.end};
    for (const UpdateCall& call : calls) {
      if (call.once) continue;
      Task task = task_of(call, some);
      const bool changes = call.changes(UpdateOperand::Kind::master);
      if (below) {
        emit_optimizer_below(unit, some, std::move(task), changes);
        continue;
      }
      emit(std::move(task));
      if (p.encoded && changes)
        emit(encoding(unit, some, buffers_.parameters(unit, some, Access::write), buffers_.master(unit, some, Access::read)));
    }
  }
}

Task SectionBuilder::encoding(int unit, const Range& elements, const Use& to, const Use& master) const {
  return {.name = "encode " + frame_.unit_at(unit).name,
          .op = Encode{elements.size(), DType::f32, frame_.plan(unit).wire},
          .lane = frame_.plan(unit).gradient.offloaded ? Lane::cpu_optimizer : Lane::compute,
          .uses = {to, {master.buffer, master.offset, master.bytes, Access::read}}};
}

OptimizerStep SectionBuilder::optimizer_step(int unit, const Range& elements, const UpdateCall& call) const {
  OptimizerStep op{.update = call,
                   .sums = frame_.optimizer_of(unit).update.sums,
                   .gradient = frame_.plan(unit).gradient.kept,
                   .parameters = frame_.plan(unit).encoded ? DType::f32 : frame_.compute(),
                   .begin = elements.begin,
                   .pieces = pieces_in(frame_.unit_at(unit), elements.begin, elements.end),
                   .rates = {}};
  if (op.parameters == DType::f32)
    std::erase_if(op.update.uses, [](const UpdateUse& use) { return use.operand.kind == UpdateOperand::Kind::copy; });
  const Unit& u = frame_.unit_at(unit);
  const bool lines = frame_.optimizer_of(unit).update.lines;
  const std::vector<LinesBefore> before = lines ? lines_before(frame_.layout, u) : std::vector<LinesBefore>();
  for (const Piece& piece : op.pieces) {
    const Parameter& p = frame_.layout.table[index(piece.parameter)];
    op.rates.push_back(rates_of(frame_.deck.optimizer, p));
    op.tensor_elements.push_back(p.shape.elements());
    if (!lines) continue;
    const Box& box = u.slots[index(piece.slot)].box;
    op.lines.push_back({.lines = {.rows = p.shape.dims[0],
                                  .columns = p.shape.dims[1],
                                  .row = box.start[0],
                                  .column = box.start[1],
                                  .width = box.count[1],
                                  .first = piece.slot_offset},
                        .before = before[index(piece.slot)],
                        .word = words_before(before[index(piece.slot)], piece.slot)});
  }
  return op;
}

void SectionBuilder::emit_publish_gather(int unit, Lane lane) {
  const UnitPlan& p = frame_.plan(unit);
  if (!frame_.training() || p.sources.size == 1) return;
  for (const Range& cut : cut_shard(p.shard, p.sources.size, frame_.bucket(frame_.deck.zero.allgather_bucket_size))) {
    const std::int64_t first = p.parameters.begin;
    const Range all{first + cut.begin, first + (p.sources.size - 1) * p.shard + cut.end};
    const Range mine{p.owned.begin + cut.begin, p.owned.begin + cut.end};
    const DType type = p.encoded ? DType::u32 : frame_.compute();
    const auto count = [&](std::int64_t n) { return frame_.parameter_bytes(unit, n) / static_cast<std::int64_t>(size_of(type)); };
    emit({.name = "gather " + frame_.unit_at(unit).name + " (updated)",
          .op = Collective{CollectiveKind::all_gather, p.sources.axes, count(cut.size()), count(p.shard), type},
          .lane = lane,
          .uses = {buffers_.parameters(unit, all, Access::write), buffers_.parameters(unit, mine, Access::read)},
          .bytes_moved = static_cast<double>(frame_.parameter_bytes(unit, cut.size())) * (p.sources.size - 1)});
  }
}

}  // namespace tessera
