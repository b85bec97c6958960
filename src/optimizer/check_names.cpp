#include "optimizer/check_names.hpp"

#include "model/record/recompute.hpp"
#include "model/table/parameters.hpp"
#include "optimizer/groups.hpp"
#include "optimizer/state.hpp"

namespace tessera {
namespace {

/// What is wrong, where `check` says so.
template <class Check>
std::string fault_of(Check check) {
  try {
    check();
    return "";
  } catch (const Error& error) {
    if (error.code != ExitCode::usage) throw;
    return error.what();
  }
}

/// "model.freeze: no tensor ..." is a message of model.freeze.
void add(ParsedDeck& parsed, std::string_view fault) {
  const std::string key(fault.substr(0, fault.find_first_of(": ")));
  fault.remove_prefix(key.size());
  if (fault.starts_with(':')) fault.remove_prefix(1);
  if (fault.starts_with(' ')) fault.remove_prefix(1);
  const auto place = parsed.places.find(key);
  TESSERA_REQUIRE(place != parsed.places.end(), "{} is not a key of a deck", key);
  const auto& [file, line, column] = place->second;
  parsed.faults.push_back({file, line, column, key, std::string(fault)});
}

}  // namespace

void check_names(ParsedDeck& parsed) {
  if (!parsed.faults.empty()) return;
  const auto check = [&](const auto& what) {
    if (const std::string fault = fault_of(what); !fault.empty()) add(parsed, fault);
  };
  const Deck& deck = parsed.deck;
  if (!deck.activation.keep.empty())
    check([&] {
      Deck one = deck;  // one layer has the values of all
      one.model.layers = 1, one.model.freeze.clear(), one.model.lora.targets.clear(), one.model.lora.modules_to_save.clear();
      if (const std::string fault = fault_of_keep(model_segments(model_shape(one)), one.activation.keep); !fault.empty())
        fail(ExitCode::usage, "activation.keep: {}", fault);
    });
  if (!deck.model.freeze.empty() || deck.model.lora.rank > 0 || !deck.optimizer.groups.empty())
    check([&] {
      std::vector<Parameter> table = parameter_table(deck.model);
      require_groups(deck.optimizer, table);
      assign_optimizers(deck.optimizer, table);
    });
  if (parsed.faults.empty() && deck.precision.fp8 != Fp8Recipe::none)
    check([&] { check_fp8_skip(parameter_table(deck.model), deck.precision); });
}

}  // namespace tessera
