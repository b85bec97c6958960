// Objects of JSON as text streams by: of an array, or one after the other; and what an object has at its first level.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::io {

/// Cuts a text into its objects. It follows strings and brackets; whether what lies between them is JSON is for read_object to say.
class JsonObjects {
 public:
  /// `document`: of several in one text, an array or an object each, the one whose objects are wanted, from 1. 0: there is one array, or
  /// all objects are wanted.
  explicit JsonObjects(std::int64_t document = 0) : wanted_(document) {}
  /// Takes bytes off `piece` up to the end of an object; false where it has taken all of them, or there is a fault.
  bool next(std::string_view& piece);
  /// The object that next() has found, or as much of it as there is.
  const std::string& object() const { return object_; }
  /// How many have begun, and the line that the last of them begins on, from 1.
  std::int64_t number() const { return number_; }
  std::int64_t line() const { return begun_on_; }
  /// Why this is no sequence of objects; "" where nothing stands against it.
  const std::string& fault() const { return fault_; }
  bool in_array() const { return array_; }
  /// How many documents have begun, where one is wanted.
  std::int64_t documents() const { return documents_; }
  /// Whether the text may end here.
  bool may_end() const { return fault_.empty() && (state_ == State::end || state_ == State::between || state_ == State::begin); }

 private:
  enum class State : std::uint8_t { begin, first, value, inside, after, between, end };
  void between_objects(char c);
  void begin_document(char c, const std::string& here);
  void begin_object();
  bool to_end_of_object(std::string_view& piece);
  State state_ = State::begin;
  bool array_ = false, in_string_ = false, escaped_ = false;
  std::int64_t wanted_, documents_ = 0, depth_ = 0, number_ = 0, line_ = 1, begun_on_ = 1;
  std::string object_, fault_;
};

/// A key of an object's first level that is asked for.
struct JsonField {
  enum class Kind : std::uint8_t { missing, text, null, boolean, number, object, list };
  std::string key;
  Kind kind = Kind::missing;
  std::string text = {};
  std::int64_t byte = 0;  ///< of the object that the key begins at, from 1; 0: of no use
};

/// Reads one object: fills in `fields`, and calls `unused` with each other key. "" or what is wrong with it, with a byte from 1 where
/// that is known: "broken JSON at byte 7".
std::string read_object(std::string_view text, std::span<JsonField> fields, const std::function<void(const std::string& key)>& unused);

}  // namespace tessera::io
