// From TOML text and overrides to a deck, or to the list of everything that is wrong with it.
#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>

#include "base/check.hpp"
#include "base/regular_file.hpp"
#include "deck/rules/draft.hpp"
#include "deck/schema/groups.hpp"
#include "deck/schema/hints.hpp"
#include "deck/schema/kinds.hpp"
#include "deck/schema/phases.hpp"
#include "deck/schema/syntax.hpp"

namespace tessera {
namespace {

constexpr std::int64_t most_deck_bytes = 1 << 20;  // a deck with every key and its help is a hundredth of it

/// Tables of a list, read as the key has them.
Literal read_tables(const Key& key, const toml::array& tables) {
  if (key.type == KeyType::phases) return read_phases(tables);
  return key.type == KeyType::kinds ? read_kinds(tables) : read_groups(tables);
}

Literal to_literal(const Key& key, const toml::node& node) {
  if (auto* array = node.as_array()) {
    std::vector<std::string> texts;
    std::vector<std::int64_t> integers;
    std::vector<double> numbers;  // and integers among them
    for (const toml::node& element : *array) {
      if (auto text = element.as_string()) texts.push_back(text->get());
      if (auto integer = element.as_integer()) integers.push_back(integer->get());
      if (auto number = element.value<double>()) numbers.push_back(*number);
    }
    if (!array->empty() && array->is_array_of_tables()) return read_tables(key, *array);
    if (texts.size() == array->size()) return {texts, ""};
    if (integers.size() == array->size()) return {integers, ""};
    if (numbers.size() == array->size()) return {numbers, ""};
  }
  return scalar_literal(node);
}

DeckPlace place_of(const std::string& file, const toml::source_region& region) {
  return {file, static_cast<int>(region.begin.line), static_cast<int>(region.begin.column)};
}

/// A key as it has to be written: a quoted key stays quoted, so that "run.steps" in quotes is not taken for the key steps of [run].
std::string written(std::string_view key) {
  constexpr std::string_view bare = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
  return !key.empty() && key.find_first_not_of(bare) == key.npos ? std::string(key) : toml_string(key);
}

std::string join(const std::string& section, std::string_view key) {
  return section.empty() ? written(key) : fmt::format("{}.{}", section, written(key));
}

/// Walks the tables of a file. `section` is the path as written; `meant` the section that the user probably means, which differs from it
/// inside an unknown section: there keys are only checked for their names.
class Walker {
 public:
  explicit Walker(Draft& draft) : draft_(draft) {}

  void table(const toml::table& t, const std::string& section, const std::string& meant) {
    for (auto& [key, node] : t) {
      std::string path = join(section, key.str()), target = join(meant, key.str());
      DeckPlace at = place_of(draft_.file, key.source());
      if (node.is_table() && !find_key(target)) {
        sub_table(*node.as_table(), path, target, at);
      } else if (is_section(target)) {
        add(at, path, fmt::format("is a section, not a key; its keys are set under [{}]", target));
      } else if (!find_key(target)) {
        unknown_key(path, target, at);
      } else if (path == target) {
        Entry& entry = draft_.entries.find(path)->second;
        entry.literal = to_literal(*find_key(path), node), entry.given = true, entry.place = place_of(draft_.file, node.source());
      } else {
        mention(target);
      }
    }
  }

 private:
  void sub_table(const toml::table& t, const std::string& path, const std::string& target, const DeckPlace& at) {
    if (is_section(target)) return table(t, path, target);
    Hint hint = hint_for_section(target);
    // The section's own fault stands at its header, and then its keys are read as if they stood in the right one.
    add(at, path, hint.message);
    std::string meant = find_key(hint.replacement) ? "" : hint.replacement;
    if (find_key(hint.replacement)) mention(hint.replacement);
    if (!meant.empty()) table(t, path, meant);
  }

  void unknown_key(const std::string& path, const std::string& target, const DeckPlace& at) {
    Hint hint = hint_for_key(target);
    add(at, path, hint.message);
    mention(hint.replacement);
  }

  /// A key that was written wrongly is not reported as missing too.
  void mention(const std::string& key) {
    if (auto it = draft_.entries.find(key); it != draft_.entries.end()) it->second.faulty = true;
    for (auto& [name, entry] : draft_.entries) {
      if (!key.empty() && name.starts_with(key + ".")) entry.faulty = true;
    }
  }

