// Optimizer state below the memory that kernels use: gradients go down as their reductions end, host code takes their norm and updates the
// master weights, and the compute copies come up again, or for each use where they lie below too.
#include <fmt/format.h>

#include <algorithm>

#include "kernels/step/step.hpp"
#include "kernels/sums/sums.hpp"
#include "schedule/build/section_builder.hpp"

namespace tessera {
namespace {

/// Passes between the last use of a stream and the next above which it leaves, and passes before that use at which it comes back: a
/// layer's.
constexpr int least_absence = 4, ahead = 2;

/// What pieces of a buffer are staged as: each group of state takes turns of its own.
std::string staging_of(const Buffer& buffer) {
  return buffer.category == Category::state ? buffer.name.substr(0, buffer.name.find('.')) : name_of(buffer.category);
}

}  // namespace

void SectionBuilder::emit_disk(const char* verb, const std::string& unit, const std::vector<std::pair<Use, Use>>& moves) {
  if (moves.empty()) return;
  const OffloadOptimizerKeys& keys = frame_.deck.zero.offload_optimizer;
  const bool write = buffers_.tier_of(moves.front().first) == Tier::nvme;
  Task task{.name = fmt::format("{} {}", verb, unit), .op = ReadDisk{}, .lane = Lane::disk_read, .uses = {}};
  if (write) task.op = WriteDisk{}, task.lane = Lane::disk_write;
  if (!(write ? keys.pipeline_write : keys.pipeline_read)) task.lane = Lane::cpu_optimizer;
  for (const auto& [to, from] : moves) {
    task.uses.push_back({to.buffer, to.offset, to.bytes, Access::write});
    task.uses.push_back({from.buffer, from.offset, from.bytes, Access::read});
    task.bytes_moved += static_cast<double>(to.bytes);
  }
  // What the disk's engine works in is planned like the rest, and belongs to it alone.
  task.uses.push_back(buffers_.whole("nvme.requests", Access::read));
  emit(std::move(task));
}

std::vector<Use> SectionBuilder::emit_on_host(Task task) {
  std::vector<std::pair<Use, Use>> reads, writes;
  for (std::size_t i = 0; i < task.uses.size(); ++i) {
    Use& use = task.uses[i];
    if (use.bytes == 0 || buffers_.tier_of(use) != Tier::nvme) continue;
    const Use home = use;
    use = buffers_.staging(staging_of(buffers_[home.buffer]), home.bytes, home.access);
    if (home.access != Access::write) reads.emplace_back(use, home);
    if (home.access != Access::read) writes.emplace_back(home, use);
  }
  const std::string unit = task.name;
  std::vector<Use> uses = task.uses;
  emit_disk("read for", unit, reads);
  emit(std::move(task));
  emit_disk("write after", unit, writes);
  return uses;
}

Use SectionBuilder::read_from_disk(const std::string& unit, const Use& use) {
  if (buffers_.tier_of(use) != Tier::nvme) return use;
  const Use here = buffers_.staging("shards", use.bytes, Access::read);
  emit_disk("read", unit, {{here, use}});
  return here;
}

void SectionBuilder::emit_gradient_down(int unit, const Use& part, bool first, bool last) {
  const UnitPlan& p = frame_.plan(unit);
  const std::string& name = frame_.unit_at(unit).name;
  for (const Range& cut : cut_shard(p.shard, 1, frame_.offload_piece())) {
    const Range mine{p.owned.begin + cut.begin, p.owned.begin + cut.end};
    const std::int64_t bytes = frame_.gradient_bytes(unit, cut.size());
    const Use from{part.buffer, part.offset + frame_.gradient_bytes(unit, cut.begin), bytes, Access::read};
    const Use sum = buffers_.gradients(unit, mine, first ? Access::write : Access::add);
    const Use to = first ? sum : buffers_.staging("gradients", bytes, Access::write);
    emit({.name = "download gradient " + name,
          .op = Copy{},
          .lane = Lane::download,
          .uses = {to, from},
          .bytes_moved = static_cast<double>(bytes)});
    if (first) continue;
    emit({.name = "add gradient " + name,
          .op = Add{cut.size(), p.gradient.kept},
          .lane = Lane::cpu_optimizer,
          .uses = {sum, {to.buffer, 0, bytes, Access::read}}});
  }
  if (last) emit_offloaded_norm(unit);
}

void SectionBuilder::emit_offloaded_norm(int unit) {
  const UnitPlan& p = frame_.plan(unit);
  const kernels::SumOfSquares shape{.n = p.shard, .dtype = p.gradient.kept};
  const auto bytes = static_cast<std::int64_t>(kernels::sum_of_squares_workspace_bytes(shape, kernels::Backend::host));
  emit({.name = "norm " + frame_.unit_at(unit).name,
        .op = SumSquares{p.shard, p.gradient.kept},
        .lane = Lane::cpu_optimizer,
        .uses = {buffers_.gradients(unit, p.owned, Access::read), buffers_.whole(buffers_.on_host("offloaded_sums"), Access::add),
                 buffers_.workspace("workspace.offloaded_norm", Tier::host, bytes),
                 frame_.scales_sums() ? buffers_.whole(buffers_.on_host("run"), Access::read) : buffers_.absent()}});
}

void SectionBuilder::emit_optimizer_below(int unit, const Range& elements, Task task, bool changes) {
  task.lane = Lane::cpu_optimizer;
  const auto of_kind = [uses = std::get<OptimizerStep>(task.op).update.uses](UpdateOperand::Kind kind) {
    return std::ranges::find(uses, kind, [](const UpdateUse& use) { return use.operand.kind; }) - uses.begin();
  };
  const auto copy = of_kind(UpdateOperand::Kind::copy), master = of_kind(UpdateOperand::Kind::master),
             matrices = of_kind(UpdateOperand::Kind::matrices);
  const Use passing = matrices < std::ssize(task.uses) ? task.uses[static_cast<std::size_t>(matrices)] : buffers_.absent();
  if (passing.bytes > 0 && passing.access == Access::read) emit_matrices_between_tiers(unit, elements, passing, false);
  const std::vector<Use> here = emit_on_host(std::move(task));
  if (passing.bytes > 0 && passing.access != Access::read) emit_matrices_between_tiers(unit, elements, passing, true);
  if (!changes) return;
  Use made = here[static_cast<std::size_t>(copy < std::ssize(here) ? copy : master)];
  if (frame_.plan(unit).encoded) made = emit_on_host(encoding(unit, elements, made_on_host(unit, elements), made)).front();
  emit_copy_up(unit, elements, made);
}

void SectionBuilder::emit_offloaded_cast(int unit) {
  const Range& state = frame_.plan(unit).state;
  for (const Range& cut : cut_shard(state.size(), 1, frame_.offload_piece())) {
    const Range some{state.begin + cut.begin, state.begin + cut.end};
    const Use made = made_on_host(unit, some), master = buffers_.master(unit, some, Access::read);
    if (frame_.plan(unit).encoded)
      emit_copy_up(unit, some, emit_on_host(encoding(unit, some, made, master)).front());
    else if (made.bytes > 0)
      emit_copy_up(unit, some,
                   emit_on_host({.name = "cast " + frame_.unit_at(unit).name,
                                 .op = Round{.count = cut.size(), .to = frame_.compute()},
                                 .lane = Lane::cpu_optimizer,
                                 .uses = {made, master}})
                       .front());
    else if (!frame_.plan(unit).parameters_offloaded)
      emit_copy_up(unit, some, read_from_disk(frame_.unit_at(unit).name, master));
  }
}

Use SectionBuilder::made_on_host(int unit, const Range& elements) {
  if (frame_.compute() == DType::f32 && !frame_.plan(unit).encoded) return buffers_.absent();
  if (frame_.plan(unit).parameters_offloaded) return buffers_.parameters(unit, elements, Access::write);
  const std::int64_t bytes = frame_.parameter_bytes(unit, elements.size());
  return buffers_.staging("parameters", bytes, Access::write);
}

void SectionBuilder::emit_copy_up(int unit, const Range& elements, const Use& from) {
  if (frame_.plan(unit).parameters_offloaded) return;
  emit({.name = "upload " + frame_.unit_at(unit).name,
        .op = Copy{},
        .lane = Lane::upload,
        .uses = {buffers_.parameters(unit, elements, Access::write), {from.buffer, from.offset, from.bytes, Access::read}},
        .bytes_moved = static_cast<double>(from.bytes)});
}

Use SectionBuilder::emit_upload_shard(int unit, int number, int target) {
  const UnitPlan& p = frame_.plan(unit);
  const std::string& name = frame_.unit_at(unit).name;
  const std::int64_t bytes = frame_.parameter_bytes(unit, p.shard);
  const int to = p.owners.size == 1 && (p.encoded || p.wire == Wire::plain)
                     ? target
                     : buffers_.declare(fmt::format("uploaded.{}#{}", name, number), Category::gathered, frame_.comm_tier, bytes);
  const Use from = read_from_disk(name, buffers_.parameters(unit, p.owned, Access::read));
  emit({.name = "upload " + name,
        .op = Copy{},
        .lane = Lane::upload,
        .uses = {{to, 0, bytes, Access::write}, from},
        .bytes_moved = static_cast<double>(bytes)});
  return {to, 0, bytes, Access::read};
}

void SectionBuilder::plan_absences(const Events& events) {
  absences_.clear();
  if (frame_.deck.activation.offload == OffloadDevice::none) return;
  std::map<int, int> last_forward;  // event by stream
  std::set<int> back;               // streams whose first use in the backward pass has come
  for (int e = 0; e < static_cast<int>(events.size()); ++e) {
    const SegmentPass& p = passes_.at(events[index(e)]);
    for (const Operand& o : p.operands) {
      const ValueKind kind = passes_.value(p, o).kind;
      if (kind != ValueKind::stream_in && kind != ValueKind::stream_out) continue;
      const SegmentNumber leaves = kind == ValueKind::stream_in ? p.segment.before() : p.segment;
      const int stream = passes_.stream(leaves);
      if (p.kind == PassKind::forward)
        last_forward[stream] = e;
      else if (const int from = last_forward.at(stream);
               back.insert(stream).second && !step_.stream_dropped(leaves) && e - from >= least_absence)
        absences_[stream] = {from, e - ahead};
    }
  }
}

void SectionBuilder::emit_absences(int event, bool leave) {
  for (const auto& [stream, absence] : absences_) {
    if ((leave ? absence.leaves_after : absence.returns_before) != event) continue;
    const std::string here = fmt::format("stream.{}", stream);
    const std::int64_t bytes = buffers_[(buffers_.named(here))].bytes;
    const bool on_disk = frame_.deck.activation.offload == OffloadDevice::nvme;
    const Use away =
        buffers_.first_of("away." + here, Category::activations, on_disk ? Tier::nvme : frame_.below_tier, bytes, Access::write);
    const Use passing = on_disk ? buffers_.staging("streams", bytes, Access::write) : away;
    if (!leave && on_disk) emit_disk("read", here, {{passing, away}});
    const Use back =
        leave ? buffers_.absent() : buffers_.first_of(returned(stream), Category::activations, frame_.local_tier, bytes, Access::write);
    const Use from = leave ? buffers_.whole(here, Access::read) : Use{passing.buffer, 0, bytes, Access::read};
    emit({.name = fmt::format("{} {}", leave ? "download" : "upload", here),
          .op = Copy{},
          .lane = leave ? Lane::download : Lane::upload,
          .uses = {leave ? passing : back, from},
          .bytes_moved = static_cast<double>(bytes)});
    if (leave && on_disk) emit_disk("write", here, {{away, passing}});
  }
}

}  // namespace tessera
