// What goes with losses of pairs.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "deck/rules/draft.hpp"

namespace tessera {
namespace {

constexpr std::string_view keys_of_pairs[] = {"preference.weights",       "preference.beta",  "preference.label_smoothing",
                                              "preference.gamma",         "preference.alpha", "preference.reference",
                                              "preference.reference_file"};

struct RefusedObjective {
  std::string_view word, why;
};
/// Words of TRL that are no objectives here.
constexpr RefusedObjective refused_objectives[] = {
    {"sigmoid", "TRL's sigmoid is called dpo here; set \"dpo\""},
    {"sppo_hard", "SPPO is not in this version"},
    {"nca_pair", "NCA is not in this version"},
    {"exo_pair", "EXO is not in this version"},
    {"bco_pair", "BCO is not in this version"},
    {"aot", "AOT is not in this version"},
    {"aot_pair", "AOT is not in this version"},
    {"aot_unpaired", "AOT is not in this version"},
    {"discopop", "DiscoPOP is not in this version"},
    {"orpo", "ORPO is not in this version yet: it takes the loss of prompts too"},
    {"kto", "KTO is not in this version yet"},
    {"reward", "reward models are not in this version yet"},
};

bool reads_reference(std::string_view word) {
  using enum PreferenceObjective;
  return word != word_of(simpo) && word != word_of(cpo) && word != word_of(sft);
}

/// Whether all words can be used.
bool check_objectives(Draft& draft) {
  const std::vector<std::string>& words = draft.deck.preference.objective;
  constexpr auto known = enum_words<PreferenceObjective>;
  const std::size_t before = draft.faults.size();
  for (std::size_t i = 0; i < words.size(); ++i) {
    const auto* no = std::ranges::find(refused_objectives, words[i], &RefusedObjective::word);
    if (no != std::end(refused_objectives))
      draft.fault({"preference.objective"}, fmt::format("\"{}\": {}", words[i], no->why));
    else if (std::ranges::find(known, words[i]) == known.end())
      draft.fault({"preference.objective"},
                  fmt::format("\"{}\" is no objective; it is one of {}, or a list of them", words[i], fmt::join(known, ", ")));
    else if (std::find(words.begin(), words.begin() + static_cast<std::ptrdiff_t>(i), words[i]) !=
             words.begin() + static_cast<std::ptrdiff_t>(i))
      draft.fault({"preference.objective"}, fmt::format("\"{}\" is given twice; give it once, with a weight", words[i]));
  }
  return draft.faults.size() == before;
}

bool has_objective(const PreferenceKeys& p, PreferenceObjective objective) {
  return std::ranges::find(p.objective, word_of(objective)) != p.objective.end();
}

void check_idle_keys_of_pairs(Draft& draft) {
  using enum PreferenceObjective;
  const PreferenceKeys& p = draft.deck.preference;
  const auto idle = [&](std::string_view key, std::initializer_list<PreferenceObjective> readers, const char* names) {
    if (draft.differs(key) && std::ranges::none_of(readers, [&](PreferenceObjective o) { return has_objective(p, o); }))
      draft.idle(key, "preference.objective", fmt::format("it is read by {} alone; leave it out", names));
  };
  idle("preference.label_smoothing", {dpo, robust, simpo, cpo}, "dpo, robust, simpo and cpo");
  idle("preference.gamma", {simpo}, "simpo");
  idle("preference.alpha", {cpo}, "cpo");
  idle("preference.beta", {dpo, robust, hinge, ipo, sigmoid_norm, apo_zero, apo_down, simpo, cpo}, "objectives other than sft");
}

void check_reference_of_pairs(Draft& draft) {
  if (!draft.good({"preference.reference", "preference.reference_file", "lora.rank"})) return;
  const PreferenceKeys& p = draft.deck.preference;
  const auto reader = std::ranges::find_if(p.objective, reads_reference);
  if (reader == p.objective.end()) {
    if (p.reference != PreferenceReference::none)
      draft.idle("preference.reference", "preference.objective", "none of the objectives has a reference; leave it out");
  } else if (p.reference == PreferenceReference::none) {
    draft.fault({"preference.reference", "preference.objective"},
                fmt::format("{} compares with a reference: set \"adapter\" (with lora.rank), \"copy\" or \"file\"", *reader));
  }
  if (p.reference == PreferenceReference::adapter && draft.deck.model.lora.rank == 0)
    draft.fault({"preference.reference", "lora.rank"},
                "\"adapter\" is the model without its adapters, and lora.rank = 0 has none; set lora.rank, or reference = \"copy\"");
  if (p.reference == PreferenceReference::adapter && draft.good({"lora.modules_to_save"}) && !draft.deck.model.lora.modules_to_save.empty())
    draft.fault({"preference.reference", "lora.modules_to_save"},
                "without adapters the model would still have the modules that are trained whole; set reference = \"copy\"");
  if ((p.reference == PreferenceReference::file) == p.reference_file.empty())
    draft.fault({"preference.reference_file", "preference.reference"},
                "reference = \"file\" and reference_file go together; set both or none");
  if (p.runs_reference() && draft.good({"reference.model"}) && draft.deck.reference.model != ReferenceModel::none)
    draft.fault({"reference.model", "preference.reference"}, "both run a reference beside the model; leave reference.model out");
}

}  // namespace

void check_preference(Draft& draft) {
  if (!draft.good({"preference.objective"})) return;
  const PreferenceKeys& p = draft.deck.preference;
  if (!p.on()) {
    for (const std::string_view key : keys_of_pairs)
      if (draft.differs(key))
        draft.idle(key, "preference.objective", "has no effect without preference.objective; set that, or leave it out");
    return;
  }
  if (!check_objectives(draft)) return;
  if (draft.good({"preference.weights"}) && !p.weights.empty() && p.weights.size() != p.objective.size())
    draft.fault({"preference.weights", "preference.objective"},
                fmt::format("{} weights for {} objectives; give one for each", p.weights.size(), p.objective.size()));
  if (p.objective == std::vector<std::string>{std::string(word_of(PreferenceObjective::sft))})
    draft.fault({"preference.objective"}, "sft alone needs no pairs: train on prompts and completions without [preference]");
  check_idle_keys_of_pairs(draft);
  check_reference_of_pairs(draft);
  if (draft.good({"data.document_mask"}) && !draft.deck.data.document_mask)
    draft.fault({"preference.objective", "data.document_mask"},
                "both texts of a pair lie in one sequence and must not see each other; set data.document_mask = true");
  if (draft.good({"batch.ramp"}) &&
      std::ranges::any_of(draft.deck.batch.ramp, [&](const RampPhase& phase) { return phase.sequence_length > 0; }))
    draft.fault({"preference.objective", "batch.ramp"}, "a phase with shorter sequences would cut pairs; let phases change `global` alone");
  if (draft.good({"evaluate.every"}) && draft.deck.evaluate.every > 0 &&
      (p.reference == PreferenceReference::file || has_objective(p, PreferenceObjective::cpo) ||
       has_objective(p, PreferenceObjective::sft)))
    draft.fault({"preference.objective", "evaluate.every"},
                "evaluations with a reference from a file, and those of cpo and sft, are not in this version yet; set evaluate.every = 0");
}

}  // namespace tessera
