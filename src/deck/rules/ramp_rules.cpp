// What goes with batch.ramp.
#include <fmt/format.h>

#include <algorithm>

#include "deck/nearest.hpp"
#include "deck/ramp.hpp"
#include "deck/rules/draft.hpp"

namespace tessera {
namespace {

/// What of a phase has no place beside the sequences of [batch]; empty: nothing.
std::string fault_of_lengths(const Deck& deck, const RampPhase& phase) {
  const std::int64_t T = deck.batch.sequence_length, t = phase.sequence_length;
  if (t == 0) return "";
  if (t > T)
    return fmt::format("its sequence_length {} is more than batch.sequence_length {}: set batch.sequence_length to the longest", t, T);
  if (T % t != 0)
    return fmt::format("its sequence_length {} does not divide batch.sequence_length {}; nearest valid: {}", t, T,
                       one_of(divisors_near(T, t)));
  const std::int64_t parts = T / t, global = phase.global > 0 ? phase.global : deck.batch.global;
  if (global % parts != 0)
    return fmt::format(
        "a step takes whole samples of batch.sequence_length {}, each of which is {} sequences of {}, and its global {} is not a multiple "
        "of that; nearest valid global: {}",
        T, parts, t, global, multiples_around(global, parts));
  return "";
}

/// The first rule that the batch of a phase breaks; empty: none.
std::string fault_of_batch(const Draft& draft, std::size_t phase, int ranks) {
  Draft own = draft;
  own.deck = deck_in_phase(draft.deck, phase);
  check_batch(own);
  if (own.faults.empty()) check_precision(own);
  if (own.faults.empty()) check_sizes(own);
  if (own.faults.empty()) check_mesh(own, ranks);
  return own.faults.empty() ? "" : own.faults.front().message;
}

bool uses_disks(const Deck& deck) {
  using enum OffloadDevice;
  return deck.zero.offload_optimizer.device == nvme || deck.zero.offload_param.device == nvme || deck.activation.offload == nvme;
}

}  // namespace

void check_ramp(Draft& draft, int ranks) {
  if (!draft.faults.empty() || draft.deck.batch.ramp.empty()) return;
  const auto fault = [&](const std::string& what) { draft.fault({"batch.ramp"}, what); };
  const std::vector<RampPhase>& ramp = draft.deck.batch.ramp;
  constexpr std::size_t most_phases = 1000;  // a schedule each
  if (ramp.size() > most_phases)
    return fault(fmt::format("has {} phases, each with its own schedule; give at most {}", ramp.size(), most_phases));
  if (uses_disks(draft.deck))
    return fault(
        "phases share one memory, and data on disks cannot move between them; with batch.ramp set offload to \"host\" or \"none\"");
  for (std::size_t k = 0; k < ramp.size(); ++k) {
    const RampPhase& phase = ramp[k];
    if (k > 0 && phase.until_step <= ramp[k - 1].until_step)
      return fault(fmt::format("phase {} ends at step {} and phase {} before it at step {}; order them by their steps", k + 1,
                               phase.until_step, k, ramp[k - 1].until_step));
    std::string what = fault_of_lengths(draft.deck, phase);
    if (what.empty() && phase.sequence_length > 0 && phase.sequence_length < draft.deck.batch.sequence_length &&
        draft.deck.data.packing == Packing::documents)
      what =
          "its shorter sequences would cut documents that data.packing = \"documents\" keeps whole; leave sequence_length out of it, or "
          "set data.packing = \"concatenate\"";
    if (what.empty()) what = fault_of_batch(draft, phase_after(draft.deck, k == 0 ? 0 : ramp[k - 1].until_step), ranks);
    if (!what.empty()) return fault(fmt::format("in phase {}: {}", k + 1, what));
  }
}

}  // namespace tessera
