// Values as text, for decks and messages.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>

#include "deck/schema/groups.hpp"
#include "deck/schema/kinds.hpp"
#include "deck/schema/phases.hpp"
#include "deck/schema/value.hpp"

namespace tessera {

std::string Literal::str() const {
  if (auto* v = std::get_if<std::int64_t>(&value)) return fmt::format("{}", *v);
  if (auto* v = std::get_if<double>(&value)) return shortest(*v);
  if (auto* v = std::get_if<bool>(&value)) return *v ? "true" : "false";
  if (auto* v = std::get_if<std::string>(&value)) return toml_string(*v);
  if (auto* v = std::get_if<std::vector<std::string>>(&value)) {
    std::vector<std::string> quoted;
    for (const std::string& text : *v) quoted.push_back(toml_string(text));
    return fmt::format("[{}]", fmt::join(quoted, ", "));
  }
  if (auto* v = std::get_if<std::vector<OptimizerGroup>>(&value)) return groups_text(*v);
  if (auto* v = std::get_if<std::vector<RampPhase>>(&value)) return phases_text(*v);
  if (auto* v = std::get_if<std::vector<KindKeys>>(&value)) return kinds_text(*v);
  if (auto* v = std::get_if<std::vector<std::int64_t>>(&value)) return fmt::format("[{}]", fmt::join(*v, ", "));
  if (auto* v = std::get_if<std::vector<double>>(&value)) {
    std::vector<std::string> numbers;
    for (const double number : *v) numbers.push_back(shortest(number));
    return fmt::format("[{}]", fmt::join(numbers, ", "));
  }
  return kind;
}

std::string limits_text(const Limits& l) {
  auto number = [](double v) {
    return v == std::floor(v) && std::abs(v) < 1e9 ? fmt::format("{}", static_cast<std::int64_t>(v)) : fmt::format("{}", v);
  };
  if (l.least && l.most && *l.least == *l.most) return "only " + number(*l.least);
  std::vector<std::string> parts;
  if (l.least) parts.push_back("at least " + number(*l.least));
  if (l.above) parts.push_back("above " + number(*l.above));
  if (l.most) parts.push_back("at most " + number(*l.most));
  if (l.below) parts.push_back("below " + number(*l.below));
  return fmt::format("{}", fmt::join(parts, " and "));
}

std::string toml_string(std::string_view text) {
  std::string out = "\"";
  for (char c : text) {
    auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\u{:04X}", byte);
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string shortened(const std::string& text) {
  std::size_t most = 200;
  if (text.size() <= most) return text;
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xc0) == 0x80) --most;  // not inside a character of UTF-8
  return text.substr(0, most) + "...";
}

std::string lower_case(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

std::string shortest(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::array<char, 32> buffer;
  auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr;
  std::string text(buffer.data(), end);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

}  // namespace tessera
