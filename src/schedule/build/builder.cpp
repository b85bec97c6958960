#include "schedule/build/builder.hpp"

#include "schedule/build/micro_batches.hpp"
#include "schedule/build/schedule_builder.hpp"

namespace tessera {

ScheduleBuilder::ScheduleBuilder(const BuildRequest& request) : request_(request), deck_(request.deck), layout_(request.layout) {
  schedule_.shape = model_shape(deck_);
  schedule_.segments = model_segments(schedule_.shape);
  by_name_.reserve(16 * schedule_.segments.size());  // about as many as a model of many layers has: growing costs more than finding
  const bool device = deck_.run.device == "cuda";
  local_tier_ = device ? Tier::device : Tier::host;
  comm_tier_ = request.ranks > 1 && !device ? Tier::shared : local_tier_;
  fixed_ = deck_.run.reproducible;
}

Schedule ScheduleBuilder::build() {
  declare_persistent();
  if (request_.training) build_train();
  if (request_.evaluation_micro_batches > 0) build_evaluate();
  build_publish();
  build_state_copies(schedule_.snapshot, "snapshot", true);
  build_state_copies(schedule_.restore, "restore", false);
  return std::move(schedule_);
}

void ScheduleBuilder::build_train() {
  const std::int64_t A = accumulation_steps(deck_, request_.ranks);
  schedule_.train.name = "train";
  auto add = [&](std::int64_t repeat) { schedule_.train.phases.push_back({last_section(), repeat}); };
  begin_section("begin");
  emit_begin();
  add(1);
  const Events passes = training_passes();
  auto micro = [&](const char* name, bool first, bool last, std::int64_t repeat) {
    begin_section(name);
    emit_events(passes, first, last);
    add(repeat);
  };
  if (A == 1) {
    micro("micro-batch", true, true, 1);
  } else {
    micro("first micro-batch", true, false, 1);
    if (A > 2) micro("micro-batch", false, false, A - 2);
    micro("last micro-batch", false, true, 1);
  }
  begin_section("end");
  emit_epilogue();
  add(1);
}

void ScheduleBuilder::build_evaluate() {
  schedule_.evaluate.name = "evaluate";
  begin_section("begin evaluation");
  emit_begin();
  schedule_.evaluate.phases.push_back({last_section(), 1});
  begin_section("evaluation micro-batch");
  emit_events(evaluation_passes(), true, false);
  schedule_.evaluate.phases.push_back({last_section(), request_.evaluation_micro_batches});
  begin_section("end evaluation");
  emit_finish(true);
  schedule_.evaluate.phases.push_back({last_section(), 1});
}

void ScheduleBuilder::build_publish() {
  schedule_.publish.name = "publish";
  begin_section("publish");
  emit_upload({"rope"});
  for (int u = 0; u < units(); ++u) {
    if (request_.training && compute() != DType::f32) {
      const std::int64_t n = state(u).size();
      emit({.name = "cast " + unit_at(u).name,
            .op = CastShard{n},
            .uses = {{named("parameters." + unit_at(u).name), parameter_offset(u), compute_bytes(n), Access::write, 0},
                     whole(named("master." + unit_at(u).name), Access::read)}});
    }
    emit_publish_gather(u);
    emit_pack(u);
  }
  schedule_.publish.phases.push_back({last_section(), 1});
}

void ScheduleBuilder::build_state_copies(Program& program, const std::string& name, bool to_host) {
  program.name = name;
  if (local_tier_ != Tier::device || !request_.training) return;
  begin_section(name);
  for (int u = 0; u < units(); ++u)
    for (const std::string& state : state_names(u)) {
      const Use twin = whole(named(host_side(state)), to_host ? Access::write : Access::read);
      const Use used = state_use(state, u, to_host ? Access::read : Access::write);
      emit({.name = (to_host ? "download " : "upload ") + state, .op = Copy{}, .uses = {to_host ? twin : used, to_host ? used : twin}});
    }
  program.phases.push_back({last_section(), 1});
}

void ScheduleBuilder::emit_begin() {
  emit_upload({"tokens", "targets", "weights", "inputs"});
  emit({.name = "clear scalars", .op = Zero{}, .uses = {whole(named("scalars"), Access::write)}});
}

void ScheduleBuilder::begin_section(const std::string& name) {
  schedule_.sections.push_back({name, {}});
  touched_.clear();
}

Task& ScheduleBuilder::emit(Task task) {
  schedule_.sections.back().tasks.push_back(std::move(task));
  return schedule_.sections.back().tasks.back();
}

UnitStorage ScheduleBuilder::storage(int unit) const {
  UnitStorage s = unit_storage(static_cast<int>(deck_.zero.stage), layout_.units[index(unit)], request_.ranks);
  if (!request_.training) s.parameters_whole = true;
  return s;
}

Range ScheduleBuilder::state(int unit) const {
  return storage(unit).optimizer_whole ? Range{0, unit_at(unit).elements} : owned_range(layout_, unit, request_.rank);
}

Schedule build_schedule(const BuildRequest& request) { return ScheduleBuilder(request).build(); }

StateRange state_range(const Schedule& schedule, const BuildRequest& request, const std::string& group, int unit, StateSide side) {
  const Unit& u = request.layout.units[static_cast<std::size_t>(unit)];
  const UnitStorage st = unit_storage(static_cast<int>(request.deck.zero.stage), u, request.ranks);
  const Range range = st.optimizer_whole ? Range{0, u.elements} : owned_range(request.layout, unit, request.rank);
  const bool in_parameters = group == "master" && request.deck.precision.compute == DType::f32;
  const std::string name = (in_parameters ? "parameters" : group) + "." + u.name;
  const int twin = side == StateSide::host ? schedule.find_buffer("host." + name) : -1;
  if (twin >= 0) return {twin, 0, range};
  return {schedule.find_buffer(name), in_parameters && st.parameters_whole ? 4 * range.begin : 0, range};
}

Layout layout_for(const Deck& deck, int ranks) {
  const bool persistent = deck.zero.stage == 3 && ranks > 1;
  return make_layout(parameter_table(deck.model), ranks, persistent ? deck.zero.param_persistence_threshold : 0);
}

}  // namespace tessera
