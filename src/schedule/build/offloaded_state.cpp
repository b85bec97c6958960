#include "schedule/build/offloaded_state.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/step/step.hpp"
#include "kernels/sums/sums.hpp"
#include "schedule/build/matrix_updates.hpp"
#include "schedule/build/unit_update.hpp"

namespace tessera {
namespace {

/// What pieces of a buffer are staged as: each group of state takes turns of its own.
std::string staging_of(const Buffer& buffer) {
  return buffer.category == Category::state ? buffer.name.substr(0, buffer.name.find('.')) : name_of(buffer.category);
}

/// Emits a task of host code. Uses on disk pass through staging: read before it, written after it. Returns where its uses lie in memory.
std::vector<Use> emit_on_host(Emitter& out, Task task) {
  std::vector<std::pair<Use, Use>> reads, writes;
  for (std::size_t i = 0; i < task.uses.size(); ++i) {
    Use& use = task.uses[i];
    if (use.bytes == 0 || out.buffers.tier_of(use) != Tier::nvme) continue;
    const Use home = use;
    use = out.buffers.staging(staging_of(out.buffers[home.buffer]), home.bytes, home.access);
    if (home.access != Access::write) reads.emplace_back(use, home);
    if (home.access != Access::read) writes.emplace_back(home, use);
  }
  const std::string unit = task.name;
  std::vector<Use> uses = task.uses;
  emit_disk(out, "read for", unit, reads);
  out.emit(std::move(task));
  emit_disk(out, "write after", unit, writes);
  return uses;
}

/// The bytes of a use on disk, read into staging; a use in memory as it is.
Use read_from_disk(Emitter& out, const std::string& unit, const Use& use) {
  if (out.buffers.tier_of(use) != Tier::nvme) return use;
  const Use here = out.buffers.staging("shards", use.bytes, Access::read);
  emit_disk(out, "read", unit, {{here, use}});
  return here;
}

void emit_offloaded_norm(Emitter& out, int unit) {
  const UnitPlan& p = out.frame.plan(unit);
  const kernels::SumOfSquares shape{.n = p.shard, .dtype = p.gradient.kept};
  const auto bytes = static_cast<std::int64_t>(kernels::sum_of_squares_workspace_bytes(shape, kernels::Backend::host));
  out.emit(
      {.name = "norm " + out.frame.unit_at(unit).name,
       .op = SumSquares{p.shard, p.gradient.kept},
       .lane = Lane::cpu_optimizer,
       .uses = {out.buffers.gradients(unit, p.owned, Access::read), out.buffers.whole(out.buffers.on_host("offloaded_sums"), Access::add),
                out.buffers.workspace("workspace.offloaded_norm", Tier::host, bytes),
                out.frame.scales_sums() ? out.buffers.whole(out.buffers.on_host("run"), Access::read) : out.buffers.absent()}});
}

/// Uploads a piece of the compute copy, made on the host or the master weights, if its place is with the kernels.
void emit_copy_up(Emitter& out, int unit, const Range& elements, const Use& from) {
  if (out.frame.plan(unit).parameters_offloaded) return;
  out.emit({.name = "upload " + out.frame.unit_at(unit).name,
            .op = Copy{},
            .lane = Lane::upload,
            .uses = {out.buffers.parameters(unit, elements, Access::write), {from.buffer, from.offset, from.bytes, Access::read}},
            .bytes_moved = static_cast<double>(from.bytes)});
}

}  // namespace

void emit_disk(Emitter& out, const char* verb, const std::string& unit, const std::vector<std::pair<Use, Use>>& moves) {
  if (moves.empty()) return;
  const OffloadOptimizerKeys& keys = out.frame.deck.zero.offload_optimizer;
  const bool write = out.buffers.tier_of(moves.front().first) == Tier::nvme;
  Task task{.name = fmt::format("{} {}", verb, unit), .op = ReadDisk{}, .lane = Lane::disk_read, .uses = {}};
  if (write) task.op = WriteDisk{}, task.lane = Lane::disk_write;
  if (!(write ? keys.pipeline_write : keys.pipeline_read)) task.lane = Lane::cpu_optimizer;
  for (const auto& [to, from] : moves) {
    task.uses.push_back({to.buffer, to.offset, to.bytes, Access::write});
    task.uses.push_back({from.buffer, from.offset, from.bytes, Access::read});
    task.bytes_moved += static_cast<double>(to.bytes);
  }
  // What the disk's engine works in is planned like the rest, and belongs to it alone.
  task.uses.push_back(out.buffers.whole("nvme.requests", Access::read));
  out.emit(std::move(task));
}

void emit_gradient_down(Emitter& out, int unit, const Use& part, bool first, bool last) {
  const UnitPlan& p = out.frame.plan(unit);
  const std::string& name = out.frame.unit_at(unit).name;
  for (const Range& cut : cut_shard(p.shard, 1, out.frame.offload_piece())) {
    const Range mine{p.owned.begin + cut.begin, p.owned.begin + cut.end};
    const std::int64_t bytes = out.frame.gradient_bytes(unit, cut.size());
    const Use from{part.buffer, part.offset + out.frame.gradient_bytes(unit, cut.begin), bytes, Access::read};
    const Use sum = out.buffers.gradients(unit, mine, first ? Access::write : Access::add);
    const Use to = first ? sum : out.buffers.staging("gradients", bytes, Access::write);
    out.emit({.name = "download gradient " + name,
              .op = Copy{},
              .lane = Lane::download,
              .uses = {to, from},
              .bytes_moved = static_cast<double>(bytes)});
    if (first) continue;
    out.emit({.name = "add gradient " + name,
              .op = Add{cut.size(), p.gradient.kept},
              .lane = Lane::cpu_optimizer,
              .uses = {sum, {to.buffer, 0, bytes, Access::read}}});
  }
  if (last) emit_offloaded_norm(out, unit);
}

void emit_optimizer_below(Emitter& out, int unit, const Range& elements, Task task, bool changes) {
  task.lane = Lane::cpu_optimizer;
  const auto of_kind = [uses = std::get<OptimizerStep>(task.op).update.uses](UpdateOperand::Kind kind) {
    return std::ranges::find(uses, kind, [](const UpdateUse& use) { return use.operand.kind; }) - uses.begin();
  };
  const auto copy = of_kind(UpdateOperand::Kind::copy), master = of_kind(UpdateOperand::Kind::master),
             matrices = of_kind(UpdateOperand::Kind::matrices);
  const Use passing = matrices < std::ssize(task.uses) ? task.uses[static_cast<std::size_t>(matrices)] : out.buffers.absent();
  if (passing.bytes > 0 && passing.access == Access::read) emit_matrices_between_tiers(out, unit, elements, passing, false);
  const std::vector<Use> here = emit_on_host(out, std::move(task));
  if (passing.bytes > 0 && passing.access != Access::read) emit_matrices_between_tiers(out, unit, elements, passing, true);
  if (!changes) return;
  Use made = here[static_cast<std::size_t>(copy < std::ssize(here) ? copy : master)];
  if (out.frame.plan(unit).encoded)
    made = emit_on_host(out, encoding(out, unit, elements, made_on_host(out, unit, elements), made)).front();
  emit_copy_up(out, unit, elements, made);
}

void emit_offloaded_cast(Emitter& out, int unit) {
  const Range& state = out.frame.plan(unit).state;
  for (const Range& cut : cut_shard(state.size(), 1, out.frame.offload_piece())) {
    const Range some{state.begin + cut.begin, state.begin + cut.end};
    const Use made = made_on_host(out, unit, some), master = out.buffers.master(unit, some, Access::read);
    if (out.frame.plan(unit).encoded)
      emit_copy_up(out, unit, some, emit_on_host(out, encoding(out, unit, some, made, master)).front());
    else if (made.bytes > 0)
      emit_copy_up(out, unit, some,
                   emit_on_host(out, {.name = "cast " + out.frame.unit_at(unit).name,
                                      .op = Round{.count = cut.size(), .to = out.frame.compute()},
                                      .lane = Lane::cpu_optimizer,
                                      .uses = {made, master}})
                       .front());
    else if (!out.frame.plan(unit).parameters_offloaded)
      emit_copy_up(out, unit, some, read_from_disk(out, out.frame.unit_at(unit).name, master));
  }
}

Use made_on_host(Emitter& out, int unit, const Range& elements) {
  if (out.frame.compute() == DType::f32 && !out.frame.plan(unit).encoded) return out.buffers.absent();
  if (out.frame.plan(unit).parameters_offloaded) return out.buffers.parameters(unit, elements, Access::write);
  const std::int64_t bytes = out.frame.parameter_bytes(unit, elements.size());
  return out.buffers.staging("parameters", bytes, Access::write);
}

Use emit_upload_shard(Emitter& out, int unit, int number, int target) {
  const UnitPlan& p = out.frame.plan(unit);
  const std::string& name = out.frame.unit_at(unit).name;
  const std::int64_t bytes = out.frame.parameter_bytes(unit, p.shard);
  const int to = p.owners.size == 1 && (p.encoded || p.wire == Wire::plain)
                     ? target
                     : out.buffers.declare(fmt::format("uploaded.{}#{}", name, number), Category::gathered, out.frame.comm_tier, bytes);
  const Use from = read_from_disk(out, name, out.buffers.parameters(unit, p.owned, Access::read));
  out.emit({.name = "upload " + name,
            .op = Copy{},
            .lane = Lane::upload,
            .uses = {{to, 0, bytes, Access::write}, from},
            .bytes_moved = static_cast<double>(bytes)});
  return {to, 0, bytes, Access::read};
}

}  // namespace tessera
