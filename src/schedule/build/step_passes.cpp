#include "schedule/build/step_passes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>

namespace tessera {
namespace {
/// Of what a step makes a second time.
constexpr const char* again = " (again)";
}  // namespace

// ---- Passes ----

Passes::Passes(const Layout& layout, std::vector<Tower>& towers, std::vector<SegmentPass>& passes)
    : layout_(layout), towers_(towers), passes_(passes) {
  for (Tower& tower : towers_) find_tensors(tower);
}

int Passes::add(Tower tower) {
  find_tensors(towers_.emplace_back(std::move(tower)));
  return static_cast<int>(towers_.size()) - 1;
}

std::vector<int> Passes::towers() const {
  std::vector<int> numbers(towers_.size());
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

void Passes::find_tensors(Tower& tower) {
  tower.streams = static_cast<int>(tensors_.size());
  for (const Segment& segment : tower.segments) {
    std::vector<TensorRef>& found = tensors_.emplace_back(segment.values.size());
    for (std::size_t v = 0; v < found.size(); ++v)
      if (is_of_tensor(segment.values[v].kind)) found[v] = layout_.find(segment.values[v].name);
  }
}

void Passes::add(Events& events, int tower, SegmentPass pass) {
  pass.segment.tower = tower;
  for (SegmentPass& part : cut_at_exchanges(segment_of(pass), pass)) {
    events.push_back(static_cast<int>(passes_.size()));
    passes_.push_back(std::move(part));
  }
}

Events Passes::forward(int tower) {
  Events events;
  int number = 0;
  for (const Segment& segment : towers_[index(tower)].segments)
    add(events, tower, forward_pass(segment, number++, Kept(segment.values.size(), KeptBy::none)));
  return events;
}

bool Passes::any_value(ValueKind kind) const {
  const auto has = [&](const Segment& segment) {
    return std::ranges::find(segment.values, kind, &ValueInfo::kind) != segment.values.end();
  };
  return std::ranges::any_of(towers_, [&](const Tower& tower) { return std::ranges::any_of(tower.segments, has); });
}

// ---- StepPasses ----

StepPasses::StepPasses(const Frame& frame, Passes& passes, const std::vector<int>& towers) : frame_(frame) {
  // What others find of a batch is there before the model's backward passes.
  for (const int tower : towers)
    if (passes.tower(tower).trains_nothing()) std::ranges::copy(passes.forward(tower), std::back_inserter(all_));
  for (const int tower : towers)
    if (!passes.tower(tower).trains_nothing()) add_trained(passes, tower);
  note_writers(passes);
  order_ = pipeline_order(frame.deck.pipeline, frame.stage(), frame.micro_batches(), frame.updates_late());
  flights_ = in_flight(order_, frame.stage().chunks());
}

void StepPasses::add_trained(Passes& passes, int tower) {
  const std::vector<Segment>& segments = passes.tower(tower).segments;
  const auto segment = [&](int s) -> const Segment& { return segments[index(s)]; };
  const int count = static_cast<int>(segments.size());
  std::set<int> begins;
  for (int s = 0; s < count; ++s)
    if (frame_.begins_chunk({tower, s})) begins.insert(s);
  const RecomputeChoice* chosen = frame_.request.choice();
  const ActivationPlan& activations = activations_[tower] =
      plan_activations(segments, chosen ? *chosen : recompute_of(segments, frame_.deck.activation), begins);
  const auto kept = [&](int s) -> const Kept& { return activations.kept[index(s)]; };
  for (int s = 0; s < count; ++s)
    if (!segment(s).joint) passes.add(all_, tower, forward_pass(segment(s), s, kept(s)));
  Events weights;
  for (auto span = activations.spans.rbegin(); span != activations.spans.rend(); ++span) {
    int lowest = span->first;  // of those with a backward pass: what is frozen below all that is trained has none
    while (lowest <= span->last && segment(lowest).backward.empty()) ++lowest;
    for (int s = span->first; s < span->last && lowest <= span->last; ++s) passes.add(all_, tower, again_pass(segment(s), s, kept(s)));
    for (int s = span->last; s >= lowest; --s)
      if (segment(s).backward.empty())
        continue;
      else if (frame_.parts_backward())
        add_parted(passes, weights, {tower, s});
      else
        passes.add(all_, tower, backward_pass(segment(s), s, kept(s)));
  }
  note_waiting(passes, weights);
  all_.insert(all_.end(), weights.begin(), weights.end());
}

void StepPasses::add_parted(Passes& passes, Events& weights, SegmentNumber number) {
  const auto [tower, segment] = number;
  const bool stream_kept = frame_.begins_chunk(number) || !stream_dropped(number.before());
  const PartedBackward parted =
      part_backward(passes.tower(tower).at(number), segment, activations_.at(tower).kept[index(segment)], stream_kept,
                    [&](const ValueInfo& weight) { return frame_.plan(frame_.layout.find(weight.name).unit).storage.parameters_whole; });
  passes.add(all_, tower, parted.inputs);
  if (parted.weights.calls.empty()) return;
  passes.add(weights, tower, parted.weights);
  if (parted.reads_d_stream) keeps_gradient_.insert(number);
}

void StepPasses::note_writers(const Passes& passes) {
  for (const int number : all_) {
    const SegmentPass& p = passes.at(number);
    const int chunk = frame_.chunk_of(p.segment);
    for (const Operand& o : p.operands) {
      if (passes.value(p, o).kind != ValueKind::weight_gradient) continue;
      Writers& writers = writers_.try_emplace(passes.tensor(p, o).unit, Writers{false, chunk, chunk}).first->second;
      writers.weights |= p.kind == PassKind::weights;
      writers.first_chunk = std::max(writers.first_chunk, chunk), writers.last_chunk = std::min(writers.last_chunk, chunk);
    }
  }
}

void StepPasses::note_waiting(const Passes& passes, const Events& weights) {
  for (const int number : weights) {
    const SegmentPass& p = passes.at(number);
    for (const Operand& o : p.operands) {
      const ValueInfo& v = passes.value(p, o);
      if (o.kept_by == KeptBy::forward) waits_.insert(fmt::format("{}.{}", passes.segment_of(p).name, v.name));
      if (o.kept_by == KeptBy::again) waits_.insert(made_again_name(passes.segment_of(p), v));
      if (v.kind == ValueKind::stream_in)
        waits_.insert(frame_.begins_chunk(p.segment) ? boundary_name(passes, Boundary::incoming, p)
                                                     : stream_name(passes, p, p.segment.before()));
    }
  }
}

Events StepPasses::of_phase(const Passes& passes, const PipelinePhase& phase) const {
  Events events;
  for (const int number : all_) {
    const SegmentPass& p = passes.at(number);
    const int chunk = frame_.chunk_of(p.segment);
    const bool in = p.kind == PassKind::forward   ? phase.forward && chunk == phase.forward_chunk
                    : p.kind == PassKind::weights ? phase.weights
                                                  : phase.backward && chunk == phase.backward_chunk;
    if (in) events.push_back(number);
  }
  return events;
}

std::string StepPasses::stream_name(const Passes& passes, const SegmentPass& p, SegmentNumber leaves) const {
  return fmt::format("stream.{}{}", passes.stream(leaves), p.kind != PassKind::forward && stream_dropped(leaves) ? again : "");
}

std::string StepPasses::made_again_name(const Segment& segment, const ValueInfo& v) const {
  return fmt::format("{}.{}{}", segment.name, v.name, again);
}

std::string StepPasses::boundary_name(const Passes& passes, Boundary what, const SegmentPass& p) const {
  const char* names[] = {"incoming.stream", "outgoing.stream", "d_stream"};
  const std::string name = passes.tower(p.segment.tower).prefix + names[static_cast<std::size_t>(what)];
  return frame_.stage().chunks() == 1 ? name : fmt::format("{}.{}", name, frame_.chunk_of(p.segment));
}

}  // namespace tessera
