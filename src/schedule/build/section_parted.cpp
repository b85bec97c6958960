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

namespace {
/// A tensor of experts as the rank with the first of them calls it: all ranks of a stage have one schedule.
std::string name_for_all(const std::string& tensor) {
  constexpr std::string_view experts = ".experts.";
  const std::size_t at = tensor.find(experts);
  if (at == std::string::npos) return tensor;
  const std::size_t number = at + experts.size();
  return tensor.substr(0, number) + "0" + tensor.substr(tensor.find('.', number));
}
}  // namespace

Use SectionBuilder::waiting_use(const std::string& name, const ValueInfo& v, const SegmentPass& p, Access access) {
  const std::int64_t slots = step_.flight(frame_.chunk_of(p.segment)).backward_to_weights;
  return buffers_.in_slots("waiting." + name, tier_of(v), v.bytes, slots, access, shift_of(p));
}

Use SectionBuilder::waiting_gradient_use(const std::string& name, const TensorRef& tensor, Access access, std::int64_t shift) {
  const std::int64_t slots = step_.flight(0).backward_to_weights;
  return buffers_.in_slots("waiting_gradients." + name_for_all(name), frame_.local_tier, 4 * tensor.elements, slots, access, shift,
                           Category::gradients);
}

void SectionBuilder::emit_joined_gradients(int unit) {
  const auto waiting = step_.waiting_gradients.find(unit);
  if (waiting == step_.waiting_gradients.end()) return;
  const int target = gradient_buffer(unit);
  for (const auto& [name, tensor] : waiting->second)
    emit({.name = "join gradient " + name_for_all(name),
          .op = Copy{},
          .uses = {{target, 4 * tensor.offset, 4 * tensor.elements, Access::write},
                   waiting_gradient_use(name, tensor, Access::read, -turn_.behind)}});
}

}  // namespace tessera
