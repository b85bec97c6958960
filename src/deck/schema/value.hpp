// Values of keys: from what a user wrote to a field, with the reason when that cannot be, and back to text.
#pragma once
#include "deck/schema/schema.hpp"

namespace tessera {

/// A value as it stands in a deck: a scalar, or an array of texts, of integers, of numbers or of tables. `kind` names what is none of these
/// ("an array", "a date"); then value holds nothing.
struct Literal {
  std::variant<std::monostate, std::int64_t, double, bool, std::string, std::vector<std::string>, std::vector<std::int64_t>,
               std::vector<double>, std::vector<OptimizerGroup>, std::vector<RampPhase>, std::vector<KindKeys>>
      value;
  std::string kind;
  /// As it would be written in a deck: "cosine" with its quotes, 12, 0.5, true, ["a", "b"].
  std::string str() const;
};

/// Puts a literal into the field of `key`. Returns what is wrong and what to do, or an empty text when the field was set.
/// "auto" leaves 0 or "auto" in the field and sets `is_auto`.
std::string assign(const Key& key, const Literal& literal, Deck& deck, bool& is_auto);

/// The field as a literal: bytes as a number, everything else as a user would write it.
Literal read_value(const Key& key, const Deck& deck);
/// The field as the text after `=` in a deck. assign() of this text gives the same bits.
std::string value_text(const Key& key, const Deck& deck);
/// A deck that names no key.
const Deck& default_deck();
/// What a deck has that leaves the key out, as it would be written after `=`; empty where the key is required.
std::string default_text(const Key& key);
/// That is the word "auto".
bool is_auto_by_default(const Key& key);

/// "at least 1", "above 0 and below 1"; empty where the key has no limits.
std::string limits_text(const Limits& limits);
/// A TOML string with its quotes.
std::string toml_string(std::string_view text);
/// The text, or its beginning where it is too long for a message.
std::string shortened(const std::string& text);
std::string lower_case(std::string text);
/// Shortest text that reads back as the same double, with a point or exponent so that TOML takes it for a float.
std::string shortest(double value);

}  // namespace tessera
