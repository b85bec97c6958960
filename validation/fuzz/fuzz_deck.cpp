// A deck: what is accepted prints as a deck that is the same.
#include "deck/deck.hpp"
#include "validation/fuzz/fuzz.hpp"

namespace tessera::fuzz {

const ExitCode refusal = ExitCode::usage;

void read_input(std::string_view bytes) {
  const ParsedDeck parsed = parse_deck_text(std::string(bytes), "input.toml", {}, 4);
  if (!parsed.faults.empty()) return;
  const ParsedDeck again = parse_deck_text(print_deck(parsed.deck), "printed.toml", {}, 4);
  if (!again.faults.empty()) defect("what was accepted is refused as it is printed: " + again.faults.front().str());
  if (!(again.deck == parsed.deck)) defect("what was accepted is another deck as it is printed");
}

}  // namespace tessera::fuzz
