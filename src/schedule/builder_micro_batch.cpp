#include <fmt/format.h>

#include <algorithm>

#include "kernels/fixed/fixed.hpp"
#include "schedule/micro_batches.hpp"
#include "schedule/schedule_builder.hpp"
#include "topology/communicator.hpp"

namespace tessera {

std::vector<ScheduleBuilder::Event> ScheduleBuilder::micro_batch_events() const {
  std::vector<Event> events;
  const int n = static_cast<int>(schedule_.segments.size());
  for (int s = 0; s + 1 < n; ++s) events.push_back({s, false});
  for (int s = n - 1; s >= 0; --s) events.push_back({s, true});
  return events;
}

const SegmentPass& ScheduleBuilder::pass(const Event& e) const {
  const Segment& s = schedule_.segments[index(e.segment)];
  return e.backward ? s.backward : s.forward;
}

std::vector<int> ScheduleBuilder::gathered_units(const Event& e) const {
  std::vector<int> result;
  for (const Operand& o : pass(e).operands) {
    if (o.kind != OperandKind::weight) continue;
    const int unit = layout_.find(o.name).unit;
    if (!storage(unit).parameters_whole && std::find(result.begin(), result.end(), unit) == result.end()) result.push_back(unit);
  }
  return result;
}

std::vector<Residency> ScheduleBuilder::residencies(const std::vector<Event>& events) const {
  std::vector<std::vector<int>> used;
  for (const Event& e : events) used.push_back(gathered_units(e));
  std::vector<std::int64_t> elements;
  for (const Unit& unit : layout_.units) elements.push_back(unit.elements);
  const ZeroKeys& z = deck_.zero;
  return plan_residencies(used, elements, {z.prefetch_bucket_size, z.max_live_parameters, z.max_reuse_distance});
}

void ScheduleBuilder::emit_events(const std::vector<Event>& events, bool first, bool last) {
  const std::vector<Residency> live = residencies(events);
  const std::vector<std::vector<int>> done = gradients_done(events);
  gathered_.assign(layout_.units.size(), {});
  std::size_t next = 0;
  for (int e = 0; e < static_cast<int>(events.size()); ++e) {
    for (; next < live.size() && live[next].issue <= e; ++next) emit_gather(live[next], static_cast<int>(next), events);
    emit_segment(events[index(e)], e, first);
    if (schedule_.segments[index(events[index(e)].segment)].name == "head") emit_loss();
    for (int unit : done[index(e)]) emit_gradient_done(unit, first, last);
  }
}

void ScheduleBuilder::emit_segment(const Event& e, int event, bool first) {
  const Segment& segment = schedule_.segments[index(e.segment)];
  const bool loss = segment.name == "head";
  Task task{.name = fmt::format("{} {}",
                                loss         ? (e.backward ? "loss and gradient" : "loss")
                                : e.backward ? "backward"
                                             : "forward",
                                segment.name),
            .op = RunSegment{e.segment, e.backward},
            .lane = Lane::compute,
            .uses = {},
            .flops = pass(e).flops};
  for (const Operand& o : pass(e).operands) task.uses.push_back(bind(o, e, event, first));
  emit(std::move(task));
}

Use ScheduleBuilder::bind(const Operand& o, const Event& e, int event, bool first) {
  const Segment& segment = schedule_.segments[index(e.segment)];
  const std::int64_t micro_bytes = 4 * schedule_.shape.tokens();
  switch (o.kind) {
    case OperandKind::stream_in:
    case OperandKind::stream_out:
      return {buffer(fmt::format("stream.{}", o.kind == OperandKind::stream_out ? e.segment : e.segment - 1), Category::activations,
                     local_tier_, o.bytes, false),
              0, o.bytes, o.access, 0};
    case OperandKind::d_stream:
      return {buffer("d_stream", Category::activations, local_tier_, o.bytes, false), 0, o.bytes, o.access, 0};
    case OperandKind::saved:
      return {buffer(segment.name + "." + o.name, Category::activations, local_tier_, o.bytes, false), 0, o.bytes, o.access, 0};
    case OperandKind::scratch:
      return {buffer(fmt::format("scratch.{}.{}.{}", segment.name, e.backward ? "backward" : "forward", o.name), Category::activations,
                     local_tier_, o.bytes, false),
              0, o.bytes, o.access, 0};
    case OperandKind::workspace:
      if (o.bytes == 0) return absent();
      return {buffer(fmt::format("workspace.{}.{}", segment.name, e.backward ? "backward" : "forward"), Category::workspace, local_tier_,
                     o.bytes, false),
              0, o.bytes, o.access, 0};
    case OperandKind::weight:
      return weight_use(o.name, event);
    case OperandKind::packed_weight:
      return keeps_packed(o) ? whole(named(packed_name(o)), Access::read) : absent();
    case OperandKind::weight_gradient:
      return gradient_use(o.name, first);
    case OperandKind::rope_table:
      return whole(named("rope"), Access::read);
    case OperandKind::tokens:
      return {named("tokens"), 0, micro_bytes, Access::read, micro_bytes};
    case OperandKind::targets:
      return {named("targets"), 0, micro_bytes, Access::read, micro_bytes};
    case OperandKind::losses:
      return {buffer("losses", Category::activations, local_tier_, o.bytes, false), 0, o.bytes, o.access, 0};
  }
  return {};
}

void ScheduleBuilder::emit_loss() {
  emit({.name = "add loss",
        .op = AddLoss{},
        .uses = {whole(named("losses"), Access::read), {named("weights"), 0, 8, Access::read, 8}, whole(named("scalars"), Access::add)}});
}

void ScheduleBuilder::emit_gather(const Residency& r, int number, const std::vector<Event>& events) {
  const std::int64_t P = unit_at(r.unit).elements, S = shard(r.unit);
  const int target =
      buffer(fmt::format("gathered.{}#{}", unit_at(r.unit).name, number), Category::gathered, comm_tier_, compute_bytes(P), false);
  gathered_[index(r.unit)].push_back({r, target});
  const char* phase =
      events[index(r.first)].backward && schedule_.segments[index(events[index(r.first)].segment)].name != "head" ? "backward" : "forward";
  emit({.name = fmt::format("gather {} ({})", unit_at(r.unit).name, phase),
        .op = Gather{S, S, compute()},
        .lane = Lane::gather,
        .uses = {whole(target, Access::write), whole(named("parameters." + unit_at(r.unit).name), Access::read)},
        .bytes_moved = static_cast<double>(compute_bytes(P - S))});
}

Use ScheduleBuilder::weight_use(const std::string& tensor, int event) const {
  const TensorRef ref = layout_.find(tensor);
  const std::int64_t offset = compute_bytes(ref.offset), bytes = compute_bytes(ref.elements);
  if (storage(ref.unit).parameters_whole) return {named("parameters." + unit_at(ref.unit).name), offset, bytes, Access::read, 0};
  for (const Gathered& copy : gathered_[index(ref.unit)])
    if (copy.live.first <= event && event <= copy.live.last) return {copy.buffer, offset, bytes, Access::read, 0};
  fail(ExitCode::internal, "{} is not gathered where it is read", tensor);
}

int ScheduleBuilder::gradient_buffer(int unit) {
  const std::string& name = unit_at(unit).name;
  if (gradient_direct(unit)) return named("gradients." + name);
  const Tier tier = fixed_ ? local_tier_ : comm_tier_;
  return buffer("micro_gradients." + name, Category::gradients, tier, 4 * unit_at(unit).elements, false);
}

Use ScheduleBuilder::gradient_use(const std::string& tensor, bool first) {
  const TensorRef ref = layout_.find(tensor);
  const int target = gradient_buffer(ref.unit);
  // The first touch of a unit's own micro-batch buffer clears the gaps between its tensors, which would otherwise hold what lay there
  // before.
  if (!gradient_direct(ref.unit) && touched_units_.insert(ref.unit).second) emit_zero_padding(ref.unit, target);
  const bool starts = touched_.insert(tensor).second && (first || !gradient_direct(ref.unit));
  return {target, 4 * ref.offset, 4 * ref.elements, starts ? Access::write : Access::add, 0};
}

void ScheduleBuilder::emit_zero_padding(int unit, int target) {
  std::vector<Use> gaps;
  for (const Range& gap : padding_of(unit_at(unit))) gaps.push_back({target, 4 * gap.begin, 4 * gap.size(), Access::write, 0});
  if (!gaps.empty()) emit({.name = fmt::format("clear padding {}", unit_at(unit).name), .op = Zero{}, .uses = gaps});
}

std::vector<std::vector<int>> ScheduleBuilder::gradients_done(const std::vector<Event>& events) const {
  std::map<int, int> last;  // event by unit
  for (int e = 0; e < static_cast<int>(events.size()); ++e)
    for (const Operand& o : pass(events[index(e)]).operands)
      if (o.kind == OperandKind::weight_gradient) last[layout_.find(o.name).unit] = e;
  std::vector<std::vector<int>> done(events.size());
  for (auto [unit, event] : last) done[index(event)].push_back(unit);
  return done;
}

void ScheduleBuilder::emit_gradient_done(int unit, bool first, bool last) {
  const std::string& name = unit_at(unit).name;
  const UnitStorage st = storage(unit);
  const std::int64_t P = unit_at(unit).elements, S = shard(unit);
  const int sum = named("gradients." + name);
  touched_units_.erase(unit);
  int source = gradient_buffer(unit);
  if (fixed_) {
    int target = sum;
    if (!st.gradients_whole) target = buffer("fixed_gradients." + name, Category::gradients, comm_tier_, 8 * P, false);
    if (!st.gradients_whole || first) emit({.name = "clear sums " + name, .op = Zero{}, .uses = {whole(target, Access::write)}});
    emit({.name = "accumulate " + name,
          .op = AccumulateFixed{P, fixed_limit_for(st)},
          .uses = {whole(target, Access::add), whole(source, Access::read), whole(named("scalars"), Access::add)}});
    source = target;
  }
  if (request_.ranks == 1) return;
  if (!st.gradients_whole) {
    emit_reduce(unit, sum, 0, source, !first);
  } else if (last && st.optimizer_whole) {
    for (const Range& cut : cut_shard(P, 1, deck_.zero.reduce_bucket_size))
      emit({.name = "all-reduce " + name,
            .op = AllReduce{cut.size(), gradient_type()},
            .lane = Lane::reduce,
            .uses = {{sum, gradient_bytes(cut.begin), gradient_bytes(cut.size()), Access::add, 0}},
            .bytes_moved = 2.0 * static_cast<double>(gradient_bytes(cut.size())) * (request_.ranks - 1) / request_.ranks});
  } else if (last) {
    emit_reduce(unit, sum, gradient_bytes(request_.rank * S), sum, false);
  }
}

std::int64_t ScheduleBuilder::fixed_limit_for(const UnitStorage& st) const {
  return kernels::fixed_limit / (st.gradients_whole ? request_.ranks : request_.ranks * accumulation_steps(deck_, request_.ranks));
}

void ScheduleBuilder::emit_reduce(int unit, int target, std::int64_t target_offset, int source, bool accumulate) {
  const std::int64_t S = shard(unit);
  for (const Range& cut : cut_shard(S, request_.ranks, deck_.zero.reduce_bucket_size)) {
    // Reads a piece of every rank's block: the whole buffer from the first piece to the last one.
    const Use read{source, gradient_bytes(cut.begin), gradient_bytes((request_.ranks - 1) * S + cut.size()), Access::read, 0};
    emit({.name = "reduce " + unit_at(unit).name,
          .op = Reduce{cut.size(), S, gradient_type(), accumulate},
          .lane = Lane::reduce,
          .uses = {{target, target_offset + gradient_bytes(cut.begin), gradient_bytes(cut.size()), accumulate ? Access::add : Access::write,
                    0},
                   read,
                   reduce_workspace(cut.size(), accumulate)},
          .bytes_moved = static_cast<double>(gradient_bytes(cut.size())) * (request_.ranks - 1)});
  }
}

Use ScheduleBuilder::reduce_workspace(std::int64_t count, bool accumulate) {
  const std::int64_t bytes = reduce_scatter_workspace_bytes(schedule_.shape.backend, count, gradient_type(), accumulate);
  if (bytes == 0) return absent();
  return {buffer("workspace.reduce", Category::workspace, local_tier_, bytes, false), 0, bytes, Access::write, 0};
}

}  // namespace tessera
