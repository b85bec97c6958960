#include "schedule/build/micro_batches.hpp"

#include <fmt/format.h>

#include "base/types.hpp"
#include "deck/ramp.hpp"

namespace tessera {
namespace {
std::int64_t micro_batches(const Deck& deck) { return deck.batch.global / deck.batch.micro; }
}  // namespace

std::int64_t accumulation_steps(const Deck& deck, int ranks) { return ceil_div(micro_batches(deck), ranks); }

std::optional<std::int64_t> micro_batch_at(const Deck& deck, int ranks, int rank, std::int64_t place) {
  // Expert-parallel ranks have neighbours: which micro-batches meet in an exchange does not depend on the other axes.
  const std::int64_t ep = deck.mesh.ep, number = (rank / ep * accumulation_steps(deck, ranks) + place) * ep + rank % ep;
  return number < micro_batches(deck) ? std::optional(number) : std::nullopt;
}

double empty_share(const Deck& deck, int ranks) {
  return 1 - static_cast<double>(micro_batches(deck)) / static_cast<double>(accumulation_steps(deck, ranks) * ranks);
}

std::string describe_batch(const Deck& deck, int ranks) {
  const std::int64_t each = accumulation_steps(deck, ranks), places = each * ranks, empty = places - micro_batches(deck);
  std::string text =
      fmt::format("{} sequences of {} tokens, {} tokens a step: {} micro-batches of {} on each of {} ranks", deck.batch.global,
                  deck.batch.sequence_length, human_count(static_cast<double>(deck.batch.global * deck.batch.sequence_length)), each,
                  deck.batch.micro, ranks);
  if (empty > 0)
    text += fmt::format("; {} of these {} {} empty, which wastes {:.1f} % of a step: batch.global = {} would leave none empty", empty,
                        places, empty == 1 ? "is" : "are", 100 * empty_share(deck, ranks), places * deck.batch.micro);
  return text;
}

std::string describe_warmup(const Deck& deck) {
  return deck.optimizer.warms_up ? "; 1-bit Adam warms up, and gradients are reduced whole" : "";
}

std::vector<std::string> describe_ramp(const Deck& deck, int ranks) {
  std::vector<std::string> lines;
  std::int64_t begin = 1;
  const std::vector<std::int64_t> ends = ends_of_phases(deck);
  for (std::size_t k = 0; k < ends.size(); ++k) {
    const Deck own = deck_in_phase(deck, k);
    lines.push_back(fmt::format("steps {} to {}: {}{}", begin, ends[k], describe_batch(own, ranks), describe_warmup(own)));
    begin = ends[k] + 1;
  }
  return lines;
}

}  // namespace tessera
