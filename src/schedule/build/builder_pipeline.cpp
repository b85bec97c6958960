// A stage of a pipeline: its micro-batches in their order, and what travels to its neighbours and comes from them. Activations that wait
// for their backward pass while other micro-batches begin lie in slots, one for each that is in flight.
#include <fmt/format.h>

#include <algorithm>

#include "schedule/build/micro_batches.hpp"
#include "schedule/build/schedule_builder.hpp"

namespace tessera {

namespace {

/// Micro-batches whose gradient of the stream has a place: the next one's may arrive while one's is worked on.
constexpr std::int64_t gradients_at_a_time = 2;

bool is_forward(const SegmentPass& pass) { return pass.kind == PassKind::forward; }

}  // namespace

std::vector<PipelinePhase> ScheduleBuilder::step_order() const {
  return one_forward_one_backward(request_.stage, accumulation_steps(deck_, request_.data.size), updates_late());
}

ScheduleBuilder::Events ScheduleBuilder::events_of(const PipelinePhase& phase, const Events& passes) {
  const auto middle = std::ranges::find_if(passes, [&](int number) { return !is_forward(pass(number)); });
  ahead_ = phase.ahead;
  return {phase.forward ? passes.begin() : middle, phase.backward ? passes.end() : middle};
}

std::int64_t ScheduleBuilder::shift_of(const SegmentPass& p) const { return is_forward(p) ? ahead_ : 0; }

Use ScheduleBuilder::in_slots(const std::string& name, Tier tier, std::int64_t bytes, std::int64_t slots, Access access,
                              std::int64_t shift) {
  // Each slot begins where a buffer of its own could.
  const int id = buffer(name, Category::activations, tier, slots * round_up(bytes, plan_alignment), Life::program);
  schedule_.buffers[index(id)].slots = slots;
  return {id, 0, bytes, access, true, shift};
}

Use ScheduleBuilder::kept_use(const std::string& name, const ValueInfo& v, const SegmentPass& p, Access access) {
  if (!crosses_) return activation_use(name, v, access);
  return in_slots("in_flight." + name, tier_of(v), v.bytes, in_flight_, access, shift_of(p));
}

std::int64_t ScheduleBuilder::stream_elements() const { return schedule_.shape.rows() / request_.mesh.size(Axis::tp) * schedule_.shape.C; }

Use ScheduleBuilder::boundary(Boundary what, Access access, std::int64_t shift) {
  const std::int64_t bytes = compute_bytes(stream_elements());
  const char* names[] = {"incoming.stream", "outgoing.stream", "d_stream"};
  const std::string name = names[static_cast<std::size_t>(what)];
  if (in_flight_ == 0)  // an evaluation keeps nothing
    return {buffer("evaluated." + name, Category::activations, comm_tier_, bytes), 0, bytes, access};
  const std::int64_t A = accumulation_steps(deck_, request_.data.size);
  // One more than are in flight, so that the next one's stream may arrive before a backward pass has ended.
  const std::int64_t slots[] = {std::min(A, in_flight_ + 1), 1, std::min(A, gradients_at_a_time)};
  return in_slots(name, comm_tier_, bytes, slots[static_cast<std::size_t>(what)], access, shift);
}

void ScheduleBuilder::emit_transfer(bool forward, bool sends) {
  const std::int64_t shift = forward ? ahead_ : 0;
  const Boundary what = !forward ? Boundary::gradient : sends ? Boundary::outgoing : Boundary::incoming;
  Coordinates peer = coordinates_of(request_.mesh, request_.rank);
  peer[static_cast<std::size_t>(Axis::pp)] += forward == sends ? 1 : -1;
  const Use use = boundary(what, sends ? Access::read : Access::write, shift);
  emit(
      {.name = fmt::format("{} {}", sends ? "send" : "receive", forward ? "stream" : "gradient"),
       .op = Transfer{.sends = sends, .peer = rank_of(request_.mesh, peer), .count = stream_elements(), .dtype = compute(), .ahead = shift},
       .lane = forward ? Lane::streams : Lane::stream_gradients,
       .uses = {use},
       .bytes_moved = static_cast<double>(use.bytes)});
}

void ScheduleBuilder::emit_arrivals(const Events& events, int event) {
  if (!pipelined()) return;
  const auto forward = [&](int e) { return is_forward(pass(events[index(e)])); };
  if (event > 0 && forward(event - 1) == forward(event)) return;
  if (forward(event) ? !request_.stage.first() : !request_.stage.last()) emit_transfer(forward(event), false);
}

void ScheduleBuilder::emit_departures(const Events& events, int event) {
  if (!pipelined()) return;
  const auto forward = [&](int e) { return is_forward(pass(events[index(e)])); };
  if (index(event) + 1 < events.size() && forward(event + 1) == forward(event)) return;
  if (forward(event) ? !request_.stage.last() : !request_.stage.first()) emit_transfer(forward(event), true);
}

}  // namespace tessera
