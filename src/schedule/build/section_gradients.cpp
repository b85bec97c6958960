// Gradients of a micro-batch: where kernels write them, how they join the step's sums, and when they meet those of other ranks.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "kernels/fixed/fixed.hpp"
#include "schedule/build/micro_batches.hpp"
#include "schedule/build/section_builder.hpp"
#include "topology/communicators/communicator.hpp"

namespace tessera {

int SectionBuilder::gradient_buffer(int unit) {
  const std::string& name = frame_.unit_at(unit).name;
  const GradientPath& path = frame_.plan(unit).gradient;
  if (path.direct) return buffers_.named("gradients." + name);
  const bool meets_itself = path.sum == DType::f32;
  const Tier tier = meets_itself ? frame_.comm_tier : frame_.local_tier;
  return buffers_.declare("micro_gradients." + name, Category::gradients, tier, 4 * frame_.unit_at(unit).elements);
}

Use SectionBuilder::tensor_gradient_use(const std::string& name, const TensorRef& ref, const SegmentPass& p, bool first) {
  const StepPasses::Writers& writers = step_.writers(ref.unit);
  if (writers.weights && p.kind == PassKind::backward && !frame_.plan(ref.unit).gradient.direct) {
    step_.waiting_gradients[ref.unit].insert_or_assign(name, ref);
    return waiting_gradient_use(name, ref, touched_.insert(name).second ? Access::write : Access::add, 0);
  }
  const int target = gradient_buffer(ref.unit);
  const bool direct = frame_.plan(ref.unit).gradient.direct;
  // The first touch of a unit's own micro-batch buffer clears the gaps between its tensors, which would otherwise hold what lay there
  // before.
  if (!direct && touched_units_.insert(ref.unit).second) {
    if (writers.first_chunk == writers.last_chunk)
      emit_zero_padding(ref.unit, target);
    else  // tensors of other chunks are not written now
      emit({.name = "clear " + frame_.unit_at(ref.unit).name, .op = Zero{}, .uses = {buffers_.whole(target, Access::write)}});
  }
  const bool starts = touched_.insert(name).second && (first || !direct);
  return {target, 4 * ref.offset, 4 * ref.elements, starts ? Access::write : Access::add};
}

void SectionBuilder::emit_zero_padding(int unit, int target) {
  std::vector<Use> gaps;
  for (const Range& gap : padding_of(frame_.unit_at(unit))) gaps.push_back({target, 4 * gap.begin, 4 * gap.size(), Access::write});
  if (!gaps.empty()) emit({.name = fmt::format("clear padding {}", frame_.unit_at(unit).name), .op = Zero{}, .uses = gaps});
}

std::vector<std::vector<int>> SectionBuilder::gradients_done(const Events& events) const {
  std::map<int, int> last;  // event by unit
  for (int e = 0; e < static_cast<int>(events.size()); ++e)
    for (const SegmentPass& p = passes_.at(events[index(e)]); const Operand& o : p.operands)
      if (passes_.value(p, o).kind == ValueKind::weight_gradient) {
        const int unit = passes_.tensor(p, o).unit;
        if (p.kind == PassKind::weights || !step_.writers(unit).weights) last[unit] = e;
      }
  std::vector<std::vector<int>> done(events.size());
  for (auto [unit, event] : last) done[index(event)].push_back(unit);
  return done;
}

std::map<int, SectionBuilder::Shared> SectionBuilder::gradients_shared(const Events& events) const {
  struct Writer {
    SegmentNumber segment;
    int last = 0;
  };
  std::map<std::string, Writer> writers;
  std::map<int, Shared> shared;
  for (int e = 0; e < static_cast<int>(events.size()); ++e)
    for (const SegmentPass& p = passes_.at(events[index(e)]); const Operand& o : p.operands) {
      const ValueInfo& v = passes_.value(p, o);
      if (v.kind != ValueKind::weight_gradient || frame_.plan(passes_.tensor(p, o).unit).gradient.sum != DType::i64) continue;
      const auto [known, fresh] = writers.try_emplace(v.name, Writer{p.segment, e});
      if (!fresh && known->second.segment != p.segment) shared[known->second.last] = {v.name, passes_.tensor(p, o)};
      known->second = {p.segment, e};
    }
  return shared;
}

void SectionBuilder::emit_gradient_done(int unit, bool first, bool last) {
  const UnitPlan& p = frame_.plan(unit);
  touched_units_.erase(unit);
  emit_joined_gradients(unit);
  const Meeting meeting{unit, emit_sum(unit, gradient_buffer(unit), first), first, last};
  if (frame_.unit_at(unit).owners & pipeline_ends) return step_.at_end.push_back(meeting);
  const bool passes_by = buffers_[meeting.whole].life == Life::section;
  const bool leaves = p.gradient.meeting == GradientPath::Meeting::every_micro_batch || p.gradient.offloaded;
  if (frame_.overlaps() && passes_by && leaves)
    put_off_.push_back(meeting);
  else
    emit_meeting(meeting);
}

void SectionBuilder::emit_meetings_put_off() {
  for (const Meeting& meeting : std::exchange(put_off_, {})) emit_meeting(meeting);
}

void SectionBuilder::emit_meeting(const Meeting& meeting) {
  const auto [unit, whole, first, last] = meeting;
  const UnitPlan& p = frame_.plan(unit);
  const Range mine = p.gradient.scattered ? p.owned : p.gradient.held;
  using enum GradientPath::Meeting;
  const bool meets = p.gradient.meeting == every_micro_batch || (p.gradient.meeting == once && last);
  const bool accumulate = p.gradient.meeting == every_micro_batch && !first && !p.gradient.offloaded;
  Use met = where_sums_meet(unit, whole, mine, meets, accumulate ? Access::add : Access::write);
  if (meets && p.gradient.wire != Wire::plain)
    emit_scatter_of_blocks(meeting, met);
  else if (meets && p.gradient.scattered)
    emit_reduce_scatter(unit, whole, met, accumulate);
  else if (meets)
    emit_all_reduce(unit, whole);
  if (p.gradient.replicas > 1 && last) emit_meeting_of_replicas(unit, met);
  met.access = Access::read;
  if (p.gradient.kept != p.gradient.sum) {
    const Use kept = kept_gradient(unit, mine, Access::write);
    emit_rounding(unit, kept, met, p.gradient.sum);
    met = {kept.buffer, kept.offset, kept.bytes, Access::read};
  }
  if (p.gradient.offloaded && (last || !p.storage.gradients_whole)) emit_gradient_down(unit, met, first || p.storage.gradients_whole, last);
}

Use SectionBuilder::where_sums_meet(int unit, int whole, const Range& mine, bool meets, Access access) {
  const UnitPlan& p = frame_.plan(unit);
  const bool rounded = p.gradient.kept != p.gradient.sum;
  if (!rounded && (meets || !p.gradient.offloaded)) return kept_gradient(unit, mine, access);
  const std::int64_t bytes = frame_.sum_bytes(unit, mine.size());
  if (!meets || p.storage.gradients_whole) return {whole, frame_.sum_bytes(unit, mine.begin), bytes, access};
  return buffers_.first_of("reduced_gradients." + frame_.unit_at(unit).name, Category::gradients, frame_.local_tier, bytes, access);
}

Use SectionBuilder::kept_gradient(int unit, const Range& elements, Access access) {
  const UnitPlan& p = frame_.plan(unit);
  const std::int64_t bytes = frame_.gradient_bytes(unit, elements.size());
  if (p.gradient.offloaded && !p.storage.gradients_whole)  // on its way down
    return buffers_.first_of("passing_gradients." + frame_.unit_at(unit).name, Category::gradients, frame_.local_tier, bytes, access);
  return {buffers_.named("gradients." + frame_.unit_at(unit).name), frame_.gradient_bytes(unit, elements.begin - p.gradient.held.begin),
          bytes, access};
}

int SectionBuilder::sum_buffer(int unit) {
  const std::string& name = frame_.unit_at(unit).name;
  const UnitPlan& p = frame_.plan(unit);
  if (p.storage.gradients_whole && p.gradient.kept == p.gradient.sum) return buffers_.named("gradients." + name);
  const bool fixed = p.gradient.sum == DType::i64;
  const char* kind = fixed ? "fixed" : "rounded";
  return buffers_.declare(fmt::format("{}_gradients.{}", kind, name), Category::gradients, frame_.comm_tier,
                          frame_.sum_bytes(unit, frame_.unit_at(unit).elements));
}

int SectionBuilder::emit_sum(int unit, int micro, bool first) {
  const UnitPlan& p = frame_.plan(unit);
  if (p.gradient.sum == DType::f32) return micro;
  const int sum = sum_buffer(unit);
  if (p.gradient.sum == DType::bf16)
    emit_rounding(unit, buffers_.whole(sum, Access::write), buffers_.whole(micro, Access::read), DType::f32);
  else
    emit_accumulate(unit, {0, frame_.unit_at(unit).elements}, first);
  return sum;
}

void SectionBuilder::emit_shared_sum(const Shared& shared, bool first) {
  const TensorRef& ref = shared.tensor;
  emit_accumulate(ref.unit, {ref.offset, ref.offset + ref.elements}, first);
  summed_.insert(ref.unit);
  touched_.erase(shared.name);  // the other segment's gradient takes its place
}

void SectionBuilder::emit_accumulate(int unit, const Range& elements, bool first) {
  const std::string& name = frame_.unit_at(unit).name;
  const int sum = sum_buffer(unit);
  const bool stays = buffers_[sum].life == Life::run;
  if (summed_.erase(unit) == 0 && (!stays || first))
    emit({.name = "clear sums " + name, .op = Zero{}, .uses = {buffers_.whole(sum, Access::write)}});
  emit({.name = "accumulate " + name,
        .op = AccumulateFixed{elements.size(), fixed_limit_of(unit)},
        .uses = {{sum, frame_.sum_bytes(unit, elements.begin), frame_.sum_bytes(unit, elements.size()), Access::add},
                 {gradient_buffer(unit), 4 * elements.begin, 4 * elements.size(), Access::read},
                 buffers_.whole("scalars", Access::add),
                 frame_.scales_loss() ? buffers_.whole("run", Access::read) : buffers_.absent()}});
}

void SectionBuilder::emit_rounding(int unit, const Use& to, const Use& from, DType type) {
  emit({.name = "round " + frame_.unit_at(unit).name,
        .op = Round{.count = to.bytes / static_cast<std::int64_t>(size_of(DType::bf16)), .from = type},
        .uses = {to, from}});
}

std::int64_t SectionBuilder::fixed_limit_of(int unit) const {
  const UnitPlan& p = frame_.plan(unit);
  const bool each = p.gradient.meeting == GradientPath::Meeting::every_micro_batch || (p.gradient.offloaded && !p.storage.gradients_whole);
  const StepPasses::Writers& by = step_.writers(unit);
  const std::int64_t sums = frame_.micro_batches() * (by.first_chunk - by.last_chunk + 1);
  return kernels::fixed_limit / (p.owners.size * p.gradient.replicas * (each ? sums : 1));
}

void SectionBuilder::emit_all_reduce(int unit, int whole) {
  const Group& owners = frame_.plan(unit).owners;
  for (const Range& cut : cut_shard(frame_.unit_at(unit).elements, 1, frame_.bucket(frame_.deck.zero.reduce_bucket_size))) {
    const std::int64_t bytes = frame_.sum_bytes(unit, cut.size());
    emit({.name = "all-reduce " + frame_.unit_at(unit).name,
          .op = Collective{CollectiveKind::all_reduce, owners.axes, cut.size(), 0, frame_.plan(unit).gradient.sum},
          .lane = Lane::reduce,
          .uses = {{whole, frame_.sum_bytes(unit, cut.begin), bytes, Access::add}},
          .bytes_moved = 2.0 * static_cast<double>(bytes) * (owners.size - 1) / owners.size});
  }
}

void SectionBuilder::emit_meeting_of_replicas(int unit, const Use& sums) {
  const std::int64_t element = frame_.sum_bytes(unit, 1), n = frame_.plan(unit).gradient.replicas;
  for (const Range& cut : cut_shard(sums.bytes / element, 1, frame_.bucket(frame_.deck.zero.reduce_bucket_size)))
    emit({.name = "all-reduce " + frame_.unit_at(unit).name + " over replicas",
          .op = Collective{CollectiveKind::all_reduce, axes({Axis::replicate}), cut.size(), 0, frame_.plan(unit).gradient.sum},
          .lane = Lane::reduce,
          .uses = {{sums.buffer, sums.offset + cut.begin * element, cut.size() * element, Access::add}},
          .bytes_moved = 2.0 * static_cast<double>(cut.size() * element) * static_cast<double>(n - 1) / static_cast<double>(n)});
}

void SectionBuilder::emit_reduce_scatter(int unit, int whole, const Use& to, bool accumulate) {
  const UnitPlan& p = frame_.plan(unit);
  const std::int64_t S = p.shard;
  const auto workspace = [&](std::int64_t count) {
    const ScatteredSum sum{p.owners.size, count, p.gradient.sum, accumulate, frame_.shape.deterministic};
    const std::int64_t bytes = reduce_scatter_workspace_bytes(frame_.shape.backend, sum);
    return buffers_.workspace("workspace.reduce", frame_.local_tier, bytes);
  };
  for (const Range& cut : cut_shard(S, p.owners.size, frame_.bucket(frame_.deck.zero.reduce_bucket_size))) {
    // Reads a piece of every rank's block: the whole buffer from the first piece to the last one.
    const Use read{whole, frame_.sum_bytes(unit, cut.begin), frame_.sum_bytes(unit, (p.owners.size - 1) * S + cut.size()), Access::read};
    const Use mine{to.buffer, to.offset + frame_.sum_bytes(unit, cut.begin), frame_.sum_bytes(unit, cut.size()), to.access};
    emit({.name = "reduce " + frame_.unit_at(unit).name,
          .op = Collective{CollectiveKind::reduce_scatter, p.owners.axes, cut.size(), S, p.gradient.sum, accumulate},
          .lane = Lane::reduce,
          .uses = {mine, read, workspace(cut.size())},
          .bytes_moved = static_cast<double>(frame_.sum_bytes(unit, cut.size())) * (p.owners.size - 1)});
  }
}

Task SectionBuilder::encoding_of_terms(int unit, const GradientHop& hop, const Use& blocks, const Use& terms, bool first) const {
  const std::string name = fmt::format("encode gradient {} in {} bits", frame_.unit_at(unit).name, kernels::code_bits(hop.wire));
  if (!frame_.plan(unit).gradient.keeps_error)
    return {.name = name, .op = Encode{hop.elements, DType::f32, hop.wire}, .lane = Lane::reduce, .uses = {blocks, terms}};
  const ErrorFeedbackKeys& keys = frame_.deck.zero.error_feedback;
  return {.name = name + ", with what was left",
          .op = EncodeWithError{.count = hop.elements,
                                .wire = hop.wire,
                                .beta = static_cast<float>(keys.beta),
                                .interval = keys.reset_interval,
                                .first = first,
                                .scaled = frame_.scales_sums()},
          .lane = Lane::reduce,
          .uses = {blocks, terms, buffers_.whole(frame_.error_name(unit, hop.wire), Access::add), buffers_.whole("run", Access::read)}};
}

void SectionBuilder::emit_hop(int unit, const GradientHop& hop, const Use& terms, const Use& to, const Meeting& meeting) {
  const std::string& name = frame_.unit_at(unit).name;
  const int bits = kernels::code_bits(hop.wire);
  const std::int64_t part = hop.elements / hop.among.size, bytes = kernels::wire_bytes(hop.wire, part);
  const auto blocks = [&](const char* which, Access access) {
    return buffers_.first_of(fmt::format("{}_blocks.{}.{}", which, bits, name), Category::gradients, frame_.comm_tier,
                             bytes * hop.among.size, access);
  };
  emit(encoding_of_terms(unit, hop, blocks("sent", Access::write), terms, meeting.first));
  emit({.name = fmt::format("exchange gradient {} in {} bits", name, bits),
        .op = Collective{CollectiveKind::all_to_all, hop.among.axes, bytes / 4, 0, DType::u32},
        .lane = Lane::reduce,
        .uses = {blocks("received", Access::write), blocks("sent", Access::read)},
        .bytes_moved = static_cast<double>(bytes) * (hop.among.size - 1)});
  emit({.name = fmt::format("reduce {} from {} bits", name, bits),
        .op = SumBlocks{part, hop.among.size, to.access == Access::add, hop.wire},
        .lane = Lane::reduce,
        .uses = {to, blocks("received", Access::read)}});
}

void SectionBuilder::emit_scatter_of_blocks(const Meeting& meeting, const Use& to) {
  const int unit = meeting.unit;
  const std::vector<GradientHop> hops = gradient_hops(frame_.plan(unit), frame_.unit_at(unit).elements);
  Use terms{meeting.whole, 0, frame_.sum_bytes(unit, hops.front().elements), Access::read};
  if (hops.size() > 1) {
    Use part = buffers_.first_of("group_gradients." + frame_.unit_at(unit).name, Category::gradients, frame_.local_tier,
                                 frame_.sum_bytes(unit, hops.back().elements), Access::write);
    emit_hop(unit, hops.front(), terms, part, meeting);
    part.access = Access::read;
    terms = part;
  }
  emit_hop(unit, hops.back(), terms, to, meeting);
}

}  // namespace tessera
