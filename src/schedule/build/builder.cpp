#include "schedule/build/builder.hpp"
#include "schedule/build/memory_kind.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "model/record/leave_frozen.hpp"
#include "schedule/build/micro_batches.hpp"
#include "schedule/build/schedule_builder.hpp"

namespace tessera {

ScheduleBuilder::ScheduleBuilder(const BuildRequest& request) : request_(request), deck_(request.deck), layout_(request.layout) {
  schedule_.shape = model_shape(deck_);
  schedule_.shape.loss_groups = request.loss_groups;
  const Group tensor = request.group(axes({Axis::tp})), context = request.group(axes({Axis::cp}));
  if (request.training() || request.evaluation_micro_batches > 0)
    schedule_.segments = model_segments(cut_over_cp(
        cut_over_ep(cut_over_tp(schedule_.shape, tensor.size, tensor.rank), request.group(axes({Axis::ep})).rank), context.rank));
  if (pipelined())
    std::erase_if(schedule_.segments, [&, s = std::ssize(schedule_.segments), i = std::ptrdiff_t{0}](const Segment& segment) mutable {
      const std::ptrdiff_t at = i++;
      if (at == 0) return !request.stage.first();
      if (at == s - 1) return !request.stage.last();
      return request.stage.chunk_of(segment.layer) < 0;
    });
  for (const Segment& segment : schedule_.segments)
    chunks_.push_back(segment.layer >= 0 ? request.stage.chunk_of(segment.layer) : chunks_.empty() ? 0 : request.stage.chunks() - 1);
  if (request.training()) {
    // On a later stage something below may always need the gradient of the stream.
    const std::ptrdiff_t bottom = request.stage.first() ? std::ranges::count(chunks_, 0) : 0;
    leave_frozen(schedule_.segments, layout_, static_cast<std::size_t>(bottom));
  }
  // About as many as a model of many layers has: growing costs more than finding.
  by_name_.reserve(32 * index(static_cast<int>(schedule_.shape.L)));
  const bool device = deck_.run.device == RunDevice::cuda;
  // What is offloaded leaves the memory that kernels use, also where that is a part of the host's.
  local_tier_ = device || (request.training() && kernel_memory(deck_) == MemoryKind::device) ? Tier::device : Tier::host;
  below_ = below(deck_.zero.offload_optimizer.pin_memory);
  comm_tier_ = request.mesh.ranks() > 1 && local_tier_ == Tier::host ? Tier::shared : local_tier_;
  const UnitRules rules{.stage = static_cast<int>(deck_.zero.stage),
                        .reproducible = deck_.run.reproducible,
                        .gradients = deck_.precision.gradients,
                        .training = request.training(),
                        .offload_optimizer = offloads(),
                        .offload_ratio = deck_.zero.offload_optimizer.ratio,
                        .offload_parameters = offloads_parameters()};
  for (int u = 0; u < units(); ++u)
    plans_.push_back(plan_unit(layout_, u, rules, groups_of_unit(request.mesh, layout_.units[index(u)].owners, request.rank)));
}

Schedule ScheduleBuilder::build() {
  declare_persistent();
  if (request_.training()) build_train();
  if (request_.evaluation_micro_batches > 0) build_evaluate();
  build_publish();
  if (request_.training() && deck_.checkpoint.async) build_saving();
  if (request_.text.capacity > 0) build_text();
  free_idle_requests();
  return std::move(schedule_);
}

/// Where each stream comes back too soon to leave, nothing goes to disk, and no engine of disks works in its buffer.
void ScheduleBuilder::free_idle_requests() {
  const int requests = schedule_.find_buffer("nvme.requests");
  if (requests >= 0 && std::ranges::none_of(schedule_.buffers, [](const Buffer& b) { return b.tier == Tier::nvme; }))
    schedule_.buffers[index(requests)].bytes = 0;
}

void ScheduleBuilder::build_train() {
  const std::int64_t A = accumulation_steps(deck_, request_.data.size);
  TESSERA_REQUIRE(A == 1 || deck_.precision.gradients == DType::f32, "{} micro-batches are summed in bf16", A);
  schedule_.train.name = "train";
  auto add = [&](std::int64_t repeat, std::optional<std::int64_t> number = {}) {
    schedule_.train.phases.push_back({last_section(), repeat, number});
  };
  begin_section("begin");
  emit_begin();
  if (offloads())
    emit({.name = "clear offloaded sums",
          .op = Zero{},
          .lane = Lane::cpu_optimizer,
          .uses = {whole(named(on_host("offloaded_sums")), Access::write)}});
  add(1);
  const Events passes = training_passes();
  const std::vector<PipelinePhase> phases = step_order();
  flights_ = in_flight(phases, request_.stage.chunks());
  std::map<std::string, int> built;  // section by name
  for (const PipelinePhase& phase : phases) {
    if (const auto [known, fresh] = built.try_emplace(phase.name, last_section() + 1); !fresh) {
      schedule_.train.phases.push_back({known->second, phase.repeat, phase.micro});
      continue;
    }
    begin_section(phase.name);
    const Events events = events_of(phase, passes);
    if (&phase == &phases.front() && updates_late()) owe_updates();
    emit_events(events, phase);
    if (&phase == &phases.back()) emit_meetings_of_ends(true);
    add(phase.repeat, phase.micro);
  }
  begin_section("end");
  emit_epilogue();
  add(1);
  if (updates_late()) build_late(passes, phases.front(), phases.size() == 1);
  flights_.clear(), ahead_ = behind_ = 0;
}

void ScheduleBuilder::build_late(const Events& passes, const PipelinePhase& first, bool only) {
  schedule_.first = schedule_.train, schedule_.first.name = "first step";
  begin_section(first.name + " of a first step");
  const Events events = events_of(first, passes);
  emit_events(events, first);
  emit_meetings_of_ends(only);
  schedule_.first.phases[1].section = last_section();
  begin_section("update");
  emit_updates();
  schedule_.update = {"update", {{last_section(), 1}}};
}

void ScheduleBuilder::build_evaluate() {
  schedule_.evaluate.name = "evaluate";
  begin_section("begin evaluation");
  emit_begin();
  schedule_.evaluate.phases.push_back({last_section(), 1});
  const Events passes = forward_passes();
  if (request_.stage.chunks() == 1) {
    begin_section("evaluation micro-batch");
    emit_events(passes, {.name = {}, .forward = true, .first = true});
    schedule_.evaluate.phases.push_back({last_section(), request_.evaluation_micro_batches, 0});
  } else {
    build_evaluated_chunks(passes);
  }
  begin_section("end evaluation");
  emit_finish(true);
  schedule_.evaluate.phases.push_back({last_section(), 1});
}

void ScheduleBuilder::build_publish() {
  schedule_.publish.name = "publish";
  begin_section("publish");
  emit_upload({"rope"});
  for (int u = 0; u < units(); ++u) {
    if (plan(u).gradient.offloaded) {
      emit_offloaded_cast(u);
    } else if (request_.training() && !unit_at(u).frozen && type_of(u) != DType::f32) {
      const Range& state = plan(u).state;
      emit({.name = "cast " + unit_at(u).name,
            .op = RoundToBf16{state.size()},
            .uses = {parameter_use(u, state, Access::write), whole(named("master." + unit_at(u).name), Access::read)}});
    }
    if (!refreshed_first(u)) emit_publish_gather(u, Lane::gather);
    emit_pack(u);
  }
  schedule_.publish.phases.push_back({last_section(), 1});
}

void ScheduleBuilder::build_saving() {
  // Whoever saves has made the updates that a step had left.
  schedule_.saving = updates_late() ? schedule_.first : schedule_.train;
  schedule_.saving.name = "step with copies for a save";
  begin_section("snapshot");
  for (const Held& held : schedule_.state) {
    const Range mine = owned_range(layout_, held.unit, request_.group(unit_at(held.unit).owners).rank);
    const auto size = static_cast<std::int64_t>(size_of(held.type));
    const std::int64_t bytes = size * mine.size();
    const Use from{held.use.buffer, held.use.offset + size * (mine.begin - held.elements.begin), bytes, Access::read};
    if (unit_at(held.unit).frozen) {  // no step changes it: it is read where it lies
      schedule_.copies.push_back({held.group, held.unit, mine, from, held.type});
      continue;
    }
    const std::string what = fmt::format("{} {}", held.group, unit_at(held.unit).name);
    const Use copy{buffer(fmt::format("snapshot.{}.{}", held.group, unit_at(held.unit).name), Category::snapshot, below_, bytes, Life::run),
                   0, bytes, Access::write};
    const bool below = plan(held.unit).gradient.offloaded;
    emit({.name = "copy " + what,
          .op = Copy{},
          .lane = below ? Lane::host_snapshot : Lane::snapshot,
          .uses = {copy, from},
          .bytes_moved = static_cast<double>(bytes)});
    schedule_.copies.push_back({held.group, held.unit, mine, {copy.buffer, 0, bytes, Access::read}, held.type});
  }
  // Only what changes the state waits for its copy: the update of a unit, at the end.
  schedule_.saving.phases.insert(schedule_.saving.phases.begin(), {last_section(), 1});
}

void ScheduleBuilder::emit_begin() {
  emit_upload({"tokens", "targets", "token_groups", "document_starts", "weights", "inputs"});
  emit({.name = "clear scalars", .op = Zero{}, .uses = {whole(named("scalars"), Access::write)}});
  if (schedule_.shape.loss_groups > 0)
    emit({.name = "clear losses of groups", .op = Zero{}, .uses = {whole(named("group_losses"), Access::write)}});
  if (has_experts()) emit({.name = "clear router totals", .op = Zero{}, .uses = {whole(named("router"), Access::write)}});
  for (int u = 0; u < units(); ++u)
    if (refreshed_first(u)) emit_publish_gather(u, Lane::reduce);
}

void ScheduleBuilder::begin_section(const std::string& name) {
  schedule_.sections.push_back({name, {}});
  touched_.clear();
}

Task& ScheduleBuilder::emit(Task task) {
  schedule_.sections.back().tasks.push_back(std::move(task));
  return schedule_.sections.back().tasks.back();
}

Use ScheduleBuilder::parameter_use(int unit, const Range& elements, Access access) const {
  return {named("parameters." + unit_at(unit).name), parameter_bytes(unit, elements.begin - plan(unit).parameters.begin),
          parameter_bytes(unit, elements.size()), access};
}

Use ScheduleBuilder::gradient_use(int unit, const Range& elements, Access access) const {
  if (plan(unit).gradient.offloaded)
    return {named("offloaded_gradients." + unit_at(unit).name), gradient_bytes(unit, elements.begin - plan(unit).owned.begin),
            gradient_bytes(unit, elements.size()), access};
  return {named("gradients." + unit_at(unit).name), gradient_bytes(unit, elements.begin - plan(unit).gradient.held.begin),
          gradient_bytes(unit, elements.size()), access};
}

Schedule build_schedule(const BuildRequest& request) { return ScheduleBuilder(request).build(); }

}  // namespace tessera
