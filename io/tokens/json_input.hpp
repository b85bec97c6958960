// Documents that are objects of JSON: lines of them, an array, or one after the other.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "io/tokens/text_input.hpp"

namespace tessera::io {

/// Names of keys or columns that nothing is made of, each once, in the order in which they came.
class UnusedKeys {
 public:
  void add(const std::string& key);
  const std::vector<std::string>& names() const { return names_; }

 private:
  static constexpr std::size_t most = 100;  ///< more are no names but data
  std::vector<std::string> names_;
};

class PreferenceForm;

struct JsonRules {
  std::string field;     ///< the key of the text; "": "text", or "prompt", which does not count in the loss, with "completion", which does
  bool chat = false;     ///< an object is a document as it stands
  bool guessed = false;  ///< nobody said that the input is JSON: refusals name the option that decides
  std::int64_t document = 0;  ///< of several JSON documents in one input the one to take, from 1; 0: there is one
  std::int64_t longest = 0;   ///< bytes that an object, or a line, may have; 0: any
  PreferenceForm* preferences =
      nullptr;                   ///< an object is a document as it stands, and is looked at first; null: objects are no preferences
  UnusedKeys* unused = nullptr;  ///< hears of other keys; null: nobody does
};

/// An object a line. Blank lines and empty texts hold no tokens and are passed over. Errors (ExitCode::data) name the line.
void scan_lines(TextInput& input, const JsonRules& rules, const TextVisitor& visit);
/// An array of objects, or objects one after the other, however they are laid out. Errors (ExitCode::data) name the object and its line.
void scan_objects(TextInput& input, const JsonRules& rules, const TextVisitor& visit);

/// Error(data): what stands at `place` has more than `longest` bytes. `what`: "line".
[[noreturn]] void refuse_long(const std::string& place, const std::string& what, std::int64_t longest);

}  // namespace tessera::io
