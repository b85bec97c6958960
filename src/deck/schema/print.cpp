// A deck as text: TOML, the reference page, digests.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "deck/schema/value.hpp"
#include "optimizer/texts/table.hpp"

namespace tessera {
namespace {

std::string type_text(const Key& key) {
  switch (key.type) {
    case KeyType::integer:
      return "integer";
    case KeyType::elements:
      return "integer, or a whole float such as 5e8";
    case KeyType::bytes:
    case KeyType::duration:
      return "text with a unit";
    case KeyType::real:
      return "float";
    case KeyType::boolean:
      return "boolean";
    case KeyType::toggle:
      return "boolean";
    case KeyType::counted:
      return "text, or integer";
    case KeyType::text:
      return "text";
    case KeyType::texts:
      return "list of texts";
    case KeyType::paths:
      return "text, or list of texts";
    case KeyType::integers:
      return "list of integers";
    case KeyType::groups:
    case KeyType::phases:
    case KeyType::kinds:
      return "list of tables";
    case KeyType::reals:
      return "list of numbers";
  }
  return {};
}

std::string values_text(const Key& key) {
  std::string values;
  auto add = [&](const std::string& v) { values += (values.empty() ? "" : ", ") + v; };
  if (key.automatic != Auto::no) add("`\"auto\"`");
  if (!key.zero.empty()) add(fmt::format("`{}`", toml_string(key.zero)));
  for (auto c : key.choices) add(fmt::format("`{}`", toml_string(c)));
  if (std::string limits = limits_text(key.limits); !limits.empty()) add(limits);
  return values;
}

/// Of a key that not every optimizer reads: who does, and with which default.
std::string of_optimizers(const Key& key) {
  const std::vector<std::string_view> readers = readers_of(key);
  if (readers.empty() || readers.size() == optimizers().size()) return "";
  std::string text = fmt::format(" Of {}.", fmt::join(readers, ", "));
  for (const Optimizer& row : optimizers())
    for (const auto& [leaf, value] : row.defaults)
      if (leaf == key.leaf())
        text += fmt::format(" The default of {} is {}.", row.name,
                            key.type == KeyType::boolean ? (value != 0 ? "true" : "false") : shortest(value));
  return text;
}

}  // namespace

std::string print_deck(const Deck& deck) {
  std::string out;
  std::string_view section;
  for (const Key& key : deck_keys()) {
    if (key.section() != section) {
      out += fmt::format("{}[{}]\n", section.empty() ? "" : "\n", key.section());
      section = key.section();
    }
    out += fmt::format("{} = {}\n", key.leaf(), value_text(key, deck));
  }
  return out;
}

std::string deck_reference() {
  std::string out =
      "# Deck reference\n\nEvery key of a deck, as `tessera deck reference` prints it. For programs: `tessera deck reference --json`. "
      "`section.key=value` on the command line overrides a key.\nQuantities of elements may be written as whole floats (`5e8`). Quantities "
      "of bytes and time need their unit (`\"64 MiB\"`,\n`\"30 min\"`).\n";
  std::string_view section;
  for (const Key& key : deck_keys()) {
    if (key.section() != section) {
      section = key.section();
      out += fmt::format("\n## [{}]\n\n| key | type | unit | values | default | meaning |\n|---|---|---|---|---|---|\n", section);
    }
    // The default as `tessera deck print` shows it; "auto" and quotes included.
    std::string standard = key.required ? "required" : fmt::format("`{}`", default_text(key));
    out += fmt::format("| `{}` | {} | {} | {} | {} | {} |\n", key.leaf(), type_text(key), key.unit, values_text(key), standard,
                       std::string(key.help) + of_optimizers(key));
  }
  return out;
}

Hash128 deck_hash(const Deck& deck) { return hash_text(print_deck(deck)); }

Hash128 deck_identity(const Deck& deck) {
  std::string text;
  for (const Key& key : deck_keys()) {
    const std::string value = value_text(key, deck);
    if (key.identity && !(key.silent && value == default_text(key))) text += fmt::format("{} = {}\n", key.name, value);
  }
  return hash_text(text);
}

namespace {
std::vector<std::string> differences_of(const Deck& there, const Deck& here, bool identity_alone) {
  std::vector<std::string> differences;
  for (const Key& key : deck_keys()) {
    if ((identity_alone && !key.identity) || value_text(key, there) == value_text(key, here)) continue;
    differences.push_back(fmt::format("{} = {}, here {}", key.name, value_text(key, there), value_text(key, here)));
  }
  return differences;
}
}  // namespace

std::vector<std::string> identity_differences(const Deck& there, const Deck& here) { return differences_of(there, here, true); }
std::vector<std::string> deck_differences(const Deck& there, const Deck& here) { return differences_of(there, here, false); }

}  // namespace tessera
