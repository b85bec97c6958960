// A configuration of DeepSpeed: what is accepted is a deck that the parser takes.
#include "deck/import/import.hpp"
#include "validation/fuzz/fuzz.hpp"

namespace tessera::fuzz {

const ExitCode refusal = ExitCode::usage;

void read_input(std::string_view bytes) {
  const ImportedDeck imported = import_deepspeed_text(
      std::string(bytes),
      {.path = "input.json", .model = "llama3-8b", .overrides = {"data.train=data/train.h5", "run.steps=10"}, .ranks = 4});
  if (imported.faults.empty() == imported.text.empty()) defect("neither a deck nor a fault, or both");
  if (!imported.text.empty() && !parse_deck_text(imported.text, "imported.toml", {}, 4).faults.empty())
    defect("the imported deck is refused");
}

}  // namespace tessera::fuzz
