#include "deck/schema/syntax.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "deck/schema/schema.hpp"
#include "deck/schema/value.hpp"

namespace tessera {
namespace {

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines(1);
  for (char c : text) {
    if (c == '\n') {
      lines.emplace_back();
    } else {
      lines.back() += c;
    }
  }
  return lines;
}

std::string join_lines(const std::vector<std::string>& lines) {
  std::string text;
  for (const auto& l : lines) text += l + "\n";
  return text;
}

bool parses(const std::string& text) {
  try {
    [[maybe_unused]] toml::table ignored = toml::parse(text);
    return true;
  } catch (const toml::parse_error&) {
    return false;
  }
}

std::string trimmed(std::string s) {
  s.erase(0, s.find_first_not_of(" \t\r"));
  s.erase(s.find_last_not_of(" \t\r") + 1);
  return s;
}

bool is_header(const std::string& line) { return trimmed(line).starts_with('['); }

/// `compute = bf16` lacks quotes: says so where the key holds text.
std::string quote_hint(const std::string& line) {
  auto equals = line.find('=');
  if (equals == std::string::npos) return {};
  std::string leaf = trimmed(line.substr(0, equals)), value = trimmed(line.substr(equals + 1, line.find('#') - equals - 1));
  leaf.erase(0, leaf.rfind('.') + 1);
  bool holds_text = std::any_of(deck_keys().begin(), deck_keys().end(), [&](const Key& k) {
    return k.leaf() == leaf && (k.type == KeyType::text || k.type == KeyType::paths || k.type == KeyType::bytes ||
                                k.type == KeyType::duration || (k.automatic != Auto::no && value == "auto"));
  });
  if (!holds_text || value.empty() || value.find_first_of("\"'[]{}") != std::string::npos) return {};
  return fmt::format("; put text in double quotes: {} = {}", leaf, toml_string(value));
}

/// Drops what a fault is about, so that the rest can be read. Returns false where its extent cannot be told.
bool drop(std::vector<std::string>& lines, std::size_t at, bool redefined) {
  if (at >= lines.size()) return false;
  if (is_header(lines[at])) {
    // Without its header a section's keys belong nowhere.
    do lines[at++].clear();
    while (at < lines.size() && !is_header(lines[at]));
    return true;
  }
  // A line that is sound by itself suffers from an earlier one (an array or a text left open): what follows is anyone's guess.
  if (lines[at].find('=') == std::string::npos || (!redefined && parses(lines[at]))) return false;
  lines[at].clear();
  return true;
}

}  // namespace

// A key stands on one line, so a line's dots bound its parts, wherever quotes and brackets are.
bool too_deep(const std::string& line) { return std::count(line.begin(), line.end(), '.') > 1000; }

bool read_toml(const std::string& text, const std::string& file, toml::table& out, std::vector<Fault>& faults) {
  std::vector<std::string> lines = split_lines(text);
  for (std::size_t at = 0; at < lines.size(); ++at)
    if (too_deep(lines[at])) {
      faults.push_back({file, static_cast<int>(at) + 1, 1, "", "more than 1000 dots in a line; a deck's keys have at most three parts"});
      return false;
    }
  bool whole = true;
  for (int round = 0; round < 100; ++round) {
    try {
      out = toml::parse(join_lines(lines), file);
      return whole;
    } catch (const toml::parse_error& e) {
      whole = false;
      int line = static_cast<int>(e.source().begin.line), column = static_cast<int>(e.source().begin.column);
      // A fault found at a line's end is reported at the start of the next one.
      if (column <= 1 && line > 1 && !lines[line - 2].empty() && !parses(lines[line - 2])) {
        column = static_cast<int>(lines[--line - 1].size()) + 1;
      }
      std::string what(e.description());
      bool redefined = what.find("redefine") != std::string::npos;
      std::size_t at = static_cast<std::size_t>(line) - 1;
      std::string hint = at < lines.size() ? quote_hint(lines[at]) : "";
      Fault fault{file, line, column, "", redefined ? fmt::format("given twice: {}", what) : what + hint};
      if (!faults.empty() && faults.back().str() == fault.str()) return false;
      faults.push_back(fault);
      if (!drop(lines, at, redefined)) return false;
    }
  }
  faults.push_back({file, faults.back().line + 1, 1, "", "more lines follow that are not TOML; is this a deck?"});
  return false;
}

Literal scalar_literal(const toml::node& node) {
  if (auto v = node.as_integer()) return {v->get(), ""};
  if (auto v = node.as_floating_point()) return {v->get(), ""};
  if (auto v = node.as_boolean()) return {v->get(), ""};
  if (auto v = node.as_string()) return {v->get(), ""};
  return {std::monostate{}, node.is_table() ? "a section" : node.is_array() ? "an array" : "a date or time"};
}

}  // namespace tessera
