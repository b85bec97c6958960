#include "schedule/build/unit_update.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/step/step.hpp"
#include "schedule/build/fp8_scales.hpp"
#include "schedule/build/matrix_updates.hpp"
#include "schedule/build/offloaded_state.hpp"
#include "schedule/build/sign_reduction.hpp"
#include "schedule/build/update_sums.hpp"

namespace tessera {
namespace {

/// Whether delayed scaling follows the unit's matrices.
bool has_scale(const Emitter& out, int unit) { return out.frame.shape.fp8.delayed() && out.frame.unit_at(unit).tower.empty(); }

/// The reduction that ends a phase of an update.
void emit_end_of_phase(Emitter& out, int unit, UpdateOperand::Kind kind) {
  if (kind == UpdateOperand::Kind::signs) return emit_exchange_of_signs(out, unit);
  if (kind == UpdateOperand::Kind::mean_signs) return emit_gather_of_signs(out, unit);
  emit_all_reduce_of_sums(out, unit, kind);
}

/// Returns whether another phase follows.
bool emit_update_phase(Emitter& out, int unit, std::size_t phase) {
  if (!out.frame.unit_at(unit).learns()) return false;
  const UpdateRecord& update = out.frame.optimizer_of(unit).update;
  if (phase >= update.phases.size()) return false;
  std::vector<Use> sums;
  if (phase == 0 && update.sums > 0) sums.push_back(tensor_sums(out, unit, UpdateOperand::Kind::sums, Access::write));
  if (phase == 0 && update.lines) sums.push_back(tensor_sums(out, unit, UpdateOperand::Kind::lines, Access::write));
  if (!sums.empty())
    out.emit({.name = "clear sums of " + out.frame.unit_at(unit).name,
              .op = Zero{},
              .lane = out.frame.plan(unit).gradient.offloaded ? Lane::cpu_optimizer : Lane::compute,
              .uses = std::move(sums)});
  if (phase > 0 && update.phases[phase - 1].reduces == UpdateOperand::Kind::mean_signs) emit_momenta_of_signs(out, unit);
  emit_optimizer(out, unit, update.phases[phase].calls);
  const bool more = phase + 1 < update.phases.size();
  if (more)
    emit_end_of_phase(out, unit, update.phases[phase].reduces);
  else if (!out.frame.refreshed_first(unit))
    emit_publish_gather(out, unit, Lane::gather);
  return more;
}

OptimizerStep optimizer_step(const Emitter& out, int unit, const Range& elements, const UpdateCall& call) {
  OptimizerStep op{.update = call,
                   .sums = out.frame.optimizer_of(unit).update.sums,
                   .gradient = out.frame.plan(unit).gradient.kept,
                   .parameters = out.frame.plan(unit).encoded ? DType::f32 : out.frame.compute(),
                   .begin = elements.begin,
                   .pieces = pieces_in(out.frame.unit_at(unit), elements.begin, elements.end),
                   .rates = {}};
  if (op.parameters == DType::f32)
    std::erase_if(op.update.uses, [](const UpdateUse& use) { return use.operand.kind == UpdateOperand::Kind::copy; });
  const Unit& u = out.frame.unit_at(unit);
  const bool lines = out.frame.optimizer_of(unit).update.lines;
  const std::vector<LinesBefore> before = lines ? lines_before(out.frame.layout, u) : std::vector<LinesBefore>();
  for (const Piece& piece : op.pieces) {
    const Parameter& p = out.frame.layout.table[index(piece.parameter)];
    op.rates.push_back(rates_of(out.frame.deck.optimizer, p));
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

/// Where an operand of an update lies.
Use bind_update(Emitter& out, const UpdateUse& use, int unit, const Range& elements) {
  const bool below = out.frame.plan(unit).gradient.offloaded;
  switch (use.operand.kind) {
    case UpdateOperand::Kind::master:
      return out.buffers.master(unit, elements, use.access);
    case UpdateOperand::Kind::state:
      return out.buffers.state(out.frame.optimizer_of(unit).update.state[index(use.operand.row)], unit, elements, use.access);
    case UpdateOperand::Kind::gradient:
      return out.buffers.gradients(unit, elements, use.access);
    case UpdateOperand::Kind::copy:
      return below ? made_on_host(out, unit, elements) : out.buffers.parameters(unit, elements, use.access);
    case UpdateOperand::Kind::values: {
      constexpr std::int64_t bytes = sizeof(kernels::UpdateScalars);
      return {out.buffers.named(below ? out.buffers.on_host("update") : "update"), bytes * out.frame.optimizer_number(unit), bytes,
              use.access};
    }
    case UpdateOperand::Kind::sums:
    case UpdateOperand::Kind::lines:
      return tensor_sums(out, unit, use.operand.kind, use.access);
    case UpdateOperand::Kind::signs:
    case UpdateOperand::Kind::mean_signs:
      break;
    case UpdateOperand::Kind::matrices:
      return below ? out.buffers.staging("matrices", matrices_of(out, unit, elements, use.access).bytes, use.access)
                   : matrices_of(out, unit, elements, use.access);
  }
  fail(ExitCode::internal, "operand {} of an update", static_cast<int>(use.operand.kind));
}

}  // namespace

void emit_cast(Emitter& out, int unit) {
  if (out.frame.plan(unit).gradient.offloaded) return emit_offloaded_cast(out, unit);
  if (!out.frame.training() || out.frame.unit_at(unit).frozen || out.frame.copy_is_master(unit)) return;
  const Range& state = out.frame.plan(unit).state;
  if (out.frame.plan(unit).encoded) {
    out.emit(encoding(out, unit, state, out.buffers.parameters(unit, state, Access::write), out.buffers.master(unit, state, Access::read)));
    return;
  }
  out.emit({.name = "cast " + out.frame.unit_at(unit).name,
            .op = Round{.count = state.size(), .to = out.frame.type_of(unit)},
            .uses = {out.buffers.parameters(unit, state, Access::write),
                     out.buffers.whole("master." + out.frame.unit_at(unit).name, Access::read)}});
}

void emit_pack(Emitter& out, int unit) {
  for (const auto& [of, v] : out.frame.packed()) {
    if (of != unit) continue;
    const TensorRef ref = out.frame.layout.find(v->name);
    const Use weight{out.buffers.named("parameters." + out.frame.unit_at(unit).name), out.frame.compute_bytes(ref.offset),
                     out.frame.compute_bytes(ref.elements), Access::read};
    out.emit({.name = fmt::format("pack {} ({})", v->name, v->product.b_transposed ? "forward" : "backward"),
              .op = PackWeight{v->product},
              .uses = {out.buffers.whole(packed_name(*v), Access::write), weight,
                       has_scale(out, unit) ? fp8_of_weight(out, "fp8_multipliers", v->name, Access::read) : out.buffers.absent(),
                       has_scale(out, unit) ? fp8_of_weight(out, "fp8_largest", v->name, Access::add) : out.buffers.absent()}});
  }
}

void emit_updates(Emitter& out) {
  // While ranks add up sums of one unit, others are updated.
  bool more = true;
  for (std::size_t phase = 0; more; ++phase) {
    more = false;
    for (int u = 0; u < out.frame.units(); ++u)
      if (!takes_matrices(out, u)) more |= emit_update_phase(out, u, phase);
  }
  emit_updates_of_matrices(out);
  for (int u = 0; u < out.frame.units(); ++u)
    if (packs_again(out, u)) emit_pack(out, u);
}

void emit_update(Emitter& out, int unit) {
  if (takes_matrices(out, unit)) return emit_updates_of_matrices(out, {unit});
  for (std::size_t phase = 0; emit_update_phase(out, unit, phase);) ++phase;
}

void emit_optimizer(Emitter& out, int unit, const std::vector<UpdateCall>& calls) {
  const UnitPlan& p = out.frame.plan(unit);
  const bool below = p.gradient.offloaded;
  const auto task_of = [&](const UpdateCall& call, const Range& some) {
    OptimizerStep op = optimizer_step(out, unit, some, call);
    std::vector<Use> uses;
    for (const UpdateUse& use : op.update.uses) uses.push_back(bind_update(out, use, unit, some));
    return Task{.name = "optimizer " + out.frame.unit_at(unit).name, .op = std::move(op), .uses = std::move(uses)};
  };
  for (const UpdateCall& call : calls) {
    if (!call.once) continue;
    Task task = task_of(call, {0, out.frame.unit_at(unit).elements});
    if (below) task.lane = Lane::cpu_optimizer;
    out.emit(std::move(task));
  }
  for (const Range& cut : cut_shard(p.state.size(), 1, below ? out.frame.offload_piece() : out.frame.deck.zero.sub_group_size)) {
    const Range some{p.state.begin + cut.begin, p.state.begin + cut.end};
    for (const UpdateCall& call : calls) {
      if (call.once) continue;
      Task task = task_of(call, some);
      const bool changes = call.changes(UpdateOperand::Kind::master);
      if (below) {
        emit_optimizer_below(out, unit, some, std::move(task), changes);
        continue;
      }
      out.emit(std::move(task));
      if (p.encoded && changes)
        out.emit(
            encoding(out, unit, some, out.buffers.parameters(unit, some, Access::write), out.buffers.master(unit, some, Access::read)));
    }
  }
}

Task encoding(const Emitter& out, int unit, const Range& elements, const Use& to, const Use& master) {
  return {.name = "encode " + out.frame.unit_at(unit).name,
          .op = Encode{elements.size(), DType::f32, out.frame.plan(unit).wire},
          .lane = out.frame.plan(unit).gradient.offloaded ? Lane::cpu_optimizer : Lane::compute,
          .uses = {to, {master.buffer, master.offset, master.bytes, Access::read}}};
}

void emit_publish_gather(Emitter& out, int unit, Lane lane) {
  const UnitPlan& p = out.frame.plan(unit);
  if (!out.frame.training() || p.sources.size == 1) return;
  for (const Range& cut : cut_shard(p.shard, p.sources.size, out.frame.bucket(out.frame.deck.zero.allgather_bucket_size))) {
    const std::int64_t first = p.parameters.begin;
    const Range all{first + cut.begin, first + (p.sources.size - 1) * p.shard + cut.end};
    const Range mine{p.owned.begin + cut.begin, p.owned.begin + cut.end};
    const DType type = p.encoded ? DType::u32 : out.frame.compute();
    const auto count = [&](std::int64_t n) { return out.frame.parameter_bytes(unit, n) / static_cast<std::int64_t>(size_of(type)); };
    out.emit({.name = "gather " + out.frame.unit_at(unit).name + " (updated)",
              .op = Collective{CollectiveKind::all_gather, p.sources.axes, count(cut.size()), count(p.shard), type},
              .lane = lane,
              .uses = {out.buffers.parameters(unit, all, Access::write), out.buffers.parameters(unit, mine, Access::read)},
              .bytes_moved = static_cast<double>(out.frame.parameter_bytes(unit, cut.size())) * (p.sources.size - 1)});
  }
}

bool packs_again(const Emitter& out, int unit) { return out.frame.unit_at(unit).learns() || has_scale(out, unit); }

}  // namespace tessera
