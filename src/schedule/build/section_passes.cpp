#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "kernels/fp8_history/fp8_history.hpp"
#include "schedule/build/section_builder.hpp"
#include "schedule/inputs.hpp"

namespace tessera {

using kernels::Fp8Tensor;

SectionBuilder::SectionBuilder(const Frame& frame, Buffers& buffers, Passes& passes, StepPasses& step, std::vector<Section>& sections,
                               std::string name, PipelinePhase turn)
    : frame_(frame),
      buffers_(buffers),
      passes_(passes),
      step_(step),
      sections_(sections),
      number_(static_cast<int>(sections.size())),
      turn_(std::move(turn)) {
  sections.push_back({std::move(name), {}});
}

Task& SectionBuilder::emit(Task task) {
  std::vector<Task>& tasks = sections_[index(number_)].tasks;
  tasks.push_back(std::move(task));
  return tasks.back();
}

std::vector<int> SectionBuilder::gathered_units(const SegmentPass& p) const {
  std::vector<int> result;
  for (const Operand& o : p.operands) {
    if (passes_.value(p, o).kind != ValueKind::weight) continue;
    const int unit = passes_.tensor(p, o).unit;
    if (!frame_.plan(unit).storage.parameters_whole && std::find(result.begin(), result.end(), unit) == result.end())
      result.push_back(unit);
  }
  return result;
}

std::vector<Residency> SectionBuilder::residencies(const Events& events) const {
  std::vector<std::vector<int>> used;
  for (const int e : events) used.push_back(gathered_units(passes_.at(e)));
  std::vector<std::int64_t> elements;
  for (const Unit& unit : frame_.layout.units) elements.push_back(unit.elements);
  const ZeroKeys& z = frame_.deck.zero;
  return plan_residencies(used, elements, {z.prefetch_bucket_size, z.max_live_parameters, z.max_reuse_distance});
}

void SectionBuilder::emit_events(const Events& events) {
  const std::vector<Residency> live = residencies(events);
  const std::vector<std::vector<int>> done = gradients_done(events);
  const std::map<int, Shared> shared = gradients_shared(events);
  gathered_.assign(frame_.layout.units.size(), {});
  to_decode_.clear();
  plan_absences(events);
  std::size_t next = 0;
  for (int e = 0; e < static_cast<int>(events.size()); ++e) {
    for (; next < live.size() && live[next].issue <= e; ++next) {
      emit_owed_update(live[next].unit);
      emit_gather(live[next], static_cast<int>(next), events);
    }
    const SegmentPass& p = passes_.at(events[index(e)]);
    for (const Operand& o : p.operands)
      if (passes_.value(p, o).kind == ValueKind::weight) emit_owed_update(passes_.tensor(p, o).unit);
    emit_decodes(e);
    emit_absences(e, false);
    emit_arrivals(events, e);
    emit_stream_gradient_for_weights(events, e);
    emit_pass(events[index(e)], e, p.kind == PassKind::weights ? turn_.first_weights : turn_.first);
    emit_departures(events, e);
    emit_absences(e, true);
    if (const auto tensor = shared.find(e); tensor != shared.end()) emit_shared_sum(tensor->second, turn_.first);
    if (!done[index(e)].empty()) emit_meetings_put_off();
    for (int unit : done[index(e)]) {
      const StepPasses::Writers& by = step_.writers(unit);
      const bool first = by.weights ? turn_.first_weights : turn_.first, last = by.weights ? turn_.last_weights : turn_.last;
      emit_gradient_done(unit, first && turn_.backward_chunk == by.first_chunk, last && turn_.backward_chunk == by.last_chunk);
    }
  }
  for (int u = 0; u < frame_.units(); ++u) emit_owed_update(u);
  emit_meetings_put_off();
  emit_meetings_of_ends(false);
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
  const Use to = bind(p.operands[0], p, event, first), from = bind(p.operands[1], p, event, first);
  const Axes along = axes({exchange.axis});
  // A rank keeps its own part of what is gathered, reduced or exchanged, and sends all that rotates.
  const std::int64_t size = frame_.request.mesh.size(exchange.axis), most = std::max(to.bytes, from.bytes);
  const std::int64_t moved = exchange.kind == CollectiveKind::rotate ? most : most / size * (size - 1);
  Task task{.name = p.name,
            .op = Collective{exchange.kind, along, exchange.count, 0, exchange.dtype, false, exchange.times, Reduction::sum, exchange.by},
            .lane = lane_of(exchange.axis),
            .uses = {to, from},
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
  if (p.kind != PassKind::forward && absences_.contains(stream)) return returned(stream);
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
      return weight_use(passes_.tensor(p, o), event);
    case ValueKind::packed_weight:
      return frame_.keeps_packed(v) ? buffers_.whole(packed_name(v), Access::read) : buffers_.absent();
    case ValueKind::weight_gradient:
      return tensor_gradient_use(v.name, passes_.tensor(p, o), p, first);
    case ValueKind::rope_table:
      return buffers_.whole(v.name, Access::read);
    case ValueKind::tokens:
    case ValueKind::targets:
    case ValueKind::row_weights:
    case ValueKind::token_groups:
    case ValueKind::positions:
    case ValueKind::padding:
    case ValueKind::document_starts:
    case ValueKind::micro_batch_weight:
      return buffers_.slot(input_of(v.kind)->name, shift_of(p));
    case ValueKind::gradient_scale:
      return buffers_.whole("gradient_scale", Access::read);
    case ValueKind::fp8_multipliers:
      return buffers_.whole("fp8_multipliers", Access::read);
    case ValueKind::fp8_weight_multiplier:
      return multiplier_use(v, passes_.tensor(p, o).unit, event);
    case ValueKind::fp8_weight_largest:
      if (!step_.keeps(p) || frame_.plan(passes_.tensor(p, o).unit).is_coded()) return buffers_.absent();
      return fp8_of_weight("fp8_largest", v.name, Access::add);
    case ValueKind::fp8_largest:  // an evaluation leaves no trace in a run
      return step_.keeps(p) ? fp8_of("fp8_largest", Fp8Tensor::input, Fp8Tensor::gradient, Access::add) : buffers_.absent();
    case ValueKind::scalars:
      return buffers_.whole(passes_.tower(p.segment.tower).prefix + "scalars", Access::add);
    case ValueKind::group_losses:
      return buffers_.whole("group_losses", Access::add);
    case ValueKind::router_totals:
      return buffers_.whole(passes_.tower(p.segment.tower).prefix + "router", Access::add);
    case ValueKind::rotations:
    case ValueKind::text_tokens:
    case ValueKind::position:
    case ValueKind::cached_keys:
    case ValueKind::cached_values:
    case ValueKind::logits:
    case ValueKind::likeliest:
      return bind_of_text(o, segment.name, v);
  }
  return {};
}

void SectionBuilder::emit_gather(const Residency& r, int number, const Events& events) {
  const UnitPlan& p = frame_.plan(r.unit);
  const std::string& name = frame_.unit_at(r.unit).name;
  const std::int64_t P = frame_.unit_at(r.unit).elements, S = p.parameters.size();
  const int target =
      buffers_.declare(fmt::format("gathered.{}#{}", name, number), Category::gathered, frame_.comm_tier, frame_.compute_bytes(P));
  const bool decoded = p.wire != Wire::plain || p.is_coded();
  const std::int64_t part = p.is_coded() ? p.coded.block : decoded ? kernels::wire_bytes(p.wire, S) : frame_.compute_bytes(S);
  const std::int64_t all = part * (P / S);
  // A rank alone decodes its own blocks where they lie.
  const int whole = decoded && (p.copies.size > 1 || (p.encoded && p.parameters_offloaded))
                        ? buffers_.declare(fmt::format("blocks.{}#{}", name, number), Category::gathered, frame_.comm_tier, all)
                        : target;
  gathered_[index(r.unit)].push_back({r, target});
  Use shard = buffers_.whole("parameters." + name, Access::read);
  if (p.parameters_offloaded) shard = emit_upload_shard(r.unit, number, whole);
  if (decoded && !p.encoded) {
    const Use values = shard;
    shard = buffers_.first_of(fmt::format("encoded.{}#{}", name, number), Category::gathered, frame_.comm_tier, part, Access::write);
    emit_encode(r.unit, number, shard, values);
    shard.access = Access::read;
  }
  if (p.copies.size > 1) {
    const SegmentPass& reader = passes_.at(events[index(r.first)]);
    const bool backward = reader.kind != PassKind::forward && !passes_.segment_of(reader).joint;
    const DType type = decoded ? DType::u32 : frame_.compute();
    const std::int64_t count = part / static_cast<std::int64_t>(size_of(type));
    emit({.name = fmt::format("gather {} ({})", name, backward ? "backward" : "forward"),
          .op = Collective{CollectiveKind::all_gather, p.copies.axes, count, count, type},
          .lane = Lane::gather,
          .uses = {buffers_.whole(whole, Access::write), shard},
          .bytes_moved = static_cast<double>(all - part)});
    shard = buffers_.whole(whole, Access::read);
  }
  if (decoded) {
    gathered_[index(r.unit)].back().blocks = shard;
    to_decode_[r.first].insert({r.unit, static_cast<int>(gathered_[index(r.unit)].size()) - 1});
  }
}

void SectionBuilder::emit_encode(int unit, int number, const Use& encoded, const Use& values) {
  const UnitPlan& p = frame_.plan(unit);
  const std::string task = "encode " + frame_.unit_at(unit).name;
  if (!p.is_coded()) {
    emit({.name = task, .op = Encode{p.parameters.size(), frame_.compute(), p.wire}, .uses = {encoded, values}});
    return;
  }
  const bool delayed = frame_.shape.fp8.delayed();
  const auto of_weights = [&](const char* buffer, Access access) { return fp8_of(buffer, Fp8Tensor::weight, Fp8Tensor::weight, access); };
  const Use multipliers = delayed ? of_weights("fp8_multipliers", Access::read) : emit_multipliers(unit, number, values);
  const Use largest = delayed && step_.keeps() ? of_weights("fp8_largest", Access::add) : buffers_.absent();
  emit({.name = task, .op = EncodeRuns{runs_of_part(unit)}, .lane = Lane::gather, .uses = {encoded, values, multipliers, largest}});
}

Use SectionBuilder::emit_multipliers(int unit, int number, const Use& values) {
  const UnitPlan& p = frame_.plan(unit);
  const std::string& name = frame_.unit_at(unit).name;
  const std::int64_t count = std::ssize(p.coded.matrices);
  const Use found =
      buffers_.first_of(fmt::format("multipliers.{}#{}", name, number), Category::gathered, frame_.comm_tier, 4 * count, Access::write);
  const Use joined{found.buffer, found.offset, found.bytes, Access::add};
  emit({.name = "magnitudes of " + name, .op = FindMagnitudes{count, runs_of_part(unit)}, .lane = Lane::gather, .uses = {found, values}});
  emit(
      {.name = "all-reduce magnitudes of " + name,
       .op =
           Collective{
               .kind = CollectiveKind::all_reduce, .axes = p.copies.axes, .count = count, .dtype = DType::f32, .reduction = Reduction::max},
       .lane = Lane::gather,
       .uses = {joined}});
  emit({.name = "scales of " + name, .op = ScaleMatrices{count}, .lane = Lane::gather, .uses = {joined}});
  const Use multipliers{found.buffer, found.offset, found.bytes, Access::read};
  gathered_[index(unit)].back().multipliers = multipliers;
  return multipliers;
}

std::vector<EncodeRuns::Run> SectionBuilder::runs_of_part(int unit) const {
  const UnitPlan& p = frame_.plan(unit);
  const Fp8Shape& fp8 = frame_.shape.fp8;
  std::vector<EncodeRuns::Run> runs;
  for (const CodedRun& coded : p.coded.parts[index(p.copies.rank)]) {
    EncodeRuns::Run& run = runs.emplace_back(coded.run);
    run.run.element -= p.parameters.begin;
    if (!coded.run.coded) continue;
    run.multiplier = fp8.delayed() ? fp8.number_of(p.coded.matrices[index(coded.matrix)]) : coded.matrix;
  }
  return runs;
}

void SectionBuilder::emit_decodes(int event) {
  const auto first_used = to_decode_.find(event);
  if (first_used == to_decode_.end()) return;
  for (const auto& [u, i] : first_used->second) {
    const Gathered& copy = gathered_[index(u)][index(i)];
    const UnitPlan& p = frame_.plan(u);
    Op op = Decode{frame_.unit_at(u).elements, frame_.compute(), p.wire};
    if (p.is_coded()) op = DecodeRuns{all_runs(p.coded)};
    emit({.name = "decode " + frame_.unit_at(u).name,
          .op = std::move(op),
          .uses = {buffers_.whole(copy.buffer, Access::write), *copy.blocks}});
  }
}

Use SectionBuilder::multiplier_use(const ValueInfo& v, int unit, int event) const {
  if (frame_.shape.fp8.delayed()) return fp8_of_weight("fp8_multipliers", v.name, Access::read);
  const CodedParts& coded = frame_.plan(unit).coded;
  const auto found = std::ranges::find(coded.matrices, v.name);
  if (found == coded.matrices.end()) return buffers_.absent();
  for (const Gathered& copy : gathered_[index(unit)])
    if (copy.live.first <= event && event <= copy.live.last)
      return {copy.multipliers->buffer, copy.multipliers->offset + 4 * (found - coded.matrices.begin()), 4, Access::read};
  fail(ExitCode::internal, "{} is not gathered where it is read", v.name);
}

Use SectionBuilder::weight_use(const TensorRef& tensor, int event) const {
  const auto size = static_cast<std::int64_t>(size_of(frame_.type_of(tensor.unit)));
  const std::int64_t offset = size * tensor.offset, bytes = size * tensor.elements;
  const std::string& unit = frame_.unit_at(tensor.unit).name;
  if (frame_.plan(tensor.unit).storage.parameters_whole) return {buffers_.named("parameters." + unit), offset, bytes, Access::read};
  for (const Gathered& copy : gathered_[index(tensor.unit)])
    if (copy.live.first <= event && event <= copy.live.last) return {copy.buffer, offset, bytes, Access::read};
  fail(ExitCode::internal, "{} is not gathered where it is read", unit);
}

}  // namespace tessera
