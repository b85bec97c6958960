// The phases of a run: those of batch.ramp, and the last, in which [batch] holds as it stands; where 1-bit Adam warms up, a phase ends with
// its optimizer.freeze_step too. A sample is batch.sequence_length tokens in
// each of them; a phase of shorter sequences cuts it into equal parts, all of which are sequences of one step. So what a run has seen is
// a count of samples in every phase.
#pragma once
#include "deck/deck.hpp"

namespace tessera {

/// Steps that are done as each phase ends, but for the last.
std::vector<std::int64_t> ends_of_phases(const Deck& deck);
inline std::size_t phases_of(const Deck& deck) { return ends_of_phases(deck).size() + 1; }
/// The phase of the step that follows so many.
std::size_t phase_after(const Deck& deck, std::int64_t steps);
/// The deck of a phase's steps, of one phase alone: with its batch, an evaluation of as many tokens, and 1-bit Adam before its freeze_step
/// or after.
Deck deck_in_phase(const Deck& deck, std::size_t phase);
/// The deck of a phase with the batch of its run's last one: of it is decided what all phases have in common, above all where the state
/// lies.
Deck with_last_batch(const Deck& phase);
/// Of a step of such a deck.
inline std::int64_t samples_of_step(const BatchKeys& batch) { return batch.global / batch.parts; }
/// Samples of the first `steps` steps of a run.
std::int64_t samples_in(const Deck& deck, std::int64_t steps);
/// The least steps that take so many samples.
std::int64_t steps_that_take(const Deck& deck, std::int64_t samples);

}  // namespace tessera
