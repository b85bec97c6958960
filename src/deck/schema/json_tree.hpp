// JSON as a tree in which every key and value knows its place, so that what is wrong with one can be shown there.
#pragma once
#include <string>
#include <vector>

#include "deck/schema/value.hpp"

namespace tessera {

struct JsonPlace {
  int line = 0, column = 0;
};

struct JsonNode {
  enum class Kind { null, boolean, integer, real, text, list, object };

  Kind kind = Kind::null;
  Literal literal;                 ///< a scalar; of lists and objects what they are
  std::string written;             ///< the scalar as it stands in the file, text without its quotes
  JsonPlace place;                 ///< of the value
  std::string name;                ///< of a member of an object
  JsonPlace name_place;            ///< of that name
  std::vector<JsonNode> children;  ///< of a list or an object, in their order

  bool is(std::string_view text) const { return kind == Kind::text && written == text; }
  /// The member of an object, or nullptr where it has none or null.
  const JsonNode* member(std::string_view name) const;
  /// The value of a number.
  double number() const;
};

/// Reads a text whose root is an object. Comments (#, //, /* */) and commas before a closing bracket are allowed, as DeepSpeed's reader
/// allows them. False where the text could not be read to its end; keys that are given twice are faults too.
bool read_json(const std::string& text, const std::string& file, JsonNode& root, std::vector<Fault>& faults);

}  // namespace tessera
