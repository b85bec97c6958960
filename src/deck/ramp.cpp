#include "deck/ramp.hpp"

#include <algorithm>

#include "base/types.hpp"

namespace tessera {
namespace {

struct Steps {
  std::int64_t steps = 0, samples = 0;  ///< of the phase, and of each of its steps
};

/// Of the phases before the last.
std::vector<Steps> ramp_of(const Deck& deck) {
  std::vector<Steps> ramp;
  std::int64_t begin = 0;
  for (std::size_t k = 0; k < deck.batch.ramp.size(); ++k) {
    const std::int64_t end = deck.batch.ramp[k].until_step;
    ramp.push_back({end - begin, samples_of_step(deck_in_phase(deck, k).batch)});
    begin = end;
  }
  return ramp;
}

}  // namespace

std::size_t phase_after(const Deck& deck, std::int64_t steps) {
  const auto later = std::ranges::upper_bound(deck.batch.ramp, steps, {}, &RampPhase::until_step);
  return static_cast<std::size_t>(later - deck.batch.ramp.begin());
}

Deck deck_in_phase(const Deck& deck, std::size_t phase) {
  Deck own = deck;
  own.batch.ramp.clear();
  if (phase == deck.batch.ramp.size()) return own;
  const RampPhase& row = deck.batch.ramp[phase];
  if (row.global > 0) own.batch.global = row.global;
  if (row.sequence_length == 0) return own;
  own.batch.sequence_length = row.sequence_length, own.batch.parts = deck.batch.sequence_length / row.sequence_length;
  own.evaluate.batches *= own.batch.parts;
  return own;
}

std::int64_t samples_in(const Deck& deck, std::int64_t steps) {
  std::int64_t samples = 0;
  for (const Steps& phase : ramp_of(deck)) {
    const std::int64_t taken = std::min(steps, phase.steps);
    samples += taken * phase.samples, steps -= taken;
  }
  return samples + steps * deck.batch.global;
}

std::int64_t steps_that_take(const Deck& deck, std::int64_t samples) {
  std::int64_t steps = 0;
  for (const Steps& phase : ramp_of(deck)) {
    const std::int64_t taken = std::min(phase.steps, ceil_div(samples, phase.samples));
    steps += taken, samples = std::max<std::int64_t>(0, samples - taken * phase.samples);
  }
  return steps + ceil_div(samples, deck.batch.global);
}

}  // namespace tessera
