// A stage of a pipeline: its micro-batches in their order, and what travels to its neighbours and comes from them. Activations that wait
// for their backward pass while other micro-batches begin lie in slots, one for each that is in flight.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "schedule/build/micro_batches.hpp"
#include "schedule/build/section_builder.hpp"

namespace tessera {

namespace {

/// Micro-batches whose gradient of the stream has a place: the next one's may arrive while one's is worked on.
constexpr std::int64_t gradients_at_a_time = 2;

bool is_forward(const SegmentPass& pass) { return pass.kind == PassKind::forward; }

}  // namespace

Use SectionBuilder::kept_use(const std::string& name, const ValueInfo& v, const SegmentPass& p, Access access) {
  const InFlight& flight = step_.flight(frame_.chunk_of(p.segment));
  const bool waits = step_.waits(name);
  if (!flight.crosses && !waits) return activation_use(name, v, access);
  return buffers_.in_slots("in_flight." + name, tier_of(v), v.bytes, waits ? flight.to_weights : flight.to_backward, access, shift_of(p));
}

Use SectionBuilder::boundary(Boundary what, const SegmentPass& p, Access access, std::int64_t shift) {
  const std::int64_t bytes = frame_.compute_bytes(frame_.stream_elements());
  const std::string name = step_.boundary_name(passes_, what, p);
  if (!step_.keeps()) {  // an evaluation keeps nothing
    if (frame_.stage().chunks() == 1) return buffers_.first_of("evaluated." + name, Category::activations, frame_.comm_tier, bytes, access);
    // A group's streams come round before the stage turns to the chunk that takes them.
    const std::int64_t group = group_size(frame_.request.evaluation_micro_batches, frame_.stage().count);
    return buffers_.in_slots("evaluated." + name, frame_.comm_tier, bytes, what == Boundary::incoming ? group : 1, access, 0);
  }
  const std::int64_t A = frame_.micro_batches();
  if (!step_.keeps(p)) {  // of a group, and one more that may arrive before it is asked for
    const Stage& stage = frame_.stage();
    const std::int64_t slots = std::min(A, (stage.chunks() == 1 ? 1 : group_size(A, stage.count)) + 1);
    return buffers_.in_slots(name, frame_.comm_tier, bytes, what == Boundary::incoming ? slots : 1, access, shift, Category::activations,
                             stage.chunks() == 1 ? Life::program : Life::run);
  }
  const InFlight& flight = step_.flight(frame_.chunk_of(p.segment));
  // Of a group with more micro-batches than there are stages, what comes round from one end to the other is there before its chunk's turn.
  const Stage& stage = frame_.stage();
  const std::int64_t early = stage.chunks() > 1 ? std::max<std::int64_t>(0, group_size(A, stage.count) - stage.count) : 0;
  // One more than are in flight, so that the next one's stream may arrive before a backward pass has ended.
  const std::int64_t held = (step_.waits(name) ? flight.to_weights : flight.to_backward) + 1;
  const std::int64_t slots[] = {std::min(A, held + (stage.first() ? early : 0)), 1,
                                std::min(A, gradients_at_a_time + (stage.last() ? early : 0))};
  const Life life = early > 0 ? Life::run : Life::program;  // bytes of what lives until that turn would make it wait
  return buffers_.in_slots(name, frame_.comm_tier, bytes, slots[static_cast<std::size_t>(what)], access, shift, Category::activations,
                           life);
}

void SectionBuilder::emit_transfer(const SegmentPass& p, bool sends) {
  const bool forward = is_forward(p);
  const int chunk = frame_.chunk_of(p.segment);
  const Stage& stage = frame_.stage();
  const std::int64_t shift = forward ? turn_.ahead : 0;
  const Boundary what = !forward ? Boundary::gradient : sends ? Boundary::outgoing : Boundary::incoming;
  const bool up = forward == sends, wraps = up ? stage.last() : stage.first();  // to or from the stage after this one, or the one before
  Coordinates peer = coordinates_of(frame_.request.mesh, frame_.request.rank);
  peer[static_cast<std::size_t>(Axis::pp)] = (stage.number + (up ? 1 : stage.count - 1)) % stage.count;
  const Use use = boundary(what, p, sends ? Access::read : Access::write, shift);
  emit({.name = fmt::format("{} {}{}", sends ? "send" : "receive", passes_.tower(p.segment.tower).prefix, forward ? "stream" : "gradient"),
        .op = Transfer{.sends = sends,
                       .peer = rank_of(frame_.request.mesh, peer),
                       .count = frame_.stream_elements(),
                       .dtype = frame_.compute(),
                       .ahead = shift,
                       .border = stage.chunks() == 1 ? 0 : frame_.virtual_stage(chunk) + (up ? 1 : 0)},
        // From the last stage to the first there is another lane: else each stage of the ring would wait for the next.
        .lane = forward ? (wraps ? Lane::wrapped_streams : Lane::streams) : (wraps ? Lane::wrapped_gradients : Lane::stream_gradients),
        .uses = {use},
        .bytes_moved = static_cast<double>(use.bytes)});
}

bool SectionBuilder::goes_on(const Events& events, int event, int other) const {
  if (other < 0 || other >= std::ssize(events)) return false;
  const SegmentPass &p = passes_.at(events[index(event)]), &q = passes_.at(events[index(other)]);
  return q.kind != PassKind::weights && is_forward(p) == is_forward(q) && p.segment.tower == q.segment.tower;
}

void SectionBuilder::emit_arrivals(const Events& events, int event) {
  const SegmentPass& p = passes_.at(events[index(event)]);
  if (!frame_.pipelined() || p.kind == PassKind::weights || goes_on(events, event, event - 1)) return;
  const Stage& stage = frame_.stage();
  const int chunk = frame_.chunk_of(p.segment);
  const bool model_begins = stage.first() && chunk == 0, model_ends = stage.last() && chunk == stage.chunks() - 1;
  if (is_forward(p) ? !model_begins : !model_ends) emit_transfer(p, false);
}

void SectionBuilder::emit_departures(const Events& events, int event) {
  const SegmentPass& p = passes_.at(events[index(event)]);
  if (!frame_.pipelined() || p.kind == PassKind::weights || goes_on(events, event, event + 1)) return;
  const Stage& stage = frame_.stage();
  const int chunk = frame_.chunk_of(p.segment);
  const bool model_begins = stage.first() && chunk == 0, model_ends = stage.last() && chunk == stage.chunks() - 1;
  if (is_forward(p) ? !model_ends : !model_begins) emit_transfer(p, true);
}

void SectionBuilder::emit_meetings_of_ends(bool ends) {
  std::vector<Meeting> later;
  for (const Meeting& meeting : std::exchange(step_.at_end, {})) {
    const bool outlives = buffers_[meeting.whole].life != Life::section;
    if (!ends && meeting.last && outlives)
      later.push_back(meeting);
    else
      emit_meeting(meeting);
  }
  step_.at_end = std::move(later);
}

}  // namespace tessera
