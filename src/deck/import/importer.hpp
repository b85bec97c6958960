// The deck while it is made from a configuration: its lines, what needs none, what is wrong. Shared by the translations of single keys and
// of those that have a meaning together.
#pragma once
#include <map>
#include <optional>
#include <set>

#include "deck/import/deepspeed_keys.hpp"
#include "deck/import/import.hpp"
#include "deck/import/json_tree.hpp"
#include "deck/import/model_source.hpp"

namespace tessera {

/// A line of the deck: what stands after `=`, and why.
struct ImportedLine {
  std::string value, comment;
  std::string from;  ///< DeepSpeed's key, where one says it
  JsonPlace place;
};

class Importer {
 public:
  explicit Importer(const ImportRequest& request);

  /// Goes through every key of the configuration.
  void walk(const JsonNode& root);
  void put_model(const ModelSource& source);
  /// `title`: the deck's first words.
  ImportedDeck finish(const std::string& title);

  const ImportRequest& request() const { return request_; }
  /// The value of a key that is translated together with others, or nullptr where it is not given; of a refused section its switch, if
  /// auto.
  const JsonNode* given(std::string_view theirs) const;
  bool is_auto(std::string_view theirs) const { return given(theirs) && given(theirs)->is("auto"); }
  /// The configuration has this key or section.
  bool met(std::string_view theirs) const { return places_.contains(theirs); }
  /// The value of one of our keys comes from the command line.
  bool overridden(std::string_view ours) const { return overridden_.contains(std::string(ours)); }
  const ImportedLine* line(std::string_view ours) const;

  /// From a key of the configuration. A second, other value for the same key is a fault.
  void put(std::string_view ours, const std::string& value, std::string_view theirs, const std::string& comment = "");
  /// From a default or a guess.
  void assume(std::string_view ours, const std::string& value, const std::string& comment);
  void fault(std::string_view theirs, const std::string& message);
  void note(std::string_view theirs, std::string_view why);

 private:
  void walk_section(const JsonNode& object, const std::string& path);
  void one(const DeepSpeedKey& row, const JsonNode& node);
  void whole_section(const DeepSpeedKey& row, const JsonNode& node);
  void check_names(const JsonNode& object, const std::string& path);
  void refuse(const DeepSpeedKey& row, const JsonNode& node);
  void translate(const DeepSpeedKey& row, const JsonNode& node);
  bool fits(const DeepSpeedKey& row, const JsonNode& node);
  void unknown(const std::string& name, const JsonNode& node);
  void add(JsonPlace place, const std::string& key, const std::string& message);
  /// Parameters of an optimizer or schedule that is itself refused, or replaced from the command line, are not faults of their own.
  bool beside_the_point(const DeepSpeedKey& row) const;

  std::string compose(const std::map<std::string, ImportedLine, std::less<>>& lines) const;
  std::map<std::string, ImportedLine, std::less<>> final_lines(const ParsedDeck& alone, const ParsedDeck& overridden) const;
  std::string remarks() const;
  void take_faults(const ParsedDeck& parsed);

  const ImportRequest& request_;
  std::set<std::string> overridden_;
  std::map<std::string, const JsonNode*, std::less<>> given_;
  std::map<std::string, JsonPlace, std::less<>> places_;  // of every key that was met
  std::map<std::string, ImportedLine, std::less<>> lines_;
  std::vector<std::pair<std::string, std::string>> notes_;
  std::vector<Fault> faults_;
  std::set<std::string> foreign_;  // "optimizer", "scheduler": of a type that is refused
  std::string model_comment_;
};

// Keys that have a meaning together. Each reads what is given and puts lines.
void import_batch(Importer& in);
void import_precision(Importer& in);
void import_optimizer(Importer& in);
void import_schedule(Importer& in);
void import_activation(Importer& in);
/// What no DeepSpeed file holds.
void import_rest(Importer& in);

}  // namespace tessera