  void add(const DeckPlace& at, const std::string& key, const std::string& message) {
    draft_.faults.push_back({at.file, at.line, at.column, key, message});
  }

  Draft& draft_;
};

/// The value of an override: TOML where it is TOML, otherwise the bare text. Keys that hold text take anything as it is that is not in
/// quotes or brackets.
Literal override_value(const Key& key, const std::string& text) {
  // "a" is a text with its quotes, ["a", "b"] a list.
  const bool holds_text = key.type == KeyType::text || key.type == KeyType::paths;
  const bool written_as_toml = !holds_text || std::string_view("\"'[{").find(text.front()) != std::string_view::npos;
  if (text.find('\n') == std::string::npos && written_as_toml && !too_deep(text)) {
    try {
      return to_literal(key, *toml::parse("v = " + text).get("v"));
    } catch (const toml::parse_error&) {
      // Not TOML: a bare word.
    }
  }
  return {text, ""};
}

bool is_valid_text(const Literal& literal) {
  if (!std::holds_alternative<std::string>(literal.value) && !std::holds_alternative<std::vector<std::string>>(literal.value)) return true;
  try {
    [[maybe_unused]] toml::table ignored = toml::parse("v = " + literal.str());  // strings: dots in them nest nothing
    return true;
  } catch (const toml::parse_error&) {
    return false;
  }
}

std::string override_name(const std::string& text) { return fmt::format("override '{}'", shortened(text)); }

void apply_override(Draft& draft, const std::string& text) {
  DeckPlace at{override_name(text), 0, 0};
  auto add = [&](const std::string& key, const std::string& message) { draft.faults.push_back({at.file, 0, 0, key, message}); };
  auto equals = text.find('=');
  auto trim = [](std::string s) {
    s.erase(0, s.find_first_not_of(" \t"));
    s.erase(s.find_last_not_of(" \t") + 1);
    return s;
  };
  std::string name = trim(text.substr(0, equals));
  if (equals == std::string::npos || name.empty()) return add("", "an override is written key=value, for example run.steps=100");
  const Key* key = find_key(name);
  if (!key && is_section(name))
    return add(shortened(name), fmt::format("is a section, not a key; set one of its keys, for example {}.KEY=value", name));
  if (!key) {
    Hint hint = hint_for_key(name);
    if (auto it = draft.entries.find(hint.replacement); it != draft.entries.end() && !it->second.given) it->second.faulty = true;
    return add(shortened(name), hint.message);
  }
  Entry& entry = draft.entries.find(name)->second;
  std::string value = trim(text.substr(equals + 1));
  if (value.empty()) return entry.faulty = true, add(name, fmt::format("the override has no value; write {}=VALUE", name));
  entry.literal = override_value(*key, value), entry.place = at, entry.given = true;
}

/// Converts every given value; reports keys that are missing.
void convert(Draft& draft, bool whole) {
  for (const Key& key : deck_keys()) {
    Entry& entry = draft.entries.find(key.name)->second;
    if (!entry.given && (key.required || entry.faulty)) {
      if (whole && !entry.faulty) {
        std::string help(key.help.substr(0, key.help.size() - 1));
        draft.faults.push_back({draft.file, 0, 0, std::string(key.name),
                                fmt::format("is required and missing: {}; add `{} = ...` under [{}]{}", help, key.leaf(), key.section(),
                                            key.unit.empty() ? "" : fmt::format(" (unit: {})", key.unit))});
      }
      entry.faulty = true;
      continue;
    }
    if (!entry.given) {  // the deck began with the default
      entry.is_auto = is_auto_by_default(key);
      continue;
    }
    std::string message = is_valid_text(entry.literal) ? assign(key, entry.literal, draft.deck, entry.is_auto) : "is not valid UTF-8 text";
    entry.faulty = !message.empty();
    if (entry.faulty) draft.faults.push_back({entry.place.file, entry.place.line, entry.place.column, std::string(key.name), message});
  }
}

/// By place in the file, then overrides in their order, then missing keys in schema order.
void sort_faults(std::vector<Fault>& faults, const std::vector<std::string>& overrides) {
  auto rank = [&](const Fault& f) {
    auto same = std::find_if(overrides.begin(), overrides.end(), [&](const std::string& o) { return f.file == override_name(o); });
    std::ptrdiff_t after_file = same - overrides.begin() + 1;
    return std::tuple(f.line > 0 ? 0 : after_file, f.line, f.column);
  };
  std::stable_sort(faults.begin(), faults.end(), [&](const Fault& a, const Fault& b) { return rank(a) < rank(b); });
}

/// `stored`: by a run of whatever version, which had these values.
ParsedDeck read_deck(const std::string& text, const std::string& name, const std::vector<std::string>& overrides, int ranks, bool stored,
                     const CountSteps& count) {
  Draft draft;
  draft.file = name, draft.stored = stored;
  for (const Key& key : deck_keys()) draft.entries.emplace(std::string(key.name), Entry{});
  toml::table tables;
  bool whole = read_toml(text, name, tables, draft.faults);
  Walker(draft).table(tables, "", "");
  for (const std::string& o : overrides) apply_override(draft, o);
  convert(draft, whole);
  // After a syntax fault parts of the file were skipped, so rules between keys would report what is not wrong.
  if (whole) {
    resolve_auto(draft, ranks);
    check_rules(draft);
    check_ramp(draft, ranks);
    settle_steps(draft, count);
    check_steps(draft);
  }
  sort_faults(draft.faults, overrides);
  std::map<std::string, DeckPlace> places;
  for (const auto& [key, entry] : draft.entries)
    if (entry.given) places.emplace(key, entry.place);
  return {draft.deck, draft.faults, draft.resolved, std::move(places)};
}

}  // namespace

ParsedDeck parse_deck_text(const std::string& text, const std::string& name, const std::vector<std::string>& overrides, int ranks,
                           const CountSteps& count) {
  return read_deck(text, name, overrides, ranks, false, count);
}

ParsedDeck parse_stored_deck(const std::string& text, const std::string& name, const std::string& device) {
  // A deck that was stored under an older name of a key is read all the same.
  const std::string before = "\nhost_limit = ", now = "\nhost = ";
  std::string current = text;
  if (const auto at = current.find(before); at != current.npos) current.replace(at, before.size(), now);
  ParsedDeck parsed = read_deck(current, name, {"run.device=" + device}, 0, true, {});
  if (parsed.faults.empty() || device != "auto") return parsed;
  // It may ask for what has no effect on the device that it names, and that another one does not do.
  ParsedDeck there = read_deck(current, name, {}, 0, true, {});
  if (!there.faults.empty()) return parsed;
  there.deck.run.device = RunDevice::automatic;
  return there;
}

namespace {

/// By its name, or because it begins as no TOML does.
bool is_json(const std::string& path, const std::string& text) {
  const auto first = text.find_first_not_of(" \t\r\n");
  return path.ends_with(".json") || (first != text.npos && text[first] == '{');
}

}  // namespace

ParsedDeck parse_deck(const std::string& path, const std::vector<std::string>& overrides, int ranks, const CountSteps& count) {
  std::string text, why;
  if (!read_regular(path, most_deck_bytes, text, why)) {
    ParsedDeck parsed;
    parsed.faults.push_back({path, 0, 0, "", why});
    return parsed;
  }
  if (is_json(path, text)) {
    ParsedDeck parsed;
    parsed.faults.push_back({path, 0, 0, "",
                             fmt::format("this is JSON, but a deck is TOML; `tessera deck import {} --model NAME --ranks N > mine.toml` "
                                         "makes a deck from a DeepSpeed configuration",
                                         path)});
    return parsed;
  }
  return parse_deck_text(text, path, overrides, ranks, count);
}

std::string Fault::str() const {
  std::string out = file;
  if (line > 0) out += fmt::format(":{}:{}", line, column);
  return key.empty() ? fmt::format("{}: {}", out, message) : fmt::format("{}: {}: {}", out, key, message);
}

bool is_allowed(const Deck& deck, int ranks, const std::vector<std::string>& overrides) {
  return parse_deck_text(print_deck(deck), "the changed deck", overrides, ranks).faults.empty();
}

Deck require_deck(const ParsedDeck& parsed) {
  if (parsed.faults.empty()) return parsed.deck;
  std::string all = fmt::format("the deck has {}:", parsed.faults.size() == 1 ? "a fault" : fmt::format("{} faults", parsed.faults.size()));
  for (const Fault& f : parsed.faults) all += "\n  " + f.str();
  throw Error(ExitCode::usage, all);
}

}  // namespace tessera
