// A stage of a pipeline: its micro-batches in their order, and what travels to its neighbours and comes from them. Activations that wait
// for their backward pass while other micro-batches begin lie in slots, one for each that is in flight.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "schedule/build/micro_batches.hpp"
#include "schedule/build/schedule_builder.hpp"

namespace tessera {

namespace {

/// Micro-batches whose gradient of the stream has a place: the next one's may arrive while one's is worked on.
constexpr std::int64_t gradients_at_a_time = 2;

bool is_forward(const SegmentPass& pass) { return pass.kind == PassKind::forward; }

}  // namespace

std::vector<PipelinePhase> ScheduleBuilder::step_order() const {
  return pipeline_order(deck_.pipeline, request_.stage, accumulation_steps(deck_, request_.data.size), updates_late());
}

ScheduleBuilder::Events ScheduleBuilder::events_of(const PipelinePhase& phase, const Events& passes) {
  ahead_ = phase.ahead, behind_ = phase.behind;
  Events events;
  for (const int number : passes) {
    const SegmentPass& p = pass(number);
    const bool in = p.kind == PassKind::forward   ? phase.forward && chunk_of(p.segment) == phase.forward_chunk
                    : p.kind == PassKind::weights ? phase.weights
                                                  : phase.backward && chunk_of(p.segment) == phase.backward_chunk;
    if (in) events.push_back(number);
  }
  return events;
}

void ScheduleBuilder::build_evaluated_chunks(const Events& passes) {
  std::map<int, int> built;  // section by chunk
  for (const PipelinePhase& phase : forward_order(request_.stage, request_.evaluation_micro_batches)) {
    const auto [section, fresh] = built.try_emplace(phase.forward_chunk, last_section() + 1);
    if (fresh) {
      begin_section(fmt::format("evaluation micro-batch, chunk {}", phase.forward_chunk));
      emit_events(events_of(phase, passes), phase);
    }
    schedule_.evaluate.phases.push_back({section->second, phase.repeat, phase.micro});
  }
}

std::int64_t ScheduleBuilder::shift_of(const SegmentPass& p) const {
  return is_forward(p) ? ahead_ : p.kind == PassKind::weights ? -behind_ : 0;
}

Use ScheduleBuilder::in_slots(const std::string& name, Tier tier, std::int64_t bytes, std::int64_t slots, Access access, std::int64_t shift,
                              Category category, Life life) {
  // Each slot begins where a buffer of its own could.
  const int id = buffer(name, category, tier, slots * round_up(bytes, plan_alignment), life);
  schedule_.buffers[index(id)].slots = slots;
  return {id, 0, bytes, access, true, shift};
}

Use ScheduleBuilder::kept_use(const std::string& name, const ValueInfo& v, const SegmentPass& p, Access access) {
  const InFlight& flight = flights_[index(chunk_of(p.segment))];
  const bool waits = waits_.contains(name);
  if (!flight.crosses && !waits) return activation_use(name, v, access);
  return in_slots("in_flight." + name, tier_of(v), v.bytes, waits ? flight.to_weights : flight.to_backward, access, shift_of(p));
}

Use ScheduleBuilder::waiting_use(const std::string& name, const ValueInfo& v, const SegmentPass& p, Access access) {
  const std::int64_t slots = flights_[index(chunk_of(p.segment))].backward_to_weights;
  return in_slots("waiting." + name, tier_of(v), v.bytes, slots, access, shift_of(p));
}

std::int64_t ScheduleBuilder::stream_elements() const { return schedule_.shape.rows() / request_.mesh.size(Axis::tp) * schedule_.shape.C; }

std::string ScheduleBuilder::boundary_name(Boundary what, int chunk) const {
  const char* names[] = {"incoming.stream", "outgoing.stream", "d_stream"};
  const char* name = names[static_cast<std::size_t>(what)];
  return request_.stage.chunks() == 1 ? name : fmt::format("{}.{}", name, chunk);
}

Use ScheduleBuilder::boundary(Boundary what, int chunk, Access access, std::int64_t shift) {
  const std::int64_t bytes = compute_bytes(stream_elements());
  const std::string name = boundary_name(what, chunk);
  if (flights_.empty()) {  // an evaluation keeps nothing
    if (request_.stage.chunks() == 1) return {buffer("evaluated." + name, Category::activations, comm_tier_, bytes), 0, bytes, access};
    // A group's streams come round before the stage turns to the chunk that takes them.
    const std::int64_t group = group_size(request_.evaluation_micro_batches, request_.stage.count);
    return in_slots("evaluated." + name, comm_tier_, bytes, what == Boundary::incoming ? group : 1, access, 0);
  }
  const std::int64_t A = accumulation_steps(deck_, request_.data.size);
  const InFlight& flight = flights_[index(chunk)];
  // Of a group with more micro-batches than there are stages, what comes round from one end to the other is there before its chunk's turn.
  const Stage& stage = request_.stage;
  const std::int64_t early = stage.chunks() > 1 ? std::max<std::int64_t>(0, group_size(A, stage.count) - stage.count) : 0;
  // One more than are in flight, so that the next one's stream may arrive before a backward pass has ended.
  const std::int64_t held = (waits_.contains(name) ? flight.to_weights : flight.to_backward) + 1;
  const std::int64_t slots[] = {std::min(A, held + (stage.first() ? early : 0)), 1,
                                std::min(A, gradients_at_a_time + (stage.last() ? early : 0))};
  const Life life = early > 0 ? Life::run : Life::program;  // bytes of what lives until that turn would make it wait
  return in_slots(name, comm_tier_, bytes, slots[static_cast<std::size_t>(what)], access, shift, Category::activations, life);
}

void ScheduleBuilder::emit_transfer(int chunk, bool forward, bool sends) {
  const Stage& stage = request_.stage;
  const std::int64_t shift = forward ? ahead_ : 0;
  const Boundary what = !forward ? Boundary::gradient : sends ? Boundary::outgoing : Boundary::incoming;
  const bool up = forward == sends, wraps = up ? stage.last() : stage.first();  // to or from the stage after this one, or the one before
  Coordinates peer = coordinates_of(request_.mesh, request_.rank);
  peer[static_cast<std::size_t>(Axis::pp)] = (stage.number + (up ? 1 : stage.count - 1)) % stage.count;
  const Use use = boundary(what, chunk, sends ? Access::read : Access::write, shift);
  emit({.name = fmt::format("{} {}", sends ? "send" : "receive", forward ? "stream" : "gradient"),
        .op = Transfer{.sends = sends,
                       .peer = rank_of(request_.mesh, peer),
                       .count = stream_elements(),
                       .dtype = compute(),
                       .ahead = shift,
                       .border = stage.chunks() == 1 ? 0 : virtual_stage(chunk) + (up ? 1 : 0)},
        // From the last stage to the first there is another lane: else each stage of the ring would wait for the next.
        .lane = forward ? (wraps ? Lane::wrapped_streams : Lane::streams) : (wraps ? Lane::wrapped_gradients : Lane::stream_gradients),
        .uses = {use},
        .bytes_moved = static_cast<double>(use.bytes)});
}

bool ScheduleBuilder::goes_on(const Events& events, int event, int other) const {
  if (other < 0 || other >= std::ssize(events)) return false;
  const SegmentPass &p = pass(events[index(event)]), &q = pass(events[index(other)]);
  return q.kind != PassKind::weights && is_forward(p) == is_forward(q);
}

void ScheduleBuilder::emit_arrivals(const Events& events, int event) {
  const SegmentPass& p = pass(events[index(event)]);
  if (!pipelined() || p.kind == PassKind::weights || goes_on(events, event, event - 1)) return;
  const Stage& stage = request_.stage;
  const int chunk = chunk_of(p.segment);
  const bool model_begins = stage.first() && chunk == 0, model_ends = stage.last() && chunk == stage.chunks() - 1;
  if (is_forward(p) ? !model_begins : !model_ends) emit_transfer(chunk, is_forward(p), false);
}

void ScheduleBuilder::emit_departures(const Events& events, int event) {
  const SegmentPass& p = pass(events[index(event)]);
  if (!pipelined() || p.kind == PassKind::weights || goes_on(events, event, event + 1)) return;
  const Stage& stage = request_.stage;
  const int chunk = chunk_of(p.segment);
  const bool model_begins = stage.first() && chunk == 0, model_ends = stage.last() && chunk == stage.chunks() - 1;
  if (is_forward(p) ? !model_ends : !model_begins) emit_transfer(chunk, is_forward(p), true);
}

void ScheduleBuilder::emit_meetings_of_ends(bool ends) {
  std::vector<PutOff> later;
  for (const PutOff& meeting : std::exchange(at_end_, {})) {
    const bool outlives = schedule_.buffers[index(meeting.whole)].life != Life::section;
    if (!ends && meeting.last && outlives)
      later.push_back(meeting);
    else
      emit_meeting(meeting.unit, meeting.whole, meeting.first, meeting.last);
  }
  at_end_ = std::move(later);
}

}  // namespace tessera
