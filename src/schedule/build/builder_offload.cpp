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

}  // namespace

void ScheduleBuilder::declare_offload() {
  input("adamw", Category::scalars, sizeof(kernels::AdamwScalars));
  input("offloaded_sums", Category::scalars, sizeof(kernels::StepScalars));
}

std::int64_t ScheduleBuilder::offload_piece() const { return std::min(most_piece_elements, deck_.zero.sub_group_size); }

int ScheduleBuilder::staging(const std::string& name, std::int64_t bytes) {
  const std::int64_t turn = staged_++ % deck_.zero.offload_optimizer.buffer_count;
  return buffer(fmt::format("staging.{}#{}", name, turn), Category::workspace, below_, bytes);
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
    emit({.name = "optimizer " + name, .op = optimizer_step(unit, some), .lane = Lane::cpu_optimizer, .uses = std::move(uses)});
    emit_copy_up(unit, some, made);
  }
}

void ScheduleBuilder::emit_offloaded_cast(int unit) {
  const Range& state = plan(unit).state;
  for (const Range& cut : cut_shard(state.size(), 1, offload_piece())) {
    const Range some{state.begin + cut.begin, state.begin + cut.end};
    const Use made = made_on_host(unit, some);
    if (made.bytes > 0)
      emit({.name = "cast " + unit_at(unit).name,
            .op = RoundToBf16{cut.size(), DType::f32},
            .lane = Lane::cpu_optimizer,
            .uses = {made, master_use(unit, some, Access::read)}});
    emit_copy_up(unit, some, made);
  }
}

Use ScheduleBuilder::made_on_host(int unit, const Range& elements) {
  if (compute() == DType::f32) return absent();
  if (plan(unit).parameters_offloaded) return parameter_use(unit, elements, Access::write);
  const std::int64_t bytes = compute_bytes(elements.size());
  return {staging("parameters", bytes), 0, bytes, Access::write};
}

void ScheduleBuilder::emit_copy_up(int unit, const Range& elements, const Use& made) {
  if (plan(unit).parameters_offloaded) return;
  const Use from = made.bytes > 0 ? Use{made.buffer, made.offset, made.bytes, Access::read} : master_use(unit, elements, Access::read);
  emit({.name = "upload " + unit_at(unit).name,
        .op = Copy{},
        .lane = Lane::upload,
        .uses = {parameter_use(unit, elements, Access::write), from},
        .bytes_moved = static_cast<double>(from.bytes)});
}

Use ScheduleBuilder::emit_upload_shard(int unit, int number, int target) {
  const UnitPlan& p = plan(unit);
  const std::string& name = unit_at(unit).name;
  const std::int64_t bytes = compute_bytes(p.shard);
  const int to = p.owners.size == 1 ? target : buffer(fmt::format("uploaded.{}#{}", name, number), Category::gathered, comm_tier_, bytes);
  emit({.name = "upload " + name,
        .op = Copy{},
        .lane = Lane::upload,
        .uses = {{to, 0, bytes, Access::write}, parameter_use(unit, p.owned, Access::read)},
        .bytes_moved = static_cast<double>(bytes)});
  return {to, 0, bytes, Access::read};
}

}  // namespace tessera
