#include "deck/schema/given.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "deck/schema/value.hpp"

namespace tessera {
namespace {

bool has_its_default(const Key& key, const Deck& deck) { return !key.required && value_text(key, deck) == value_text(key, default_deck()); }

bool is_resolved(const ParsedDeck& parsed, std::string_view key) {
  return std::ranges::any_of(parsed.resolved, [&](const std::string& line) { return line.starts_with(fmt::format("{} = ", key)); });
}

}  // namespace

std::vector<std::string> given_keys(const ParsedDeck& parsed, std::size_t width) {
  std::vector<std::string> lines;
  std::string_view section;
  for (const Key& key : deck_keys()) {
    if (!parsed.places.contains(std::string(key.name)) || has_its_default(key, parsed.deck) || is_resolved(parsed, key.name)) continue;
    const std::string text = fmt::format("{} = {}", key.leaf(), value_text(key, parsed.deck));
    if (key.section() != section)
      section = key.section(), lines.push_back(fmt::format("[{}] {}", section, text));
    else if (lines.back().size() + text.size() + 2 > width)
      lines.back() += ",", lines.push_back("    " + text);
    else
      lines.back() += ", " + text;
  }
  return lines;
}

}  // namespace tessera
