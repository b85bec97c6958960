// Gradients of weights apart from the backward passes (pipeline.schedule = "zero_bubble"): what the stage before waits for comes first, the
// rest runs micro-batches later. What it reads waits in slots, one for each micro-batch between the two.
#include <fmt/format.h>

#include <algorithm>

#include "schedule/build/schedule_builder.hpp"

namespace tessera {

void ScheduleBuilder::add_parted(Events& events, Events& weights, int segment) {
  const Segment& s = schedule_.segments[index(segment)];
  const bool stream_kept = begins_chunk(segment) || !activations_.stream_dropped[index(segment - 1)];
  const PartedBackward parted = part_backward(s, segment, activations_.kept[index(segment)], stream_kept, [&](const ValueInfo& weight) {
    return plan(layout_.find(weight.name).unit).storage.parameters_whole;
  });
  add_pass(events, parted.inputs);
  if (parted.weights.calls.empty()) return;
  add_pass(weights, parted.weights);
  if (parted.reads_d_stream) keeps_gradient_.insert(segment);
}

void ScheduleBuilder::note_writers(const Events& events) {
  for (const int number : events) {
    const SegmentPass& p = pass(number);
    const int chunk = chunk_of(p.segment);
    for (const Operand& o : p.operands) {
      if (value_of(p, o).kind != ValueKind::weight_gradient) continue;
      const auto [known, fresh] = writers_.try_emplace(layout_.find(value_of(p, o).name).unit, Writers{false, chunk, chunk});
      Writers& writers = known->second;
      writers.weights |= p.kind == PassKind::weights;
      writers.first_chunk = std::max(writers.first_chunk, chunk), writers.last_chunk = std::min(writers.last_chunk, chunk);
    }
  }
}

void ScheduleBuilder::note_waiting(const Events& weights) {
  for (const int number : weights) {
    const SegmentPass& p = pass(number);
    for (const Operand& o : p.operands) {
      const ValueInfo& v = value_of(p, o);
      if (o.kept_by == KeptBy::forward) waits_.insert(fmt::format("{}.{}", schedule_.segments[index(p.segment)].name, v.name));
      if (o.kept_by == KeptBy::again) waits_.insert(made_again_name(p, v));
      if (v.kind == ValueKind::stream_in)
        waits_.insert(begins_chunk(p.segment) ? boundary_name(Boundary::incoming, chunk_of(p.segment)) : stream_name(p, p.segment - 1));
    }
  }
}

void ScheduleBuilder::emit_kept_gradient(const Events& events, int event) {
  const SegmentPass& p = pass(events[index(event)]);
  const auto is_of_same = [&](int e) {
    const SegmentPass& q = pass(events[index(e)]);
    return q.kind == PassKind::backward && q.segment == p.segment;
  };
  if (p.kind != PassKind::backward || !keeps_gradient_.contains(p.segment) || (event > 0 && is_of_same(event - 1))) return;
  const Segment& segment = schedule_.segments[index(p.segment)];
  const auto v = std::ranges::find(segment.values, ValueKind::d_stream, &ValueInfo::kind);
  emit({.name = "keep gradient " + segment.name,
        .op = Copy{},
        .uses = {waiting_use("d_stream." + segment.name, *v, p, Access::write),
                 boundary(Boundary::gradient, chunk_of(p.segment), Access::read, 0)}});
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

Use ScheduleBuilder::waiting_gradient_use(const std::string& tensor, Access access, std::int64_t shift) {
  const TensorRef ref = layout_.find(tensor);
  const std::int64_t slots = flights_.front().backward_to_weights;
  return in_slots("waiting_gradients." + name_for_all(tensor), local_tier_, 4 * ref.elements, slots, access, shift, Category::gradients);
}

void ScheduleBuilder::emit_joined_gradients(int unit) {
  const auto waiting = waiting_gradients_.find(unit);
  if (waiting == waiting_gradients_.end()) return;
  const int target = gradient_buffer(unit);
  for (const std::string& tensor : waiting->second) {
    const TensorRef ref = layout_.find(tensor);
    emit({.name = "join gradient " + name_for_all(tensor),
          .op = Copy{},
          .uses = {{target, 4 * ref.offset, 4 * ref.elements, Access::write}, waiting_gradient_use(tensor, Access::read, -behind_)}});
  }
}

}  // namespace tessera
