// What the lines or rows of preference data are: pairs of completions, or completions with labels.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.hpp"
#include "io/tokens/json_objects.hpp"
#include "io/tokens/tokens.hpp"

namespace tessera::io {

/// Looks at each object of all inputs before any is tokenized. What is in its prompts and completions is the worker's to read
/// (io/tokenizer/preferences.py).
class PreferenceForm {
 public:
  /// `ignored`: keys that nothing is made of.
  explicit PreferenceForm(std::vector<std::string> ignored) : ignored_(std::move(ignored)) {}
  /// What to ask of each object.
  static std::vector<JsonField> fields();
  /// Takes an object of the first or of a later pass. Error(data) names its place, and where it can the byte in it: one of a pair is
  /// missing, neither a pair nor a label, a value of another type, or an object of another kind than those before it, or with no margin
  /// like theirs.
  void take(const std::string& place, std::span<const JsonField> fields);
  /// Of an object that was taken: by how much the chosen completion is better, as "margin" or two scores say it; whether the label is true.
  /// Error(data): the margin is no number of 32 bits.
  static float margin_of(const std::string& place, const Json& object, const std::vector<std::string>& ignored);
  static bool label_of(const Json& object);
  /// Whether take() asks for the key.
  static bool uses(std::string_view key);
  /// `documents` until an object was taken.
  TokenSet set() const { return set_; }
  /// All pairs have a margin.
  bool margins() const { return margins_; }

 private:
  bool ignores(const std::string& key) const;
  void take_set(const std::string& place, TokenSet set);
  bool has_margin(const std::string& place, std::span<const JsonField> fields) const;
  std::vector<std::string> ignored_;
  TokenSet set_ = TokenSet::documents;
  bool margins_ = false;
  std::string first_ = {};  ///< place of the first object
};

}  // namespace tessera::io
