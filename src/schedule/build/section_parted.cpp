// Gradients of weights apart from the backward passes (pipeline.schedule = "zero_bubble"): what the stage before waits for comes first, the
// rest runs micro-batches later. What it reads waits in slots, one for each micro-batch between the two.
#include <fmt/format.h>

#include <algorithm>

#include "schedule/build/section_builder.hpp"

namespace tessera {

void SectionBuilder::emit_stream_gradient_for_weights(const Events& events, int event) {
  const SegmentPass& p = passes_.at(events[index(event)]);
  const auto is_of_same = [&](int e) {
    const SegmentPass& q = passes_.at(events[index(e)]);
    return q.kind == PassKind::backward && q.segment == p.segment;
  };
  if (p.kind != PassKind::backward || !step_.keeps_gradient(p.segment) || (event > 0 && is_of_same(event - 1))) return;
  const Segment& segment = passes_.segment_of(p);
  const auto v = std::ranges::find(segment.values, ValueKind::d_stream, &ValueInfo::kind);
  emit({.name = "keep gradient " + segment.name,
        .op = Copy{},
        .uses = {waiting_use("d_stream." + segment.name, *v, p, Access::write), boundary(Boundary::gradient, p, Access::read, 0)}});
}

Use SectionBuilder::waiting_use(const std::string& name, const ValueInfo& v, const SegmentPass& p, Access access) {
  const std::int64_t slots = step_.flight(frame_.chunk_of(p.segment)).backward_to_weights;
  return buffers_.in_slots("waiting." + name, tier_of(v), v.bytes, slots, access, shift_of(p));
}

}  // namespace tessera
