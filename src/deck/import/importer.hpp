// The deck while it is made from a configuration: its lines, what needs none, what is wrong. Shared by the translations of single keys and
// of those that have a meaning together.
#pragma once
#include <map>
#include <optional>
#include <set>

#include "deck/import/foreign_keys.hpp"
#include "deck/import/import.hpp"
#include "deck/import/model_source.hpp"
#include "deck/schema/json_tree.hpp"

namespace tessera {

/// A line of the deck: what stands after `=`, and why.
struct ImportedLine {
  std::string value, comment;
  std::string from;  ///< the other program's key, where one says it
  std::string file;  ///< and the configuration that has it
  JsonPlace place;
};

class Importer {
 public:
  /// `file`: the configuration's name in messages.
  Importer(const ImportRequest& request, const ForeignTable& table, std::string file);

  /// Goes through every key of the configuration.
  void walk(const JsonNode& root);
  void put_model(const ModelSource& source);
  /// `title`: the deck's first words.
  ImportedDeck finish(const std::string& title);

  const ImportRequest& request() const { return request_; }
  /// The row of a key that the table has.
  const ForeignKey& row(std::string_view theirs) const { return *table_.find(theirs); }
  /// The value of a key that is translated together with others, or nullptr where it is not given; of a refused section its switch, if
  /// auto.
  const JsonNode* given(std::string_view theirs) const;
  bool is_auto(std::string_view theirs) const { return given(theirs) && given(theirs)->is("auto"); }
  bool is_true(std::string_view theirs) const { return given(theirs) && given(theirs)->written == "true"; }
  /// The word of a text, lower case, as the table's row translates it; empty where the key is not given.
  std::string word_of(std::string_view theirs) const;
  /// The configuration has this key or section.
  bool met(std::string_view theirs) const { return places_.contains(theirs); }
  /// The same, or it has it as null.
  bool named(std::string_view theirs) const { return met(theirs) || nulls_.contains(theirs); }
  /// The value of one of our keys comes from the command line.
  bool overridden(std::string_view ours) const { return overridden_.contains(std::string(ours)); }
  /// The value that the command line gives one of our keys, as it was written; empty where it gives none.
  std::string override_of(std::string_view ours) const;
  const ImportedLine* line(std::string_view ours) const;

  /// From a key of the configuration. A second, other value for the same key is a fault.
  void put(std::string_view ours, const std::string& value, std::string_view theirs, const std::string& comment = "");
  /// From a default or a guess.
  void assume(std::string_view ours, const std::string& value, const std::string& comment);
  /// Takes the lines of the Trainer's arguments: they fill in what is "auto" or not there, and may not contradict what is given.
  void fill_from(const Importer& trainer);
  void fault(std::string_view theirs, const std::string& message);
  void note(std::string_view theirs, std::string_view why);

 private:
  void walk_section(const JsonNode& object, const std::string& path);
  void one(const ForeignKey& row, const JsonNode& node);
  void whole_section(const ForeignKey& row, const JsonNode& node);
  void check_names(const JsonNode& object, const std::string& path);
  void refuse(const ForeignKey& row, const JsonNode& node);
  void translate(const ForeignKey& row, const JsonNode& node);
  bool fits(const ForeignKey& row, const JsonNode& node);
  void unknown(const std::string& name, const JsonNode& node);
  void add(JsonPlace place, const std::string& key, const std::string& message);
  /// Parameters of an optimizer or schedule that is itself refused, or replaced from the command line, are not faults of their own.
  bool beside_the_point(const ForeignKey& row) const;

  std::string compose(const std::map<std::string, ImportedLine, std::less<>>& lines) const;
  std::map<std::string, ImportedLine, std::less<>> final_lines(const ParsedDeck& alone, const ParsedDeck& overridden) const;
  std::string remarks() const;
  void take_faults(const ParsedDeck& parsed);

  const ImportRequest& request_;
  const ForeignTable& table_;
  std::string file_;
  std::map<std::string, std::string> overridden_;
  std::map<std::string, const JsonNode*, std::less<>> given_;
  std::map<std::string, JsonPlace, std::less<>> places_;  // of every key that was met
  std::map<std::string, JsonPlace, std::less<>> nulls_;   // of every key that is null
  std::map<std::string, ImportedLine, std::less<>> lines_;
  std::vector<std::pair<std::string, std::string>> notes_;
  std::vector<Fault> faults_;
  std::set<std::string, std::less<>> autos_;  // keys that are "auto"
  std::set<std::string> foreign_;             // "optimizer", "scheduler": of a type that is refused
  std::string model_comment_;
};

/// The keys that make up a batch, as a program calls them.
struct BatchNames {
  std::string_view all, micro, steps;
  std::int64_t default_micro = 0;  ///< 0: one of `all` and `micro` must be given
};

/// Those of FSDP, as a program calls them.
struct ShardNames {
  std::string_view words, reshard, offload;
  bool on = false;  ///< it is on without words, too
};

// Keys that have a meaning together. Each reads what is given and puts lines.
/// `trainer`: its arguments say what is not here, or auto.
void import_batch(Importer& in, const BatchNames& names, bool trainer = false);
void import_precision(Importer& in);
void import_optimizer(Importer& in);
void import_schedule(Importer& in, bool trainer = false);
/// A schedule gives the betas of each update, in the place of the optimizer's.
bool cycles_momentum(const Importer& in);
/// DeepSpeed's defaults of sections that are there.
void import_offload_defaults(Importer& in);
void import_error_feedback(Importer& in);
void import_activation(Importer& in);
/// How a run that begins with a model of `context` tokens (0: not known) learns: length, batch, data, learning rate, adapters, saves.
void put_tuning(Importer& in, std::int64_t context, std::int64_t vocab);
/// What no file of another program holds.
void import_rest(Importer& in);
/// DeepSpeed's `wandb`.
void import_wandb(Importer& in);
/// The Trainer's `report_to`: a word or a list of some.
void import_reports(Importer& in);
void import_shards(Importer& in, const ShardNames& names);
/// The loss of pairs, where TRL's arguments say one.
void import_preferences(Importer& in);
bool has_preferences(const Importer& in);
/// TRL's lengths of texts: a sequence holds one, or both of a pair.
void import_lengths(Importer& in);
/// TRL's `use_peft` and what goes with it.
void import_adapters(Importer& in);
bool is_of_accelerate(const JsonNode& root);
/// What of a configuration of Accelerate is not translated by itself.
void import_accelerate_keys(Importer& in, bool trainer);
/// Of the Trainer's arguments, all that is not translated by itself.
void import_trainer_keys(Importer& in);

}  // namespace tessera
