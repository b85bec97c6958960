// What a run's figures say about how it could go faster or safer. A rule is a row of advice_rules(): figures in, a sentence with them out,
// and the key that changes it.
#pragma once
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "deck/deck.hpp"
#include "report/page/figures.hpp"

namespace tessera {

struct Advice {
  double share = 0;            ///< of a step, or of the run: the largest stands first
  std::string found;           ///< a sentence with the figures
  std::string remedy;          ///< a sentence of what to do
  std::string change = {};     ///< of the deck, as it is written on a command line: "checkpoint.async=true"; none where no key does it
  bool of_step = true;         ///< the change is one of a step, on which the simulator has a word
  std::string simulated = {};  ///< what it says; none where nobody asked it
};

struct AdviceRule {
  std::string_view name;
  std::optional<Advice> (*of)(const RunFigures&, const Deck&);
};
std::span<const AdviceRule> advice_rules();

/// A sentence on a step with the change, or an empty text where the machine's profile says nothing of it.
using AskSimulator = std::function<std::string(const std::string& change)>;

/// All that apply, the largest share first. `ask` may be empty.
std::vector<Advice> advise(const RunFigures& figures, const Deck& deck, const AskSimulator& ask);

}  // namespace tessera
