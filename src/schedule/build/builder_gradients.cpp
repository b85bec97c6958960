// Gradients of a micro-batch: where kernels write them, how they join the step's sums, and when they meet those of other ranks.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "kernels/fixed/fixed.hpp"
#include "schedule/build/micro_batches.hpp"
#include "schedule/build/schedule_builder.hpp"
#include "topology/communicators/communicator.hpp"

namespace tessera {

int ScheduleBuilder::gradient_buffer(int unit) {
  const std::string& name = unit_at(unit).name;
  const GradientPath& path = plan(unit).gradient;
  if (path.direct) return named("gradients." + name);
  const bool summed_here = path.sum == DType::f32;
  const Tier tier = summed_here ? comm_tier_ : local_tier_;
  return buffer("micro_gradients." + name, Category::gradients, tier, 4 * unit_at(unit).elements);
}

Use ScheduleBuilder::tensor_gradient_use(const std::string& tensor, const SegmentPass& p, bool first) {
  const TensorRef ref = layout_.find(tensor);
  const Writers& writers = writers_.at(ref.unit);
  if (writers.weights && p.kind == PassKind::backward && !plan(ref.unit).gradient.direct) {
    waiting_gradients_[ref.unit].insert(tensor);
    return waiting_gradient_use(tensor, touched_.insert(tensor).second ? Access::write : Access::add, 0);
  }
  const int target = gradient_buffer(ref.unit);
  const bool direct = plan(ref.unit).gradient.direct;
  // The first touch of a unit's own micro-batch buffer clears the gaps between its tensors, which would otherwise hold what lay there
  // before.
  if (!direct && touched_units_.insert(ref.unit).second) {
    if (writers.first_chunk == writers.last_chunk)
      emit_zero_padding(ref.unit, target);
    else  // tensors of other chunks are not written now
      emit({.name = "clear " + unit_at(ref.unit).name, .op = Zero{}, .uses = {whole(target, Access::write)}});
  }
  const bool starts = touched_.insert(tensor).second && (first || !direct);
  return {target, 4 * ref.offset, 4 * ref.elements, starts ? Access::write : Access::add};
}

void ScheduleBuilder::emit_zero_padding(int unit, int target) {
  std::vector<Use> gaps;
  for (const Range& gap : padding_of(unit_at(unit))) gaps.push_back({target, 4 * gap.begin, 4 * gap.size(), Access::write});
  if (!gaps.empty()) emit({.name = fmt::format("clear padding {}", unit_at(unit).name), .op = Zero{}, .uses = gaps});
}

std::vector<std::vector<int>> ScheduleBuilder::gradients_done(const Events& events) const {
  std::map<int, int> last;  // event by unit
  for (int e = 0; e < static_cast<int>(events.size()); ++e)
    for (const SegmentPass& p = pass(events[index(e)]); const Operand& o : p.operands)
      if (value_of(p, o).kind == ValueKind::weight_gradient) {
        const int unit = layout_.find(value_of(p, o).name).unit;
        if (p.kind == PassKind::weights || !writers_.at(unit).weights) last[unit] = e;
      }
  std::vector<std::vector<int>> done(events.size());
  for (auto [unit, event] : last) done[index(event)].push_back(unit);
  return done;
}

std::map<int, std::string> ScheduleBuilder::gradients_shared(const Events& events) const {
  struct Writer {
    int segment = 0, last = 0;
  };
  std::map<std::string, Writer> writers;
  std::map<int, std::string> shared;
  for (int e = 0; e < static_cast<int>(events.size()); ++e)
    for (const SegmentPass& p = pass(events[index(e)]); const Operand& o : p.operands) {
      const ValueInfo& v = value_of(p, o);
      if (v.kind != ValueKind::weight_gradient || plan(layout_.find(v.name).unit).gradient.sum != DType::i64) continue;
      const auto [known, fresh] = writers.try_emplace(v.name, Writer{p.segment, e});
      if (!fresh && known->second.segment != p.segment) shared[known->second.last] = v.name;
      known->second = {p.segment, e};
    }
  return shared;
}

void ScheduleBuilder::emit_gradient_done(int unit, bool first, bool last) {
  const UnitPlan& p = plan(unit);
  touched_units_.erase(unit);
  emit_joined_gradients(unit);
  const int whole = emit_sum(unit, gradient_buffer(unit), first);
  if (unit_at(unit).owners & pipeline_ends) return at_end_.push_back({unit, whole, first, last});
  const bool passes_by = schedule_.buffers[index(whole)].life == Life::section;
  const bool leaves = p.gradient.meeting == GradientPath::Meeting::every_micro_batch || p.gradient.offloaded;
  if (overlaps() && passes_by && leaves)
    put_off_.push_back({unit, whole, first, last});
  else
    emit_meeting(unit, whole, first, last);
}

bool ScheduleBuilder::overlaps() const {
  const OverlapComm overlap = deck_.zero.overlap_comm;
  const RunLanes lanes = deck_.run.lanes;
  if (overlap == OverlapComm::no || lanes == RunLanes::inline_order) return false;
  // Lanes of a host run in the order of the list unless ranks have threads to spare, which schedules do not know.
  return on_gpu() || overlap == OverlapComm::yes || lanes == RunLanes::threads;
}

void ScheduleBuilder::emit_meetings_put_off() {
  for (const auto& [unit, whole, first, last] : std::exchange(put_off_, {})) emit_meeting(unit, whole, first, last);
}

void ScheduleBuilder::emit_meeting(int unit, int whole, bool first, bool last) {
  const UnitPlan& p = plan(unit);
  const Range mine = p.gradient.scattered ? p.owned : p.gradient.held;
  using enum GradientPath::Meeting;
  const bool meets = p.gradient.meeting == every_micro_batch || (p.gradient.meeting == once && last);
  const bool accumulate = p.gradient.meeting == every_micro_batch && !first && !p.gradient.offloaded;
  Use met = where_sums_meet(unit, whole, mine, meets, accumulate ? Access::add : Access::write);
  if (meets && p.gradient.scattered)
    emit_reduce_scatter(unit, whole, met, accumulate);
  else if (meets)
    emit_all_reduce(unit, whole);
  if (p.gradient.replicas > 1 && last) emit_meeting_of_replicas(unit, met);
  met.access = Access::read;
  if (p.gradient.kept != p.gradient.sum) {
    const Use kept = kept_use(unit, mine, Access::write);
    emit_rounding(unit, kept, met, p.gradient.sum);
    met = {kept.buffer, kept.offset, kept.bytes, Access::read};
  }
  if (p.gradient.offloaded && (last || !p.storage.gradients_whole)) emit_gradient_down(unit, met, first || p.storage.gradients_whole, last);
}

Use ScheduleBuilder::where_sums_meet(int unit, int whole, const Range& mine, bool meets, Access access) {
  const UnitPlan& p = plan(unit);
  const bool rounded = p.gradient.kept != p.gradient.sum;
  if (!rounded && (meets || !p.gradient.offloaded)) return kept_use(unit, mine, access);
  const std::int64_t bytes = sum_bytes(unit, mine.size());
  if (!meets || p.storage.gradients_whole) return {whole, sum_bytes(unit, mine.begin), bytes, access};
  return {buffer("reduced_gradients." + unit_at(unit).name, Category::gradients, local_tier_, bytes), 0, bytes, access};
}

Use ScheduleBuilder::kept_use(int unit, const Range& elements, Access access) {
  const UnitPlan& p = plan(unit);
  const std::int64_t bytes = gradient_bytes(unit, elements.size());
  if (p.gradient.offloaded && !p.storage.gradients_whole)  // on its way down
    return {buffer("passing_gradients." + unit_at(unit).name, Category::gradients, local_tier_, bytes), 0, bytes, access};
  return {named("gradients." + unit_at(unit).name), gradient_bytes(unit, elements.begin - p.gradient.held.begin), bytes, access};
}

int ScheduleBuilder::sum_buffer(int unit) {
  const std::string& name = unit_at(unit).name;
  const UnitPlan& p = plan(unit);
  if (p.storage.gradients_whole && p.gradient.kept == p.gradient.sum) return named("gradients." + name);
  const bool fixed = p.gradient.sum == DType::i64;
  const char* kind = fixed ? "fixed" : "rounded";
  return buffer(fmt::format("{}_gradients.{}", kind, name), Category::gradients, comm_tier_, sum_bytes(unit, unit_at(unit).elements));
}

int ScheduleBuilder::emit_sum(int unit, int micro, bool first) {
  const UnitPlan& p = plan(unit);
  if (p.gradient.sum == DType::f32) return micro;
  const int sum = sum_buffer(unit);
  if (p.gradient.sum == DType::bf16)
    emit_rounding(unit, whole(sum, Access::write), whole(micro, Access::read), DType::f32);
  else
    emit_accumulate(unit, {0, unit_at(unit).elements}, first);
  return sum;
}

void ScheduleBuilder::emit_shared_sum(const std::string& tensor, bool first) {
  const TensorRef ref = layout_.find(tensor);
  emit_accumulate(ref.unit, {ref.offset, ref.offset + ref.elements}, first);
  summed_.insert(ref.unit);
  touched_.erase(tensor);  // the other segment's gradient takes its place
}

void ScheduleBuilder::emit_accumulate(int unit, const Range& elements, bool first) {
  const std::string& name = unit_at(unit).name;
  const int sum = sum_buffer(unit);
  const bool stays = schedule_.buffers[index(sum)].life == Life::run;
  if (summed_.erase(unit) == 0 && (!stays || first))
    emit({.name = "clear sums " + name, .op = Zero{}, .uses = {whole(sum, Access::write)}});
  emit({.name = "accumulate " + name,
        .op = AccumulateFixed{elements.size(), fixed_limit_of(unit)},
        .uses = {{sum, sum_bytes(unit, elements.begin), sum_bytes(unit, elements.size()), Access::add},
                 {gradient_buffer(unit), 4 * elements.begin, 4 * elements.size(), Access::read},
                 whole(named("scalars"), Access::add)}});
}

void ScheduleBuilder::emit_rounding(int unit, const Use& to, const Use& from, DType type) {
  emit({.name = "round " + unit_at(unit).name,
        .op = RoundToBf16{to.bytes / static_cast<std::int64_t>(size_of(DType::bf16)), type},
        .uses = {to, from}});
}

std::int64_t ScheduleBuilder::fixed_limit_of(int unit) const {
  const UnitPlan& p = plan(unit);
  const bool each = p.gradient.meeting == GradientPath::Meeting::every_micro_batch || (p.gradient.offloaded && !p.storage.gradients_whole);
  const Writers& by = writers_.at(unit);
  const std::int64_t sums = accumulation_steps(deck_, request_.data.size) * (by.first_chunk - by.last_chunk + 1);
  return kernels::fixed_limit / (p.owners.size * p.gradient.replicas * (each ? sums : 1));
}

void ScheduleBuilder::emit_all_reduce(int unit, int whole) {
  const Group& owners = plan(unit).owners;
  for (const Range& cut : cut_shard(unit_at(unit).elements, 1, deck_.zero.reduce_bucket_size)) {
    const std::int64_t bytes = sum_bytes(unit, cut.size());
    emit({.name = "all-reduce " + unit_at(unit).name,
          .op = Collective{CollectiveKind::all_reduce, owners.axes, cut.size(), 0, plan(unit).gradient.sum},
          .lane = Lane::reduce,
          .uses = {{whole, sum_bytes(unit, cut.begin), bytes, Access::add}},
          .bytes_moved = 2.0 * static_cast<double>(bytes) * (owners.size - 1) / owners.size});
  }
}

void ScheduleBuilder::emit_meeting_of_replicas(int unit, const Use& sums) {
  const std::int64_t element = sum_bytes(unit, 1), n = plan(unit).gradient.replicas;
  for (const Range& cut : cut_shard(sums.bytes / element, 1, deck_.zero.reduce_bucket_size))
    emit({.name = "all-reduce " + unit_at(unit).name + " over replicas",
          .op = Collective{CollectiveKind::all_reduce, axes({Axis::replicate}), cut.size(), 0, plan(unit).gradient.sum},
          .lane = Lane::reduce,
          .uses = {{sums.buffer, sums.offset + cut.begin * element, cut.size() * element, Access::add}},
          .bytes_moved = 2.0 * static_cast<double>(cut.size() * element) * static_cast<double>(n - 1) / static_cast<double>(n)});
}

void ScheduleBuilder::emit_reduce_scatter(int unit, int whole, const Use& to, bool accumulate) {
  const UnitPlan& p = plan(unit);
  const std::int64_t S = p.shard;
  for (const Range& cut : cut_shard(S, p.owners.size, deck_.zero.reduce_bucket_size)) {
    // Reads a piece of every rank's block: the whole buffer from the first piece to the last one.
    const Use read{whole, sum_bytes(unit, cut.begin), sum_bytes(unit, (p.owners.size - 1) * S + cut.size()), Access::read};
    const Use mine{to.buffer, to.offset + sum_bytes(unit, cut.begin), sum_bytes(unit, cut.size()), to.access};
    emit({.name = "reduce " + unit_at(unit).name,
          .op = Collective{CollectiveKind::reduce_scatter, p.owners.axes, cut.size(), S, p.gradient.sum, accumulate},
          .lane = Lane::reduce,
          .uses = {mine, read, reduce_workspace(unit, cut.size(), accumulate)},
          .bytes_moved = static_cast<double>(sum_bytes(unit, cut.size())) * (p.owners.size - 1)});
  }
}

Use ScheduleBuilder::reduce_workspace(int unit, std::int64_t count, bool accumulate) {
  const std::int64_t bytes = reduce_scatter_workspace_bytes(schedule_.shape.backend, count, plan(unit).gradient.sum, accumulate);
  if (bytes == 0) return absent();
  return {buffer("workspace.reduce", Category::workspace, local_tier_, bytes), 0, bytes, Access::write};
}

}  // namespace tessera
