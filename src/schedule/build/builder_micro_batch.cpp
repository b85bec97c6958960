#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "schedule/build/schedule_builder.hpp"

namespace tessera {

/// Of what a step makes a second time.
constexpr const char* again = " (again)";

void ScheduleBuilder::add_pass(Events& events, const SegmentPass& pass) {
  for (SegmentPass& part : cut_at_exchanges(schedule_.segments[index(pass.segment)], pass)) {
    events.push_back(static_cast<int>(schedule_.passes.size()));
    schedule_.passes.push_back(std::move(part));
  }
}

ScheduleBuilder::Events ScheduleBuilder::training_passes() {
  Events events;
  std::set<int> begins;
  for (int s = 0; s < std::ssize(schedule_.segments); ++s)
    if (begins_chunk(s)) begins.insert(s);
  const RecomputeChoice* chosen = request_.choice();
  activations_ = plan_activations(schedule_.segments, chosen ? *chosen : recompute_of(schedule_.segments, deck_.activation), begins);
  const auto segment = [&](int s) -> const Segment& { return schedule_.segments[index(s)]; };
  const auto kept = [&](int s) -> const Kept& { return activations_.kept[index(s)]; };
  for (int s = 0; s < static_cast<int>(schedule_.segments.size()); ++s)
    if (!segment(s).joint) add_pass(events, forward_pass(segment(s), s, kept(s)));
  Events weights;
  for (auto span = activations_.spans.rbegin(); span != activations_.spans.rend(); ++span) {
    int lowest = span->first;  // of those with a backward pass: what is frozen below all that is trained has none
    while (lowest <= span->last && segment(lowest).backward.empty()) ++lowest;
    for (int s = span->first; s < span->last && lowest <= span->last; ++s) add_pass(events, again_pass(segment(s), s, kept(s)));
    for (int s = span->last; s >= lowest; --s)
      if (segment(s).backward.empty())
        continue;
      else if (parts_backward())
        add_parted(events, weights, s);
      else
        add_pass(events, backward_pass(segment(s), s, kept(s)));
  }
  note_waiting(weights);
  events.insert(events.end(), weights.begin(), weights.end());
  note_writers(events);
  return events;
}

ScheduleBuilder::Events ScheduleBuilder::forward_passes(std::size_t first) {
  Events events;
  for (std::size_t s = first; s < schedule_.segments.size(); ++s) {
    const Segment& segment = schedule_.segments[s];
    add_pass(events, forward_pass(segment, static_cast<int>(s), Kept(segment.values.size(), KeptBy::none)));
  }
  return events;
}

std::vector<int> ScheduleBuilder::gathered_units(const SegmentPass& p) const {
  std::vector<int> result;
  for (const Operand& o : p.operands) {
    if (value_of(p, o).kind != ValueKind::weight) continue;
    const int unit = layout_.find(value_of(p, o).name).unit;
    if (!plan(unit).storage.parameters_whole && std::find(result.begin(), result.end(), unit) == result.end()) result.push_back(unit);
  }
  return result;
}

std::vector<Residency> ScheduleBuilder::residencies(const Events& events) const {
  std::vector<std::vector<int>> used;
  for (const int e : events) used.push_back(gathered_units(pass(e)));
  std::vector<std::int64_t> elements;
  for (const Unit& unit : layout_.units) elements.push_back(unit.elements);
  const ZeroKeys& z = deck_.zero;
  return plan_residencies(used, elements, {z.prefetch_bucket_size, z.max_live_parameters, z.max_reuse_distance});
}

void ScheduleBuilder::emit_events(const Events& events, const PipelinePhase& turn) {
  const std::vector<Residency> live = residencies(events);
  const std::vector<std::vector<int>> done = gradients_done(events);
  const std::map<int, std::string> shared = gradients_shared(events);
  gathered_.assign(layout_.units.size(), {});
  plan_absences(events);
  std::size_t next = 0;
  for (int e = 0; e < static_cast<int>(events.size()); ++e) {
    for (; next < live.size() && live[next].issue <= e; ++next) {
      emit_owed_update(live[next].unit);
      emit_gather(live[next], static_cast<int>(next), events);
    }
    for (const Operand& o : pass(events[index(e)]).operands)
      if (const ValueInfo& v = value_of(pass(events[index(e)]), o); v.kind == ValueKind::weight)
        emit_owed_update(layout_.find(v.name).unit);
    emit_absences(e, false);
    emit_arrivals(events, e);
    emit_kept_gradient(events, e);
    emit_pass(events[index(e)], e, pass(events[index(e)]).kind == PassKind::weights ? turn.first_weights : turn.first);
    emit_departures(events, e);
    emit_absences(e, true);
    if (const auto tensor = shared.find(e); tensor != shared.end()) emit_shared_sum(tensor->second, turn.first);
    if (!done[index(e)].empty()) emit_meetings_put_off();
    for (int unit : done[index(e)]) {
      const Writers& by = writers_.at(unit);
      const bool first = by.weights ? turn.first_weights : turn.first, last = by.weights ? turn.last_weights : turn.last;
      emit_gradient_done(unit, first && turn.backward_chunk == by.first_chunk, last && turn.backward_chunk == by.last_chunk);
    }
  }
  for (int u = 0; u < units(); ++u) emit_owed_update(u);
  emit_meetings_put_off();
  emit_meetings_of_ends(false);
}

void ScheduleBuilder::emit_pass(int number, int event, bool first) {
  const SegmentPass& p = pass(number);
  if (const Exchange* exchange = exchange_of(schedule_.segments[index(p.segment)], p)) return emit_exchange(p, *exchange, event, first);
  Task task{.name = p.name, .op = RunPass{number, p.kind}, .lane = Lane::compute, .uses = {}, .flops = p.flops};
  for (const Operand& o : p.operands) task.uses.push_back(bind(o, p, event, first));
  const auto workspace = static_cast<std::int64_t>(p.workspace);
  task.uses.push_back(workspace == 0
                          ? absent()
                          : Use{buffer("workspace." + p.whole, Category::workspace, local_tier_, workspace), 0, workspace, Access::write});
  emit(std::move(task));
}

namespace {
Lane lane_of(Axis axis) { return axis == Axis::tp ? Lane::tensor : axis == Axis::cp ? Lane::context : Lane::experts; }
}  // namespace

void ScheduleBuilder::emit_exchange(const SegmentPass& p, const Exchange& exchange, int event, bool first) {
  const Use to = bind(p.operands[0], p, event, first), from = bind(p.operands[1], p, event, first);
  const Axes along = axes({exchange.axis});
  // A rank keeps its own part of what is gathered, reduced or exchanged, and sends all that rotates.
  const std::int64_t size = request_.mesh.size(exchange.axis), most = std::max(to.bytes, from.bytes);
  const std::int64_t moved = exchange.kind == CollectiveKind::rotate ? most : most / size * (size - 1);
  Task task{.name = p.name,
            .op = Collective{exchange.kind, along, exchange.count, 0, exchange.dtype, false, exchange.times},
            .lane = lane_of(exchange.axis),
            .uses = {to, from},
            .bytes_moved = static_cast<double>(moved)};
  if (exchange.kind == CollectiveKind::reduce_scatter) task.uses.push_back(absent());
  emit(std::move(task));
}

Tier ScheduleBuilder::tier_of(const ValueInfo& v) const {
  const bool stream = v.kind == ValueKind::stream_in || v.kind == ValueKind::stream_out || v.kind == ValueKind::d_stream;
  return v.exchanged || (stream && request_.mesh.size(Axis::tp) > 1) ? comm_tier_ : local_tier_;
}

Use ScheduleBuilder::activation_use(const std::string& name, const ValueInfo& v, Access access) {
  return {buffer(name, Category::activations, tier_of(v), v.bytes), 0, v.bytes, access};
}

std::string ScheduleBuilder::stream_name(const SegmentPass& p, int segment) const {
  if (p.kind != PassKind::forward && absences_.contains(segment)) return returned(segment);
  const bool made_again = p.kind != PassKind::forward && activations_.stream_dropped[index(segment)];
  return fmt::format("stream.{}{}", segment, made_again ? again : "");
}

Use ScheduleBuilder::stream_use(const SegmentPass& p, int stream, const ValueInfo& v, Access access) {
  if (pipelined() && v.kind == ValueKind::stream_in && begins_chunk(p.segment))
    return boundary(Boundary::incoming, chunk_of(p.segment), access, shift_of(p));
  const auto ends_chunk = [&] { return p.segment + 1 == std::ssize(chunks_) || begins_chunk(p.segment + 1); };
  if (pipelined() && v.kind == ValueKind::stream_out && ends_chunk()) return boundary(Boundary::outgoing, chunk_of(p.segment), access, 0);
  const bool kept = !flights_.empty() && !activations_.stream_dropped[index(stream)];
  return kept ? kept_use(stream_name(p, stream), v, p, access) : activation_use(stream_name(p, stream), v, access);
}

std::string ScheduleBuilder::made_again_name(const SegmentPass& p, const ValueInfo& v) const {
  return fmt::format("{}.{}{}", schedule_.segments[index(p.segment)].name, v.name, again);
}

Use ScheduleBuilder::activation_of(const Operand& o, const SegmentPass& p, const ValueInfo& v) {
  const std::string name = fmt::format("{}.{}", schedule_.segments[index(p.segment)].name, v.name);
  switch (o.kept_by) {
    case KeptBy::forward:
      return kept_use(name, v, p, o.access);
    case KeptBy::backward:
      return waiting_use(name, v, p, o.access);
    case KeptBy::again:
      return waits_.contains(made_again_name(p, v)) ? waiting_use(made_again_name(p, v), v, p, o.access)
                                                    : activation_use(made_again_name(p, v), v, o.access);
    case KeptBy::none:
      return activation_use(fmt::format("scratch.{}.{}", p.whole, v.name), v, o.access);
  }
  return {};
}

Use ScheduleBuilder::bind(const Operand& o, const SegmentPass& p, int event, bool first) {
  const Segment& segment = schedule_.segments[index(p.segment)];
  const ValueInfo& v = segment.at(o.value);
  switch (v.kind) {
    case ValueKind::stream_in:
      return stream_use(p, p.segment - 1, v, o.access);
    case ValueKind::stream_out:
      return stream_use(p, p.segment, v, o.access);
    case ValueKind::d_stream:
      if (p.kind == PassKind::weights) return waiting_use("d_stream." + segment.name, v, p, o.access);
      return pipelined() ? boundary(Boundary::gradient, chunk_of(p.segment), o.access, 0) : activation_use("d_stream", v, o.access);
    case ValueKind::activation:
      return activation_of(o, p, v);
    case ValueKind::weight:
      return weight_use(v.name, event);
    case ValueKind::packed_weight:
      return keeps_packed(v) ? whole(named(packed_name(v)), Access::read) : absent();
    case ValueKind::weight_gradient:
      return tensor_gradient_use(v.name, p, first);
    case ValueKind::rope_table:
      return whole(named("rope"), Access::read);
    case ValueKind::tokens:
      return slot("tokens", p);
    case ValueKind::targets:
      return slot("targets", p);
    case ValueKind::token_groups:
      return slot("token_groups", p);
    case ValueKind::document_starts:
      return slot("document_starts", p);
    case ValueKind::micro_batch_weight:
      return slot("weights", p);
    case ValueKind::scalars:
      return whole(named("scalars"), Access::add);
    case ValueKind::group_losses:
      return whole(named("group_losses"), Access::add);
    case ValueKind::router_totals:
      return whole(named("router"), Access::add);
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

void ScheduleBuilder::emit_gather(const Residency& r, int number, const Events& events) {
  const std::int64_t P = unit_at(r.unit).elements, S = plan(r.unit).parameters.size();
  const int target = buffer(fmt::format("gathered.{}#{}", unit_at(r.unit).name, number), Category::gathered, comm_tier_, compute_bytes(P));
  gathered_[index(r.unit)].push_back({r, target});
  Use shard = whole(named("parameters." + unit_at(r.unit).name), Access::read);
  if (plan(r.unit).parameters_offloaded) shard = emit_upload_shard(r.unit, number, target);
  if (shard.buffer == target) return;
  const SegmentPass& reader = pass(events[index(r.first)]);
  const bool backward = reader.kind != PassKind::forward && !schedule_.segments[index(reader.segment)].joint;
  emit({.name = fmt::format("gather {} ({})", unit_at(r.unit).name, backward ? "backward" : "forward"),
        .op = Collective{CollectiveKind::all_gather, plan(r.unit).copies.axes, S, S, compute()},
        .lane = Lane::gather,
        .uses = {whole(target, Access::write), shard},
        .bytes_moved = static_cast<double>(compute_bytes(P - S))});
}

Use ScheduleBuilder::weight_use(const std::string& tensor, int event) const {
  const TensorRef ref = layout_.find(tensor);
  const std::int64_t offset = parameter_bytes(ref.unit, ref.offset), bytes = parameter_bytes(ref.unit, ref.elements);
  if (plan(ref.unit).storage.parameters_whole) return {named("parameters." + unit_at(ref.unit).name), offset, bytes, Access::read};
  for (const Gathered& copy : gathered_[index(ref.unit)])
    if (copy.live.first <= event && event <= copy.live.last) return {copy.buffer, offset, bytes, Access::read};
  fail(ExitCode::internal, "{} is not gathered where it is read", tensor);
}

}  // namespace tessera
