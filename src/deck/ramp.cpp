#include "deck/ramp.hpp"

#include <algorithm>

#include "base/types.hpp"
#include "optimizer/texts/table.hpp"

namespace tessera {
namespace {

struct Steps {
  std::int64_t steps = 0, samples = 0;  ///< of the phase, and of each of its steps
};

/// Of the phases before the last.
std::vector<Steps> phases_before_last(const Deck& deck) {
  const std::vector<std::int64_t> ends = ends_of_phases(deck);
  std::vector<Steps> phases;
  for (std::size_t k = 0; k < ends.size(); ++k)
    phases.push_back({ends[k] - (k == 0 ? 0 : ends[k - 1]), samples_of_step(deck_in_phase(deck, k).batch)});
  return phases;
}

/// Whether the run has steps before freeze_step and after.
bool freezes(const Deck& deck) {
  return optimizer_named(deck.optimizer.type).sends_signs && !deck.optimizer.warms_up && deck.optimizer.freeze_step > 0;
}

}  // namespace

std::vector<std::int64_t> ends_of_phases(const Deck& deck) {
  std::vector<std::int64_t> ends;
  for (const RampPhase& phase : deck.batch.ramp) ends.push_back(phase.until_step);
  if (freezes(deck)) ends.push_back(deck.optimizer.freeze_step);
  std::ranges::sort(ends);
  ends.erase(std::ranges::unique(ends).begin(), ends.end());
  return ends;
}

std::size_t phase_after(const Deck& deck, std::int64_t steps) {
  const std::vector<std::int64_t> ends = ends_of_phases(deck);
  return static_cast<std::size_t>(std::ranges::upper_bound(ends, steps) - ends.begin());
}

Deck deck_in_phase(const Deck& deck, std::size_t phase) {
  const std::vector<std::int64_t> ends = ends_of_phases(deck);
  const std::int64_t begin = phase == 0 ? 0 : ends[phase - 1];
  Deck own = deck;
  own.batch.ramp.clear();
  if (freezes(deck)) own.optimizer.warms_up = begin < deck.optimizer.freeze_step, own.optimizer.freeze_step = 0;
  const auto row = std::ranges::upper_bound(deck.batch.ramp, begin, {}, &RampPhase::until_step);
  if (row == deck.batch.ramp.end()) return own;
  own.batch.last_global = deck.batch.global;
  if (row->global > 0) own.batch.global = row->global;
  if (row->sequence_length == 0) return own;
  own.batch.sequence_length = row->sequence_length, own.batch.parts = deck.batch.sequence_length / row->sequence_length;
  own.evaluate.batches *= own.batch.parts;
  return own;
}

Deck with_last_batch(const Deck& phase) {
  Deck last = phase;
  last.batch.sequence_length *= phase.batch.parts, last.evaluate.batches /= phase.batch.parts, last.batch.parts = 1;
  if (phase.batch.last_global > 0) last.batch.global = phase.batch.last_global;
  last.batch.last_global = 0;
  return last;
}

std::int64_t samples_in(const Deck& deck, std::int64_t steps) {
  std::int64_t samples = 0;
  for (const Steps& phase : phases_before_last(deck)) {
    const std::int64_t taken = std::min(steps, phase.steps);
    samples += taken * phase.samples, steps -= taken;
  }
  return samples + steps * deck.batch.global;
}

std::int64_t steps_that_take(const Deck& deck, std::int64_t samples) {
  std::int64_t steps = 0;
  for (const Steps& phase : phases_before_last(deck)) {
    const std::int64_t taken = std::min(phase.steps, ceil_div(samples, phase.samples));
    steps += taken, samples = std::max<std::int64_t>(0, samples - taken * phase.samples);
  }
  return steps + ceil_div(samples, deck.batch.global);
}

}  // namespace tessera
