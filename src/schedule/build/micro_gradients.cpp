#include "schedule/build/micro_gradients.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "kernels/fixed/fixed.hpp"
#include "schedule/build/micro_batches.hpp"

namespace tessera {
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

Use MicroGradients::tensor_gradient_use(const std::string& name, const TensorRef& ref, const SegmentPass& p, bool first) {
  const StepPasses::Writers& writers = step_.writers(ref.unit);
  if (writers.weights && p.kind == PassKind::backward && !out_.frame.plan(ref.unit).gradient.direct) {
    step_.waiting_gradients[ref.unit].insert_or_assign(name, ref);
    return waiting_gradient_use(name, ref, touched_.insert(name).second ? Access::write : Access::add, 0);
  }
  const int target = gradient_buffer(out_, ref.unit);
  const bool direct = out_.frame.plan(ref.unit).gradient.direct;
  // The first touch of a unit's own micro-batch buffer clears the gaps between its tensors, which would otherwise hold what lay there
  // before.
  if (!direct && touched_units_.insert(ref.unit).second) {
    if (writers.first_chunk == writers.last_chunk)
      emit_zero_padding(ref.unit, target);
    else  // tensors of other chunks are not written now
      out_.emit({.name = "clear " + out_.frame.unit_at(ref.unit).name, .op = Zero{}, .uses = {out_.buffers.whole(target, Access::write)}});
  }
  const bool starts = touched_.insert(name).second && (first || !direct);
  return {target, 4 * ref.offset, 4 * ref.elements, starts ? Access::write : Access::add};
}

void MicroGradients::emit_zero_padding(int unit, int target) {
  std::vector<Use> gaps;
  for (const Range& gap : padding_of(out_.frame.unit_at(unit))) gaps.push_back({target, 4 * gap.begin, 4 * gap.size(), Access::write});
  if (!gaps.empty()) out_.emit({.name = fmt::format("clear padding {}", out_.frame.unit_at(unit).name), .op = Zero{}, .uses = gaps});
}

void MicroGradients::plan(const Events& events) {
  done_ = find_done(events);
  shared_ = find_shared(events);
}

void MicroGradients::emit_done(int event) {
  if (const auto tensor = shared_.find(event); tensor != shared_.end()) emit_shared_sum(tensor->second);
  if (!done_[index(event)].empty()) emit_delayed_reductions();
  for (const int unit : done_[index(event)]) {
    const StepPasses::Writers& by = step_.writers(unit);
    const bool first = by.weights ? phase_.first_weights : phase_.first, last = by.weights ? phase_.last_weights : phase_.last;
    emit_gradient_done(unit, first && phase_.backward_chunk == by.first_chunk, last && phase_.backward_chunk == by.last_chunk);
  }
}

std::vector<std::vector<int>> MicroGradients::find_done(const Events& events) const {
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

std::map<int, MicroGradients::Shared> MicroGradients::find_shared(const Events& events) const {
  struct Writer {
    SegmentNumber segment;
    int last = 0;
  };
  std::map<std::string, Writer> writers;
  std::map<int, Shared> shared;
  for (int e = 0; e < static_cast<int>(events.size()); ++e)
    for (const SegmentPass& p = passes_.at(events[index(e)]); const Operand& o : p.operands) {
      const ValueInfo& v = passes_.value(p, o);
      if (v.kind != ValueKind::weight_gradient || out_.frame.plan(passes_.tensor(p, o).unit).gradient.sum != DType::i64) continue;
      const auto [known, fresh] = writers.try_emplace(v.name, Writer{p.segment, e});
      if (!fresh && known->second.segment != p.segment) shared[known->second.last] = {v.name, passes_.tensor(p, o)};
      known->second = {p.segment, e};
    }
  return shared;
}

void MicroGradients::emit_gradient_done(int unit, bool first, bool last) {
  const UnitPlan& p = out_.frame.plan(unit);
  touched_units_.erase(unit);
  emit_joined_gradients(unit);
  const GradientReduction reduction{unit, emit_sum(unit, gradient_buffer(out_, unit), first), first, last};
  if (out_.frame.unit_at(unit).owners & pipeline_ends) return step_.at_end.push_back(reduction);
  const bool passes_by = out_.buffers[reduction.whole].life == Life::section;
  const bool leaves = p.gradient.reduced == GradientPath::Reduced::every_micro_batch || p.gradient.offloaded;
  if (out_.frame.overlaps() && passes_by && leaves)
    delayed_.push_back(reduction);
  else
    emit_gradient_reduction(out_, reduction);
}

void MicroGradients::emit_delayed_reductions() {
  for (const GradientReduction& reduction : std::exchange(delayed_, {})) emit_gradient_reduction(out_, reduction);
}

int MicroGradients::emit_sum(int unit, int micro, bool first) {
  const UnitPlan& p = out_.frame.plan(unit);
  if (p.gradient.sum == DType::f32) return micro;
  const int sum = sum_buffer(out_, unit);
  if (p.gradient.sum == DType::bf16)
    emit_rounding(out_, unit, out_.buffers.whole(sum, Access::write), out_.buffers.whole(micro, Access::read), DType::f32);
  else
    emit_accumulate(unit, {0, out_.frame.unit_at(unit).elements}, first);
  return sum;
}

void MicroGradients::emit_shared_sum(const Shared& shared) {
  const TensorRef& ref = shared.tensor;
  emit_accumulate(ref.unit, {ref.offset, ref.offset + ref.elements}, phase_.first);
  summed_.insert(ref.unit);
  touched_.erase(shared.name);  // the other segment's gradient takes its place
}

void MicroGradients::emit_accumulate(int unit, const Range& elements, bool first) {
  const std::string& name = out_.frame.unit_at(unit).name;
  const int sum = sum_buffer(out_, unit);
  const bool stays = out_.buffers[sum].life == Life::run;
  if (summed_.erase(unit) == 0 && (!stays || first))
    out_.emit({.name = "clear sums " + name, .op = Zero{}, .uses = {out_.buffers.whole(sum, Access::write)}});
  out_.emit({.name = "accumulate " + name,
             .op = AccumulateFixed{elements.size(), fixed_limit_of(unit)},
             .uses = {{sum, out_.frame.sum_bytes(unit, elements.begin), out_.frame.sum_bytes(unit, elements.size()), Access::add},
                      {gradient_buffer(out_, unit), 4 * elements.begin, 4 * elements.size(), Access::read},
                      out_.buffers.whole("scalars", Access::add),
                      out_.frame.scales_loss() ? out_.buffers.whole("run", Access::read) : out_.buffers.absent()}});
}

std::int64_t MicroGradients::fixed_limit_of(int unit) const {
  const UnitPlan& p = out_.frame.plan(unit);
  const bool each = p.gradient.reduced == GradientPath::Reduced::every_micro_batch || (p.gradient.offloaded && !p.storage.gradients_whole);
  const StepPasses::Writers& by = step_.writers(unit);
  const std::int64_t sums = out_.frame.micro_batches() * (by.first_chunk - by.last_chunk + 1);
  return kernels::fixed_limit / (p.owners.size * p.gradient.replicas * (each ? sums : 1));
}

void MicroGradients::emit_end_reductions(bool ends) {
  std::vector<GradientReduction> later;
  for (const GradientReduction& reduction : std::exchange(step_.at_end, {})) {
    const bool outlives = out_.buffers[reduction.whole].life != Life::section;
    if (!ends && reduction.last && outlives)
      later.push_back(reduction);
    else
      emit_gradient_reduction(out_, reduction);
  }
  step_.at_end = std::move(later);
}

Use MicroGradients::waiting_gradient_use(const std::string& name, const TensorRef& tensor, Access access, std::int64_t shift) {
  const std::int64_t slots = step_.flight(0).backward_to_weights;
  return out_.buffers.in_slots("waiting_gradients." + name_for_all(name), out_.frame.local_tier, 4 * tensor.elements, slots, access, shift,
                               Category::gradients);
}

void MicroGradients::emit_joined_gradients(int unit) {
  const auto waiting = step_.waiting_gradients.find(unit);
  if (waiting == step_.waiting_gradients.end()) return;
  const int target = gradient_buffer(out_, unit);
  for (const auto& [name, tensor] : waiting->second)
    out_.emit({.name = "join gradient " + name_for_all(name),
               .op = Copy{},
               .uses = {{target, 4 * tensor.offset, 4 * tensor.elements, Access::write},
                        waiting_gradient_use(name, tensor, Access::read, -phase_.behind)}});
}

}  // namespace tessera
