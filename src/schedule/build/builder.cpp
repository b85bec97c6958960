#include "schedule/build/builder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "schedule/build/fp8_scales.hpp"
#include "schedule/build/micro_batches.hpp"
#include "schedule/build/room.hpp"
#include "schedule/build/schedule_builder.hpp"
#include "schedule/build/step_ends.hpp"
#include "schedule/build/tower_sums.hpp"
#include "schedule/build/unit_update.hpp"

namespace tessera {
namespace {

Schedule begun(const BuildRequest& request) {
  Schedule schedule;
  schedule.shape = model_shape(request.deck);
  schedule.shape.loss_groups = request.loss_groups;
  schedule.towers = towers_of_stage(request, schedule.shape);
  return schedule;
}

const PipelinePhase forward_only{.name = {}, .forward = true, .first = true};

}  // namespace

ScheduleBuilder::ScheduleBuilder(const BuildRequest& request)
    : schedule_(begun(request)),
      frame_(request, schedule_.shape, schedule_.towers),
      buffers_(frame_, schedule_.buffers),
      passes_(request.layout, schedule_.towers, schedule_.passes) {}

Schedule ScheduleBuilder::build() {
  declare_all();
  if (frame_.training()) build_train();
  if (frame_.request.evaluation_micro_batches > 0) build_evaluate();
  build_publish();
  if (frame_.training() && frame_.deck.checkpoint.copies_state()) build_saving();
  if (frame_.request.text.capacity > 0) build_text();
  free_idle_requests();
  leave_room(schedule_, frame_.request);
  return std::move(schedule_);
}

void ScheduleBuilder::build_train() {
  const std::int64_t A = frame_.micro_batches();
  TESSERA_REQUIRE(A == 1 || frame_.deck.precision.gradients == DType::f32, "{} micro-batches are summed in bf16", A);
  Emitter begin = section("begin");
  emit_begin(begin);
  for_each_beside([&](const Tower& tower) { emit_begin_of(begin, tower); });
  emit_gradient_scale(begin);
  if (frame_.offloads())
    begin.emit({.name = "clear offloaded sums",
                .op = Zero{},
                .lane = Lane::cpu_optimizer,
                .uses = {buffers_.whole(buffers_.on_host("offloaded_sums"), Access::write)}});
  add_phase(ProgramKind::train, begin);
  StepPasses step(frame_, passes_, passes_.towers());
  std::map<std::string, int> built;  // section by name
  for (const PipelinePhase& phase : step.order()) {
    if (const auto known = built.find(phase.name); known != built.end()) {
      schedule_.program(ProgramKind::train).phases.push_back({known->second, phase.repeat, phase.micro});
      continue;
    }
    SectionBuilder micro_batch = section(step, phase.name, phase);
    built.emplace(phase.name, micro_batch.number());
    if (&phase == &step.order().front() && frame_.updates_late()) micro_batch.begin_late_updates();
    micro_batch.emit_events(step.of_phase(passes_, phase));
    if (&phase == &step.order().back()) micro_batch.emit_end_reductions(true);
    add_phase(ProgramKind::train, micro_batch, phase.repeat, phase.micro);
  }
  Emitter end = section("end");
  for_each_beside([&](const Tower& tower) { emit_finish_of(end, tower); });
  emit_epilogue(end);
  add_phase(ProgramKind::train, end);
  if (frame_.updates_late()) build_late(step, step.order().size() == 1);
}

void ScheduleBuilder::build_late(StepPasses& step, bool only) {
  const PipelinePhase& first = step.order().front();
  SectionBuilder micro_batch = section(step, first.name + " of a first step", first);
  micro_batch.emit_events(step.of_phase(passes_, first));
  micro_batch.emit_end_reductions(only);
  Program& first_step = schedule_.program(ProgramKind::first);
  first_step = schedule_.program(ProgramKind::train);
  first_step.phases[1].section = micro_batch.number();
  Emitter update = section("update");
  emit_updates(update);
  add_phase(ProgramKind::update, update);
}

void ScheduleBuilder::build_evaluate() {
  Emitter begin = section("begin evaluation");
  emit_begin(begin);
  add_phase(ProgramKind::evaluate, begin);
  // Of towers those that the model's loss reads.
  Events events;
  for (const int tower : passes_.towers())
    if (tower > 0 && frame_.shape.preference.on) std::ranges::copy(passes_.forward(tower), std::back_inserter(events));
  std::ranges::copy(passes_.forward(0), std::back_inserter(events));
  StepPasses step(frame_, std::move(events));
  if (frame_.stage().chunks() == 1) {
    SectionBuilder micro_batch = section(step, "evaluation micro-batch", forward_only);
    micro_batch.emit_events(step.all());
    add_phase(ProgramKind::evaluate, micro_batch, frame_.request.evaluation_micro_batches, 0);
  } else {
    build_evaluated_chunks(step);
  }
  Emitter end = section("end evaluation");
  emit_finish(end, true);
  add_phase(ProgramKind::evaluate, end);
}

void ScheduleBuilder::build_evaluated_chunks(StepPasses& step) {
  std::map<int, int> built;  // section by chunk
  for (const PipelinePhase& phase : forward_order(frame_.stage(), frame_.request.evaluation_micro_batches)) {
    auto known = built.find(phase.forward_chunk);
    if (known == built.end()) {
      SectionBuilder chunk = section(step, fmt::format("evaluation micro-batch, chunk {}", phase.forward_chunk), phase);
      chunk.emit_events(step.of_phase(passes_, phase));
      known = built.emplace(phase.forward_chunk, chunk.number()).first;
    }
    schedule_.program(ProgramKind::evaluate).phases.push_back({known->second, phase.repeat, phase.micro});
  }
}

void ScheduleBuilder::build_publish() {
  Emitter publish = section("publish");
  std::vector<std::string> inputs = {"run", "fp8_history"};
  for (int rotation = 0; rotation < static_cast<int>(frame_.shape.rotation.tables.size()); ++rotation)
    inputs.push_back(name_of_rotation("rope", rotation));
  emit_upload(publish, inputs);
  emit_errors_cleared(publish);
  if (frame_.training()) emit_fp8_scales(publish, false);
  for (int u = 0; u < frame_.units(); ++u) {
    emit_cast(publish, u);
    if (!frame_.refreshed_first(u)) emit_publish_gather(publish, u, Lane::gather);
    emit_pack(publish, u);
  }
  add_phase(ProgramKind::publish, publish);
}

void ScheduleBuilder::build_saving() {
  Emitter snapshot = section("snapshot");
  std::int64_t changing = 0, constant = 0;  // bytes that a save of this rank's has, in fp32
  std::vector<Use> copies;
  for (const Held& held : schedule_.state) {
    const Unit& unit = frame_.unit_at(held.unit);
    const Range mine = saved_part(frame_.layout, held, frame_.request.group(unit.owners));
    const auto in = [&](int buffer, std::int64_t offset, const Range& of, const Range& part) {
      return Use{buffer, offset + held.bytes(part.begin - of.begin), held.bytes(part.size()), Access::read};
    };
    if (unit.frozen) {  // no step changes it: it is read where it lies
      const Use there = in(held.use.buffer, held.use.offset, held.elements, mine);
      constant += ceil_div(unit.elements, static_cast<std::int64_t>(frame_.request.group(unit.owners).size)) * 4;  // on all ranks alike
      schedule_.copies.push_back({held.group, held.unit, mine, there, held.type, held.of, held.own});
      continue;
    }
    // Rows and columns do not divide by the ranks that save a part each: all are copied, so that ranks' schedules are the same.
    const Range copied = held.of == kernels::Extent::element ? mine : held.elements;
    const Use from = in(held.use.buffer, held.use.offset, held.elements, copied);
    const std::int64_t bytes = from.bytes;
    changing += copied.size() * 4;
    const int copy =
        buffers_.declare(fmt::format("snapshot.{}.{}", held.group, unit.name), Category::snapshot, frame_.below_tier, bytes, Life::run);
    snapshot.emit({.name = fmt::format("copy {} {}", held.group, unit.name),
                   .op = Copy{},
                   .lane = frame_.plan(held.unit).gradient.offloaded ? Lane::host_snapshot : Lane::snapshot,
                   .uses = {{copy, 0, bytes, Access::write}, from},
                   .bytes_moved = static_cast<double>(bytes)});
    copies.push_back({copy, 0, bytes, Access::read});
    schedule_.copies.push_back({held.group, held.unit, mine, in(copy, 0, copied, mine), held.type, held.of, held.own});
  }
  // This rank's and that of the rank whose state it keeps, of a step and of the one before until that is whole.
  if (frame_.deck.checkpoint.neighbour_every > 0)
    buffers_.declare("copies.neighbours", Category::snapshot, Tier::copies, 4 * changing + 2 * constant, Life::run);
  if (frame_.deck.checkpoint.neighbour_every > 0) announce_copies(snapshot, copies);
  // Whoever saves has made the updates that a step had left. Only what changes the state waits for its copy: the update of a unit, at the
  // end.
  add_phase(ProgramKind::saving, snapshot);
  std::vector<Program::Phase>& phases = schedule_.program(ProgramKind::saving).phases;
  const auto& step = schedule_.program(frame_.updates_late() ? ProgramKind::first : ProgramKind::train).phases;
  phases.insert(phases.end(), step.begin(), step.end());
}

void ScheduleBuilder::announce_copies(Emitter& snapshot, const std::vector<Use>& copies) {
  const int awaited = buffers_.declare("copies.awaited", Category::scalars, Tier::host, 8, Life::run);
  const int none = buffers_.declare("copies.none", Category::scalars, Tier::host, 8, Life::run);  // always 0
  Task done{.name = "say that copies are made",
            .op = Copy{},
            .lane = frame_.on_gpu() ? Lane::host_snapshot : Lane::snapshot,
            .uses = {{awaited, 0, 8, Access::write}, {none, 0, 8, Access::read}}};
  done.uses.insert(done.uses.end(), copies.begin(), copies.end());
  snapshot.emit(std::move(done));
}

Schedule build_schedule(const BuildRequest& request) { return ScheduleBuilder(request).build(); }

}  // namespace tessera
