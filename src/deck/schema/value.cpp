#include "deck/schema/value.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/check.hpp"
#include "deck/schema/groups.hpp"
#include "deck/schema/hints.hpp"
#include "deck/schema/kinds.hpp"
#include "deck/schema/phases.hpp"
#include "deck/schema/quantity.hpp"

namespace tessera {
namespace {

template <class T>
T& field(const Key& key, Deck& deck) {
  return std::get<T& (*)(Deck&)>(key.field)(deck);
}
template <class T>
const T& field(const Key& key, const Deck& deck) {
  return std::get<T& (*)(Deck&)>(key.field)(const_cast<Deck&>(deck));  // the accessor only forms a reference
}

/// "the text "four"", "3.5", "an array": what was found, for messages.
std::string found(const Literal& l) {
  if (std::holds_alternative<std::monostate>(l.value)) return l.kind;
  return (std::holds_alternative<std::string>(l.value) ? "the text " : "") + shortened(l.str());
}

std::string expected_text(const Key& key) {
  std::string what;
  switch (key.type) {
    case KeyType::integer:
      what = "an integer";
      break;
    case KeyType::elements:
      what = "a whole number";
      break;
    case KeyType::real:
      what = "a number";
      break;
    case KeyType::boolean:
      what = "true or false";
      break;
    case KeyType::toggle:
      return "true, false or \"auto\"";
    case KeyType::counted:
      return "a word in double quotes or an integer";
    case KeyType::text:
      return "text in double quotes";
    case KeyType::texts:
      return "a list of texts, for example [\"a\", \"b\"]";
    case KeyType::paths:
      return "text in double quotes, or a list of texts, for example [\"a\", \"b\"]";
    case KeyType::integers:
      return "a list of integers, for example [2, 3]";
    case KeyType::groups:
      return "a list of groups, for example [{ tensors = [\"head.*\"], learning_rate = 1e-4 }]";
    case KeyType::phases:
      return "a list of phases, for example [{ until_step = 100, global = 8 }]";
    case KeyType::kinds:
      return "a list of kinds, for example [{ name = \"L\", window = 1024 }, { name = \"G\" }]";
    case KeyType::reals:
      return "a list of numbers, for example [0.7, 0.3]";
    case KeyType::bytes:
    case KeyType::duration:
      what = "text with a unit";
      break;
  }
  if (!key.unit.empty() && !quantity_of(key)) what += fmt::format(" ({})", key.unit);
  if (key.automatic != Auto::no) what += " or \"auto\"";
  if (!key.zero.empty()) what += fmt::format(" or {}", toml_string(key.zero));
  return what;
}

std::string wrong_type(const Key& key, const Literal& l) {
  std::string message = fmt::format("expected {}, got {}", expected_text(key), found(l));
  if (auto* text = std::get_if<std::string>(&l.value); text && (*text == "true" || *text == "false") && key.type == KeyType::boolean) {
    message += "; drop the quotes";
  } else if (text && !text->empty() && text->find_first_not_of("0123456789.eE+-_") == std::string::npos) {
    message += "; drop the quotes";
  } else if (const Quantity* q = quantity_of(key)) {
    message += fmt::format("; {}", q->help);
  } else if (auto* real = std::get_if<double>(&l.value); real && std::floor(*real) == *real && std::abs(*real) < 1e15) {
    message += fmt::format("; write {}", static_cast<std::int64_t>(*real));
  }
  return message;
}

/// Checks limits for any number; `shown` is the value as the user wrote it.
std::string check_limits(const Key& key, double value, const std::string& shown) {
  const Limits& l = key.limits;
  bool over = (l.most && value > *l.most) || (l.below && value >= *l.below);
  bool under = (l.least && value < *l.least) || (l.above && value <= *l.above);
  if (over && !key.beyond.empty()) return fmt::format("{} is refused: {}", shown, key.beyond);
  if (!over && !under) return {};
  return fmt::format("{} is out of range: {}{}", shown, limits_text(l), key.unit.empty() ? "" : fmt::format(" ({})", key.unit));
}

std::string refusal(const Key& key, std::string_view value) {
  for (auto& [refused, reason] : key.refused) {
    if (refused == lower_case(std::string(value)))
      return fmt::format("{} is refused: {}", key.type == KeyType::text ? toml_string(value) : std::string(value), reason);
  }
  return {};
}

std::string assign_choice(const Key& key, const std::string& text) {
  for (auto c : key.choices) {
    if (c == text) return {};
  }
  if (std::string r = refusal(key, text); !r.empty()) return r;
  std::vector<std::string> all;
  if (key.automatic != Auto::no) all.push_back("\"auto\"");
  for (auto c : key.choices) all.push_back(toml_string(c));
  if (key.type == KeyType::counted) all.push_back("an integer");
  std::string_view near = nearest(lower_case(text), key.choices);
  return fmt::format("{} is not a value of this key; it takes {}{}", toml_string(text), fmt::join(all, ", "),
                     near.empty() ? "" : fmt::format("; did you mean {}?", toml_string(near)));
}

std::string assign_integer(const Key& key, const Literal& l, std::int64_t& out) {
  if (auto* whole = std::get_if<std::int64_t>(&l.value)) {
    out = *whole;
  } else if (auto* real = std::get_if<double>(&l.value); real && key.type == KeyType::elements) {
    if (!std::isfinite(*real) || *real != std::floor(*real)) return fmt::format("{} is not a whole number of elements", l.str());
    if (std::abs(*real) >= 9.2e18) return fmt::format("{} is out of range: a count of elements is below 9.2e18", l.str());
    out = static_cast<std::int64_t>(*real);
  } else {
    return wrong_type(key, l);
  }
  return check_limits(key, static_cast<double>(out), l.str());
}

std::string assign_real(const Key& key, const Literal& l, double& out) {
  if (auto* real = std::get_if<double>(&l.value)) {
    out = *real;
  } else if (auto* whole = std::get_if<std::int64_t>(&l.value)) {
    out = static_cast<double>(*whole);
  } else {
    return wrong_type(key, l);
  }
  if (!std::isfinite(out)) return fmt::format("{} is not a finite number", l.str());
  return check_limits(key, out, l.str());
}

bool is_empty_list(const Literal& l) {
  const auto* texts = std::get_if<std::vector<std::string>>(&l.value);  // what an empty list is read as
  return texts && texts->empty();
}

std::string assign_integers(const Key& key, const Literal& l, std::vector<std::int64_t>& out) {
  const auto* numbers = std::get_if<std::vector<std::int64_t>>(&l.value);
  if (!numbers && !is_empty_list(l)) return wrong_type(key, l);
  out = numbers ? *numbers : std::vector<std::int64_t>{};
  for (const std::int64_t number : out)
    if (std::string fault = check_limits(key, static_cast<double>(number), fmt::format("{}", number)); !fault.empty()) return fault;
  return {};
}

template <class Table>
std::string assign_tables(const Key& key, const Literal& l, std::vector<Table>& out) {
  const auto* tables = std::get_if<std::vector<Table>>(&l.value);
  if (!tables && !is_empty_list(l)) return wrong_type(key, l);
  out = tables ? *tables : std::vector<Table>{};
  return {};
}

std::string assign_reals(const Key& key, const Literal& l, std::vector<double>& out) {
  out.clear();
  if (const auto* whole = std::get_if<std::vector<std::int64_t>>(&l.value))
    for (const std::int64_t number : *whole) out.push_back(static_cast<double>(number));
  else if (const auto* numbers = std::get_if<std::vector<double>>(&l.value))
    out = *numbers;
  else if (!is_empty_list(l))
    return wrong_type(key, l);
  for (double& number : out)
    if (std::string fault = assign_real(key, {number, ""}, number); !fault.empty()) return fault;
  return {};
}

std::string assign_text(const Key& key, const std::string& text, Deck& deck) {
  if (!key.choices.empty()) {
    if (std::string fault = assign_choice(key, text); !fault.empty()) return fault;
  }
  if (auto* dtype = std::get_if<DType& (*)(Deck&)>(&key.field)) {
    (*dtype)(deck) = float_type_of(text).value();
  } else if (auto* mode = std::get_if<ModeField>(&key.field)) {
    mode->write(deck, text);
  } else {
    field<std::string>(key, deck) = text;
  }
  return {};
}

std::string assign_count(const Key& key, const Literal& literal, Deck& deck) {
  std::int64_t count = 0;
  std::string fault = assign_integer(key, literal, count);
  if (fault.empty()) field<std::string>(key, deck) = std::to_string(count);
  return fault;
}

std::string assign_quantity_of(const Key& key, const std::string& text, std::int64_t& value) {
  const std::string fault = assign_quantity(key, text, value);
  return fault.empty() ? check_limits(key, static_cast<double>(value), toml_string(text)) : fault;
}

void assign_auto(const Key& key, Deck& deck) {
  if (std::holds_alternative<std::int64_t& (*)(Deck&)>(key.field)) {
    field<std::int64_t>(key, deck) = 0;
  } else if (auto* mode = std::get_if<ModeField>(&key.field)) {
    mode->write(deck, "auto");
  } else {
    field<std::string>(key, deck) = "auto";
  }
}

}  // namespace

std::string assign(const Key& key, const Literal& literal, Deck& deck, bool& is_auto) {
  auto* text = std::get_if<std::string>(&literal.value);
  is_auto = text && *text == "auto" && key.automatic != Auto::no;
  if (is_auto) return assign_auto(key, deck), "";
  switch (key.type) {
    case KeyType::integer:
    case KeyType::elements:
      return assign_integer(key, literal, field<std::int64_t>(key, deck));
    case KeyType::real:
      if (text && !key.zero.empty() && *text == key.zero) return field<double>(key, deck) = 0, "";
      return assign_real(key, literal, field<double>(key, deck));
    case KeyType::boolean: {
      auto* truth = std::get_if<bool>(&literal.value);
      if (!truth) return wrong_type(key, literal);
      field<bool>(key, deck) = *truth;
      return refusal(key, *truth ? "true" : "false");
    }
    case KeyType::toggle: {
      auto* truth = std::get_if<bool>(&literal.value);
      if (!truth) return wrong_type(key, literal);
      std::get<ModeField>(key.field).write(deck, *truth ? "true" : "false");
      return {};
    }
    case KeyType::counted:
      return text ? assign_text(key, *text, deck) : assign_count(key, literal, deck);
    case KeyType::text:
      return text ? assign_text(key, *text, deck) : wrong_type(key, literal);
    case KeyType::texts: {
      auto* texts = std::get_if<std::vector<std::string>>(&literal.value);
      if (!texts) return wrong_type(key, literal);
      field<std::vector<std::string>>(key, deck) = *texts;
      return {};
    }
    case KeyType::groups:
      return assign_tables(key, literal, field<std::vector<OptimizerGroup>>(key, deck));
    case KeyType::phases:
      return assign_tables(key, literal, field<std::vector<RampPhase>>(key, deck));
    case KeyType::kinds:
      return assign_tables(key, literal, field<std::vector<KindKeys>>(key, deck));
    case KeyType::paths: {
      auto* texts = std::get_if<std::vector<std::string>>(&literal.value);
      if (!text && !texts) return wrong_type(key, literal);
      field<std::vector<std::string>>(key, deck) = texts ? *texts : std::vector<std::string>{*text};
      return {};
    }
    case KeyType::integers:
      return assign_integers(key, literal, field<std::vector<std::int64_t>>(key, deck));
    case KeyType::reals:
      return assign_reals(key, literal, field<std::vector<double>>(key, deck));
    case KeyType::bytes:
    case KeyType::duration:
      return text ? assign_quantity_of(key, *text, field<std::int64_t>(key, deck)) : wrong_type(key, literal);
  }
  return {};
}

Literal read_value(const Key& key, const Deck& deck) {
  if (std::holds_alternative<std::int64_t& (*)(Deck&)>(key.field)) {
    std::int64_t v = field<std::int64_t>(key, deck);
    if (v == 0 && key.automatic == Auto::kept) return {"auto", ""};
    return {v, ""};
  }
  if (std::holds_alternative<double& (*)(Deck&)>(key.field)) {
    const double v = field<double>(key, deck);
    if (v == 0 && !key.zero.empty()) return {std::string(key.zero), ""};
    return {v, ""};
  }
  if (std::holds_alternative<bool& (*)(Deck&)>(key.field)) return {field<bool>(key, deck), ""};
  if (std::holds_alternative<DType& (*)(Deck&)>(key.field)) return {std::string(name_of(field<DType>(key, deck))), ""};
  if (auto* mode = std::get_if<ModeField>(&key.field)) {
    const std::string_view word = mode->read(deck);
    return key.type == KeyType::toggle && word != "auto" ? Literal{word == "true", ""} : Literal{std::string(word), ""};
  }
  if (key.type == KeyType::texts) return {field<std::vector<std::string>>(key, deck), ""};
  if (key.type == KeyType::paths) {
    const std::vector<std::string>& texts = field<std::vector<std::string>>(key, deck);
    return texts.size() == 1 ? Literal{texts.front(), ""} : Literal{texts, ""};
  }
  if (key.type == KeyType::integers) return {field<std::vector<std::int64_t>>(key, deck), ""};
  if (key.type == KeyType::groups) return {field<std::vector<OptimizerGroup>>(key, deck), ""};
  if (key.type == KeyType::phases) return {field<std::vector<RampPhase>>(key, deck), ""};
  if (key.type == KeyType::kinds) return {field<std::vector<KindKeys>>(key, deck), ""};
  if (key.type == KeyType::reals) return {field<std::vector<double>>(key, deck), ""};
  const std::string& text = field<std::string>(key, deck);
  if (key.type == KeyType::counted && text.find_first_not_of("0123456789") == std::string::npos)
    return {static_cast<std::int64_t>(std::stoll(text)), ""};
  return {text, ""};
}

std::string value_text(const Key& key, const Deck& deck) {
  Literal literal = read_value(key, deck);
  auto* value = std::get_if<std::int64_t>(&literal.value);
  const Quantity* q = quantity_of(key);
  if (!q || !value) return literal.str();
  for (const QuantityUnit& u : q->units) {
    if (*value % u.size == 0) return fmt::format("\"{} {}\"", *value / u.size, u.name);
  }
  return {};
}

const Deck& default_deck() {
  static const Deck deck;
  return deck;
}

bool is_auto_by_default(const Key& key) {
  if (key.required || key.automatic == Auto::no) return false;
  const Literal initial = read_value(key, default_deck());
  const auto* number = std::get_if<std::int64_t>(&initial.value);
  const auto* text = std::get_if<std::string>(&initial.value);
  return (number && *number == 0) || (text && *text == "auto");
}

std::string default_text(const Key& key) {
  if (key.required) return "";
  return is_auto_by_default(key) ? "\"auto\"" : value_text(key, default_deck());
}

}  // namespace tessera
