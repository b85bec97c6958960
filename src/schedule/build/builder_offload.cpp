// Optimizer state below the memory that kernels use: gradients go down as their reductions end, host code takes their norm and updates the
// master weights, and the compute copies come up again, or for each use where they lie below too.
#include <fmt/format.h>

#include <algorithm>

#include "kernels/step/step.hpp"
#include "kernels/sums/sums.hpp"
#include "schedule/build/schedule_builder.hpp"

namespace tessera {
namespace {

/// Elements that go up while the next ones are updated: large enough for the memory's full rate, small enough that little waits for the
/// first or the last.
constexpr std::int64_t most_piece_elements = std::int64_t{1} << 22;

/// Passes between the last use of a stream and the next above which it leaves, and passes before that use at which it comes back: a
/// layer's.
constexpr int least_absence = 4, ahead = 2;

}  // namespace

void ScheduleBuilder::declare_offload() {
  input("adamw", Category::scalars, sizeof(kernels::AdamwScalars));
  input("offloaded_sums", Category::scalars, sizeof(kernels::StepScalars));
}

std::int64_t ScheduleBuilder::offload_piece() const {
  const std::int64_t most = std::min(most_piece_elements, deck_.zero.sub_group_size);
  if (state_home() != Tier::nvme) return most;
  // Whole blocks, also of the compute copy: a write of a part of a block reads the block first.
  const std::int64_t block = deck_.nvme.block_bytes() / compute_bytes(1);
  return most < block ? most : most / block * block;
}

int ScheduleBuilder::staging(const std::string& name, std::int64_t bytes) {
  const std::int64_t turn = staged_[name]++ % deck_.zero.offload_optimizer.buffer_count;
  return buffer(fmt::format("staging.{}#{}", name, turn), Category::workspace, below_, bytes);
}

Tier ScheduleBuilder::state_home() const { return deck_.zero.offload_optimizer.device == OffloadDevice::nvme ? Tier::nvme : Tier::host; }

Tier ScheduleBuilder::shard_home(int unit) {
  const OffloadParamKeys& keys = deck_.zero.offload_param;
  const std::int64_t kept = parameters_on_host_ + plan(unit).shard;
  if (keys.device == OffloadDevice::nvme && kept > keys.max_in_cpu) return Tier::nvme;
  parameters_on_host_ = kept;
  return below(keys.pin_memory);
}

void ScheduleBuilder::emit_disk(const char* verb, const std::string& unit, const std::vector<std::pair<Use, Use>>& moves) {
  if (moves.empty()) return;
  const OffloadOptimizerKeys& keys = deck_.zero.offload_optimizer;
  const bool write = tier_of(moves.front().first) == Tier::nvme;
  Task task{.name = fmt::format("{} {}", verb, unit), .op = ReadDisk{}, .lane = Lane::disk_read, .uses = {}};
  if (write) task.op = WriteDisk{}, task.lane = Lane::disk_write;
  if (!(write ? keys.pipeline_write : keys.pipeline_read)) task.lane = Lane::cpu_optimizer;
  for (const auto& [to, from] : moves) {
    task.uses.push_back({to.buffer, to.offset, to.bytes, Access::write});
    task.uses.push_back({from.buffer, from.offset, from.bytes, Access::read});
    task.bytes_moved += static_cast<double>(to.bytes);
  }
  // What the disk's engine works in is planned like the rest, and belongs to it alone.
  task.uses.push_back(whole(named("nvme.requests"), Access::read));
  emit(std::move(task));
}

std::vector<Use> ScheduleBuilder::emit_on_host(Task task) {
  std::vector<std::pair<Use, Use>> reads, writes;
  for (std::size_t i = 0; i < task.uses.size(); ++i) {
    Use& use = task.uses[i];
    if (use.bytes == 0 || tier_of(use) != Tier::nvme) continue;
    const Use home = use;
    use.buffer = staging(fmt::format("{}", name_of(schedule_.buffers[index(home.buffer)].category)), home.bytes), use.offset = 0;
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

Use ScheduleBuilder::read_from_disk(const std::string& unit, const Use& use) {
  if (tier_of(use) != Tier::nvme) return use;
  const Use here{staging("shards", use.bytes), 0, use.bytes, Access::read};
  emit_disk("read", unit, {{here, use}});
  return here;
}

Use ScheduleBuilder::master_use(int unit, const Range& elements, Access access) const {
  if (compute() == DType::f32 && plan(unit).parameters_offloaded) return parameter_use(unit, elements, access);
  return {named("master." + unit_at(unit).name), 4 * (elements.begin - plan(unit).state.begin), 4 * elements.size(), access};
}

void ScheduleBuilder::emit_gradient_down(int unit, const Use& part, bool first, bool last) {
  const UnitPlan& p = plan(unit);
  const std::string& name = unit_at(unit).name;
  for (const Range& cut : cut_shard(p.shard, 1, offload_piece())) {
    const Range mine{p.owned.begin + cut.begin, p.owned.begin + cut.end};
    const std::int64_t bytes = gradient_bytes(unit, cut.size());
    const Use from{part.buffer, part.offset + gradient_bytes(unit, cut.begin), bytes, Access::read};
    const Use sum = gradient_use(unit, mine, first ? Access::write : Access::add);
    const Use to = first ? sum : Use{staging("gradients", bytes), 0, bytes, Access::write};
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

void ScheduleBuilder::emit_offloaded_norm(int unit) {
  const UnitPlan& p = plan(unit);
  const kernels::SumOfSquares shape{.n = p.shard, .dtype = p.gradient.kept};
  const auto bytes = static_cast<std::int64_t>(kernels::sum_of_squares_workspace_bytes(shape, kernels::Backend::host));
  emit({.name = "norm " + unit_at(unit).name,
        .op = SumSquares{p.shard, p.gradient.kept},
        .lane = Lane::cpu_optimizer,
        .uses = {gradient_use(unit, p.owned, Access::read), whole(named(on_host("offloaded_sums")), Access::add),
                 bytes == 0 ? absent()
                            : Use{buffer("workspace.offloaded_norm", Category::workspace, Tier::host, bytes), 0, bytes, Access::write}}});
}

void ScheduleBuilder::emit_offloaded_optimizer(int unit) {
  const UnitPlan& p = plan(unit);
  const std::string& name = unit_at(unit).name;
  for (const Range& cut : cut_shard(p.state.size(), 1, offload_piece())) {
    const Range some{p.state.begin + cut.begin, p.state.begin + cut.end};
    const auto moment = [&](const char* group) { return Use{named(group + name), 4 * cut.begin, 4 * cut.size(), Access::add}; };
    std::vector<Use> uses{master_use(unit, some, Access::add), moment("adam_m."), moment("adam_v."), gradient_use(unit, some, Access::read),
                          whole(named(on_host("adamw")), Access::read)};
    const Use made = made_on_host(unit, some);
    if (made.bytes > 0) uses.push_back(made);
    const std::vector<Use> here =
        emit_on_host({.name = "optimizer " + name, .op = optimizer_step(unit, some), .lane = Lane::cpu_optimizer, .uses = std::move(uses)});
    emit_copy_up(unit, some, made.bytes > 0 ? here.back() : here.front());
  }
}

void ScheduleBuilder::emit_offloaded_cast(int unit) {
  const Range& state = plan(unit).state;
  for (const Range& cut : cut_shard(state.size(), 1, offload_piece())) {
    const Range some{state.begin + cut.begin, state.begin + cut.end};
    const Use made = made_on_host(unit, some), master = master_use(unit, some, Access::read);
    if (made.bytes > 0)
      emit_copy_up(unit, some,
                   emit_on_host({.name = "cast " + unit_at(unit).name,
                                 .op = RoundToBf16{cut.size(), DType::f32},
                                 .lane = Lane::cpu_optimizer,
                                 .uses = {made, master}})
                       .front());
    else if (!plan(unit).parameters_offloaded)
      emit_copy_up(unit, some, read_from_disk(unit_at(unit).name, master));
  }
}

Use ScheduleBuilder::made_on_host(int unit, const Range& elements) {
  if (compute() == DType::f32) return absent();
  if (plan(unit).parameters_offloaded) return parameter_use(unit, elements, Access::write);
  const std::int64_t bytes = compute_bytes(elements.size());
  return {staging("parameters", bytes), 0, bytes, Access::write};
}

void ScheduleBuilder::emit_copy_up(int unit, const Range& elements, const Use& from) {
  if (plan(unit).parameters_offloaded) return;
  emit({.name = "upload " + unit_at(unit).name,
        .op = Copy{},
        .lane = Lane::upload,
        .uses = {parameter_use(unit, elements, Access::write), {from.buffer, from.offset, from.bytes, Access::read}},
        .bytes_moved = static_cast<double>(from.bytes)});
}

Use ScheduleBuilder::emit_upload_shard(int unit, int number, int target) {
  const UnitPlan& p = plan(unit);
  const std::string& name = unit_at(unit).name;
  const std::int64_t bytes = compute_bytes(p.shard);
  const int to = p.owners.size == 1 ? target : buffer(fmt::format("uploaded.{}#{}", name, number), Category::gathered, comm_tier_, bytes);
  const Use from = read_from_disk(name, parameter_use(unit, p.owned, Access::read));
  emit({.name = "upload " + name,
        .op = Copy{},
        .lane = Lane::upload,
        .uses = {{to, 0, bytes, Access::write}, from},
        .bytes_moved = static_cast<double>(bytes)});
  return {to, 0, bytes, Access::read};
}

void ScheduleBuilder::plan_absences(const Events& events) {
  absences_.clear();
  if (deck_.activation.offload == OffloadDevice::none) return;
  std::map<int, int> last_forward;  // event by stream
  std::set<int> back;               // streams whose first use in the backward pass has come
  for (int e = 0; e < static_cast<int>(events.size()); ++e) {
    const SegmentPass& p = pass(events[index(e)]);
    for (const Operand& o : p.operands) {
      const ValueKind kind = value_of(p, o).kind;
      if (kind != ValueKind::stream_in && kind != ValueKind::stream_out) continue;
      const int stream = kind == ValueKind::stream_in ? p.segment - 1 : p.segment;
      if (p.kind == PassKind::forward)
        last_forward[stream] = e;
      else if (const int from = last_forward.at(stream);
               back.insert(stream).second && !activations_.stream_dropped[index(stream)] && e - from >= least_absence)
        absences_[stream] = {from, e - ahead};
    }
  }
}

void ScheduleBuilder::emit_absences(int event, bool leave) {
  for (const auto& [stream, absence] : absences_) {
    if ((leave ? absence.leaves_after : absence.returns_before) != event) continue;
    const std::string here = fmt::format("stream.{}", stream);
    const std::int64_t bytes = schedule_.buffers[index(named(here))].bytes;
    const bool on_disk = deck_.activation.offload == OffloadDevice::nvme;
    const Use away{buffer("away." + here, Category::activations, on_disk ? Tier::nvme : below_, bytes), 0, bytes, Access::write};
    const Use passing = on_disk ? Use{staging("streams", bytes), 0, bytes, Access::write} : away;
    if (!leave && on_disk) emit_disk("read", here, {{passing, away}});
    const Use back = leave ? absent() : Use{buffer(returned(stream), Category::activations, local_tier_, bytes), 0, bytes, Access::write};
    const Use from = leave ? whole(named(here), Access::read) : Use{passing.buffer, 0, bytes, Access::read};
    emit({.name = fmt::format("{} {}", leave ? "download" : "upload", here),
          .op = Copy{},
          .lane = leave ? Lane::download : Lane::upload,
          .uses = {leave ? passing : back, from},
          .bytes_moved = static_cast<double>(bytes)});
    if (leave && on_disk) emit_disk("write", here, {{away, passing}});
  }
}

}  // namespace tessera
