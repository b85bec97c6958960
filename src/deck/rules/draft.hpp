// A deck while it is read: which keys were given, where, and what is wrong so far. Shared by the parser and the rules.
#pragma once
#include <initializer_list>
#include <map>

#include "deck/schema/value.hpp"

namespace tessera {

/// Where a key was written: a place in the file, or the override itself.
struct Entry {
  Literal literal;
  DeckPlace place;
  bool given = false;   ///< in the file or an override; otherwise the default or missing
  bool faulty = false;  ///< missing, or its value was refused: rules that need it are skipped
  bool is_auto = false;
};

struct Draft {
  Deck deck;
  std::string file;
  bool stored = false;                                ///< by a run, and not written by a user now
  std::map<std::string, Entry, std::less<>> entries;  // one for each key of the schema
  std::vector<Fault> faults;
  std::vector<std::string> resolved;

  const Entry& entry(std::string_view key) const { return entries.find(key)->second; }
  bool is_auto(std::string_view key) const { return entry(key).is_auto; }
  /// All of these keys have a value that can be used.
  bool good(std::initializer_list<std::string_view> keys) const;
  /// The key was given and differs from its default: a printed deck gives every key, so being given alone says nothing.
  bool differs(std::string_view key) const;
  /// A fault of `keys` together, shown at one of them: an overridden key if there is one, else the first that was given.
  void fault(std::initializer_list<std::string_view> keys, const std::string& message);
  void note(std::string_view key, const std::string& value, const std::string& reason);
  /// A key that the choice in another key leaves without effect. Within the file, or within the overrides, that is a contradiction. Where
  /// an override makes the choice and the key stands in the file, the file's value is dropped with a word: who overrides a choice need not
  /// take the file apart.
  void idle(std::string_view key, std::string_view choice, const std::string& message);
  /// Both keys say the same thing: `other` may not be given beside `key`. An override of one drops what the file says in the other.
  void choose_one(std::string_view key, std::string_view other, std::string_view what);
};

/// Puts values in the place of `auto` where they follow from the deck and the number of ranks (0: not known).
void resolve_auto(Draft& draft, int ranks);
/// What goes with learning_rate.schedule, and that no key of another one is given.
void check_schedule(Draft& draft);
/// A momentum that a schedule of so many steps changes.
void check_cycled_momentum(Draft& draft);
/// Which of two keys says how long the run is.
void check_length(Draft& draft);
/// Puts the steps of run.epochs into run.steps, and those of learning_rate.warmup_ratio into its warmup_steps, as far as they can be known.
void settle_steps(Draft& draft, const CountSteps& count);
/// What goes with the number of steps.
void check_steps(Draft& draft);
/// Of a run with so many of them.
void check_run_size(Draft& draft);
/// Sizes that several keys make together.
void check_sizes(Draft& draft);
/// The axes that follow from the launch, and what they share.
void check_mesh(Draft& draft, int ranks);
void check_pipeline(Draft& draft);
/// Puts the optimizer's own defaults into the place of the schema's.
void resolve_optimizer(Draft& draft);
/// Keys that the optimizer does not read.
void check_optimizer(Draft& draft);
void check_momentum(Draft& draft);
void check_trust_ratio(Draft& draft);
void check_moments(Draft& draft);
/// What goes with momenta that meet as signs.
void check_signs(Draft& draft);
/// Kinds of layers, and what goes with windows.
void check_kinds(Draft& draft);
void check_blocks(Draft& draft);
/// What goes with model.rope_scaling.
void check_rotation(Draft& draft);
/// What goes with types of numbers.
void check_precision(Draft& draft);
/// What goes with adapters.
void check_lora(Draft& draft);
/// What goes with preference.objective.
void check_preference(Draft& draft);
/// Where figures are served.
void check_metrics(Draft& draft);
/// What goes with the best evaluation, and with the one that ends a run.
void check_best(Draft& draft);
/// What goes with [samples].
void check_samples(Draft& draft);
void check_guards(Draft& draft);
/// What travels as blocks of codes.
void check_quantized(Draft& draft);
/// How documents of the data become sequences.
void check_data(Draft& draft);
void check_batch(Draft& draft);
/// Of batch.ramp, where nothing else is wrong: its order, and in each phase what holds of a batch.
void check_ramp(Draft& draft, int ranks);
/// Rules between keys.
void check_rules(Draft& draft);

}  // namespace tessera
