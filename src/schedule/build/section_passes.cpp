#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "kernels/fp8_history/fp8_history.hpp"
#include "schedule/build/fp8_scales.hpp"
#include "schedule/build/section_builder.hpp"
#include "schedule/build/unit_update.hpp"
#include "schedule/inputs.hpp"

namespace tessera {

using kernels::Fp8Tensor;

SectionBuilder::SectionBuilder(const Frame& frame, Buffers& buffers, Passes& passes, StepPasses& step, std::vector<Section>& sections,
                               std::string name, PipelinePhase phase)
    : out_(frame, buffers, sections, std::move(name)),
      frame_(frame),
      buffers_(buffers),
      passes_(passes),
      step_(step),
      turn_(std::move(phase)),
      gathers_(out_, passes, step),
      gradients_(out_, passes, step, turn_),
      streams_(out_, passes, step) {}

void SectionBuilder::begin_late_updates() {
  late_updates_.assign(frame_.layout.units.size(), true);
  // Both ends of a pipeline reduce sums in the update of what they share, before either waits for the other's micro-batches. Tensor ranks
  // do so in the update of what none of them cuts, which one of them alone may read, such as the bias of a sum over them: not where it is
  // read first.
  for (int u = 0; u < frame_.units(); ++u)
    if (frame_.unit_at(u).owners & (pipeline_ends | axes({Axis::tp}))) emit_late_update(u);
}

void SectionBuilder::emit_late_update(int unit) {
  if (late_updates_.empty() || !late_updates_[index(unit)]) return;
  late_updates_[index(unit)] = false;
  emit_update(out_, unit);
  if (packs_again(out_, unit)) emit_pack(out_, unit);
}

void SectionBuilder::emit_events(const Events& events) {
  const std::vector<Residency> live = gathers_.plan(events);
  gradients_.plan(events);
  streams_.plan(events);
  std::size_t next = 0;
  for (int e = 0; e < static_cast<int>(events.size()); ++e) {
    for (; next < live.size() && live[next].issue <= e; ++next) {
      emit_late_update(live[next].unit);
      gathers_.emit_gather(live[next], static_cast<int>(next), events);
    }
    const SegmentPass& p = passes_.at(events[index(e)]);
    for (const Operand& o : p.operands)
      if (passes_.value(p, o).kind == ValueKind::weight) emit_late_update(passes_.tensor(p, o).unit);
    gathers_.emit_decodes(e);
    streams_.emit_copies(e, false);
    emit_arrivals(events, e);
    emit_stream_gradient_for_weights(events, e);
    emit_pass(events[index(e)], e, p.kind == PassKind::weights ? turn_.first_weights : turn_.first);
    emit_departures(events, e);
    streams_.emit_copies(e, true);
    gradients_.emit_done(e);
  }
  for (int u = 0; u < frame_.units(); ++u) emit_late_update(u);
  gradients_.emit_delayed_reductions();
  gradients_.emit_end_reductions(false);
}

void SectionBuilder::emit_pass(int number, int event, bool first) {
  const SegmentPass& p = passes_.at(number);
  if (const Exchange* exchange = exchange_of(passes_.segment_of(p), p)) return emit_exchange(p, *exchange, event, first);
  Task task{.name = p.name, .op = RunPass{number, p.kind}, .lane = Lane::compute, .uses = {}, .flops = p.flops};
  for (const Operand& o : p.operands) task.uses.push_back(bind(o, p, event, first));
  task.uses.push_back(buffers_.workspace("workspace." + p.whole, frame_.local_tier, static_cast<std::int64_t>(p.workspace)));
  emit(std::move(task));
}

namespace {
Lane lane_of(Axis axis) { return axis == Axis::tp ? Lane::tensor : axis == Axis::cp ? Lane::context : Lane::experts; }
}  // namespace

void SectionBuilder::emit_exchange(const SegmentPass& p, const Exchange& exchange, int event, bool first) {
  const bool in_place = exchange.kind == CollectiveKind::all_reduce;
  const Use to = bind(p.operands[0], p, event, first), from = in_place ? to : bind(p.operands[1], p, event, first);
  const Axes along = axes({exchange.axis});
  // A rank keeps its own part of what is gathered, reduced or exchanged, and sends all that rotates.
  const std::int64_t size = frame_.request.mesh.size(exchange.axis), most = std::max(to.bytes, from.bytes);
  const std::int64_t moved = exchange.kind == CollectiveKind::rotate ? most : most / size * (size - 1) * (in_place ? 2 : 1);
  Task task{.name = p.name,
            .op = Collective{exchange.kind, along, exchange.count, 0, exchange.dtype, false, exchange.times, Reduction::sum, exchange.by},
            .lane = lane_of(exchange.axis),
            .uses = in_place ? std::vector<Use>{to} : std::vector<Use>{to, from},
            .bytes_moved = static_cast<double>(moved)};
  if (exchange.kind == CollectiveKind::reduce_scatter) {
    const ScatteredSum sum{size, exchange.count, exchange.dtype, false, frame_.shape.deterministic};
    const std::int64_t bytes = reduce_scatter_workspace_bytes(frame_.shape.backend, sum);
    task.uses.push_back(buffers_.workspace("workspace.sums", frame_.comm_tier, bytes));
  }
  emit(std::move(task));
}

Tier SectionBuilder::tier_of(const ValueInfo& v) const {
  const bool stream = v.kind == ValueKind::stream_in || v.kind == ValueKind::stream_out || v.kind == ValueKind::d_stream;
  return v.exchanged || (stream && frame_.request.mesh.size(Axis::tp) > 1) ? frame_.comm_tier : frame_.local_tier;
}

Use SectionBuilder::activation_use(const std::string& name, const ValueInfo& v, Access access) {
  return buffers_.first_of(name, Category::activations, tier_of(v), v.bytes, access);
}

std::string SectionBuilder::stream_name(const SegmentPass& p, SegmentNumber leaves) const {
  const int stream = passes_.stream(leaves);
  if (p.kind != PassKind::forward && streams_.contains(stream)) return OffloadedStreams::returned(stream);
  return step_.stream_name(passes_, p, leaves);
}

std::int64_t SectionBuilder::shift_of(const SegmentPass& p) const {
  return p.kind == PassKind::forward ? turn_.ahead : p.kind == PassKind::weights ? -turn_.behind : 0;
}

Use SectionBuilder::stream_use(const SegmentPass& p, SegmentNumber leaves, const ValueInfo& v, Access access) {
  if (frame_.pipelined() && v.kind == ValueKind::stream_in && frame_.begins_chunk(p.segment))
    return boundary(Boundary::incoming, p, access, shift_of(p));
  if (frame_.pipelined() && v.kind == ValueKind::stream_out && frame_.ends_chunk(p.segment))
    return boundary(Boundary::outgoing, p, access, 0);
  const bool kept = step_.keeps(p) && !step_.stream_dropped(leaves);
  return kept ? kept_use(stream_name(p, leaves), v, p, access) : activation_use(stream_name(p, leaves), v, access);
}

Use SectionBuilder::activation_of(const Operand& o, const SegmentPass& p, const ValueInfo& v) {
  const std::string name = fmt::format("{}.{}", passes_.segment_of(p).name, v.name);
  switch (o.kept_by) {
    case KeptBy::forward:
      return kept_use(name, v, p, o.access);
    case KeptBy::backward:
      return waiting_use(name, v, p, o.access);
    case KeptBy::again: {
      const std::string again = step_.made_again_name(passes_.segment_of(p), v);
      return step_.waits(again) ? waiting_use(again, v, p, o.access) : activation_use(again, v, o.access);
    }
    case KeptBy::none:
      return activation_use(fmt::format("scratch.{}.{}", p.whole, v.name), v, o.access);
  }
  return {};
}

Use SectionBuilder::bind(const Operand& o, const SegmentPass& p, int event, bool first) {
  const Segment& segment = passes_.segment_of(p);
  const ValueInfo& v = segment.at(o.value);
  switch (v.kind) {
    case ValueKind::stream_in:
      return stream_use(p, p.segment.before(), v, o.access);
    case ValueKind::stream_out:
      return stream_use(p, p.segment, v, o.access);
    case ValueKind::d_stream:
      if (p.kind == PassKind::weights) return waiting_use("d_stream." + segment.name, v, p, o.access);
      return frame_.pipelined() ? boundary(Boundary::gradient, p, o.access, 0) : activation_use("d_stream", v, o.access);
    case ValueKind::activation:
      return activation_of(o, p, v);
    case ValueKind::weight:
      return gathers_.weight_use(passes_.tensor(p, o), event);
    case ValueKind::packed_weight:
      return frame_.keeps_packed(v) ? buffers_.whole(packed_name(v), Access::read) : buffers_.absent();
    case ValueKind::weight_gradient:
      return gradients_.tensor_gradient_use(v.name, passes_.tensor(p, o), p, first);
    case ValueKind::rope_table:
      return buffers_.whole(v.name, Access::read);
    case ValueKind::tokens:
    case ValueKind::targets:
    case ValueKind::row_weights:
    case ValueKind::token_groups:
    case ValueKind::sequences:
    case ValueKind::sequence_counts:
    case ValueKind::reference_logps:
    case ValueKind::positions:
    case ValueKind::padding:
    case ValueKind::token_numbers:
    case ValueKind::document_starts:
    case ValueKind::micro_batch_weight:
      return buffers_.slot(input_of(v.kind)->name, shift_of(p), o.access);
    case ValueKind::gradient_scale:
      return buffers_.whole("gradient_scale", Access::read);
    case ValueKind::fp8_multipliers:
      return buffers_.whole("fp8_multipliers", Access::read);
    case ValueKind::fp8_weight_multiplier:
      return gathers_.multiplier_use(v, passes_.tensor(p, o).unit, event);
    case ValueKind::fp8_weight_largest:
      if (!step_.keeps(p) || frame_.plan(passes_.tensor(p, o).unit).is_coded()) return buffers_.absent();
      return fp8_of_weight(out_, "fp8_largest", v.name, Access::add);
    case ValueKind::fp8_largest:  // an evaluation leaves no trace in a run
      return step_.keeps(p) ? fp8_of(out_, "fp8_largest", Fp8Tensor::input, Fp8Tensor::gradient, Access::add) : buffers_.absent();
    case ValueKind::scalars:
      return buffers_.whole(passes_.tower(p.segment.tower).prefix + "scalars", Access::add);
    case ValueKind::preference_totals:
      return buffers_.whole("preference", Access::add);
    case ValueKind::group_losses:
      return buffers_.whole("group_losses", Access::add);
    case ValueKind::router_totals:
      return buffers_.whole(passes_.tower(p.segment.tower).prefix + "router", Access::add);
    case ValueKind::rotations:
    case ValueKind::text_tokens:
    case ValueKind::position:
    case ValueKind::cache:
    case ValueKind::logits:
    case ValueKind::likeliest:
      return bind_of_text(o, segment.name, v);
  }
  return {};
}

}  // namespace tessera
