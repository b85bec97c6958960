#include "deck/schema/json_tree.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include "base/json.hpp"

namespace tessera {
namespace {

constexpr std::size_t most_depth = 64;  // a configuration has four

/// Comments and commas before a closing bracket become spaces: every other byte stays where it is.
std::string plain_json(const std::string& text) {
  std::string plain = text;
  std::size_t comma = std::string::npos;  // the last one, while only spaces have followed it
  const auto blank = [&](std::size_t from, std::size_t to) {
    std::replace_if(
        plain.begin() + static_cast<std::ptrdiff_t>(from), plain.begin() + static_cast<std::ptrdiff_t>(to),
        [](char c) { return c != '\n'; }, ' ');
  };
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    const bool line_comment = c == '#' || text.compare(at, 2, "//") == 0;
    if (line_comment || text.compare(at, 2, "/*") == 0) {
      const std::size_t end = line_comment ? text.find('\n', at) : text.find("*/", at + 2);
      if (!line_comment && end == std::string::npos) break;  // the parser finds it where it begins
      const std::size_t after = end == std::string::npos ? text.size() : line_comment ? end : end + 2;
      blank(at, after);
      at = after - 1;
    } else if (c == '"') {
      comma = std::string::npos;
      for (++at; at < text.size() && text[at] != '"'; ++at) at += text[at] == '\\';
    } else if (c == ',') {
      comma = at;
    } else if (c != ' ' && c != '\t' && c != '\n' && c != '\r') {
      if ((c == '}' || c == ']') && comma != std::string::npos) blank(comma, comma + 1);
      comma = std::string::npos;
    }
  }
  return plain;
}

/// Lines and columns, in characters, of bytes of a text.
class Places {
 public:
  explicit Places(const std::string& text) : text_(text) {
    for (std::size_t at = 0; at < text.size(); ++at)
      if (text[at] == '\n') lines_.push_back(at + 1);
  }
  JsonPlace of(std::size_t byte) const {
    const auto line = std::upper_bound(lines_.begin(), lines_.end(), byte) - 1;
    const auto begin = text_.begin() + static_cast<std::ptrdiff_t>(*line);
    const auto end = text_.begin() + static_cast<std::ptrdiff_t>(std::min(byte, text_.size()));
    const auto characters = std::count_if(begin, end, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
    return {static_cast<int>(line - lines_.begin()) + 1, static_cast<int>(characters) + 1};
  }

 private:
  const std::string& text_;
  std::vector<std::size_t> lines_ = {0};
};

/// Receives what the parser finds.
class TreeBuilder : public JsonEvents {
 public:
  /// `plain` is `text` without its comments, byte for byte in the same place.
  TreeBuilder(const std::string& text, const std::string& plain, const std::string& file, JsonNode& root, std::vector<Fault>& faults)
      : text_(plain), places_(text), file_(file), root_(root), faults_(faults) {}

  bool parse() {
    const bool whole = read_json_events(text_, *this, &taken_);
    if (whole && root_.kind != JsonNode::Kind::object) return add(places_.of(0), "", "a configuration is an object: { ... }"), false;
    return whole;
  }

  bool null() override { return scalar(JsonNode::Kind::null, {std::monostate{}, "null"}, word_begin()); }
  bool boolean(bool value) override { return scalar(JsonNode::Kind::boolean, {value, ""}, word_begin()); }
  bool integer(std::int64_t value) override { return scalar(JsonNode::Kind::integer, {value, ""}, word_begin()); }
  bool natural(std::uint64_t value) override { return scalar(JsonNode::Kind::real, {static_cast<double>(value), ""}, word_begin()); }
  bool real(double value) override { return scalar(JsonNode::Kind::real, {value, ""}, word_begin()); }
  bool text(std::string& value) override {
    const std::size_t begin = quote_begin();
    return scalar(JsonNode::Kind::text, {value, ""}, begin);
  }
  bool begin_object() override { return open(JsonNode::Kind::object, "an object { ... }"); }
  bool begin_list() override { return open(JsonNode::Kind::list, "a list [ ... ]"); }
  bool end_object() override { return close(); }
  bool end_list() override { return close(); }

  bool key(std::string& name) override {
    name_ = name;
    name_place_ = places_.of(quote_begin());
    const auto& members = open_.back()->children;
    if (std::any_of(members.begin(), members.end(), [&](const JsonNode& m) { return m.name == name; }))
      add(name_place_, name, "given twice; leave one of the two out");
    return true;
  }

  bool fault(std::size_t position, const std::string& reason, bool) override {
    const std::size_t at = position > 0 ? position - 1 : 0;
    if (open_.empty() && !root_.children.empty() && at < text_.size() && (text_[at] == '{' || text_[at] == '[')) {
      add(places_.of(at), "",
          "another JSON document begins here, but a configuration must be the only one of its file: leave the others out. Only tokenize "
          "takes one of several (--document N)");
      return false;
    }
    std::string what = reason;  // "parse error at line 3, column 5: syntax error while parsing ..."
    if (const auto colon = what.find(": "); colon != std::string::npos) what.erase(0, colon + 2);
    add(places_.of(at), "", shortened(what));
    return false;
  }

 private:
  std::size_t end() const { return static_cast<std::size_t>(taken_ - text_.data()); }

  /// A number's end is found by the character after it, which the parser has taken too.
  std::size_t word_begin() {
    const auto in_word = [&](std::size_t at) {
      return std::isalnum(static_cast<unsigned char>(text_[at])) || std::strchr("+-.", text_[at]);
    };
    word_end_ = end();
    if (word_end_ > 0 && !in_word(word_end_ - 1)) --word_end_;
    std::size_t begin = word_end_;
    while (begin > 0 && in_word(begin - 1)) --begin;
    return begin;
  }

  /// Of the text whose closing quote was taken last: inside it every quote has a backslash before it.
  std::size_t quote_begin() {
    std::size_t begin = end() - 1;
    const auto escaped = [&](std::size_t at) {
      std::size_t slashes = 0;
      while (at > slashes && text_[at - 1 - slashes] == '\\') ++slashes;
      return slashes % 2 == 1;
    };
    while (begin > 0 && (text_[--begin] != '"' || escaped(begin))) {
    }
    return begin;
  }

  JsonNode* add_node(JsonNode::Kind kind, Literal literal, std::size_t begin) {
    JsonNode* node = &root_;
    if (!open_.empty()) node = &open_.back()->children.emplace_back();
    node->kind = kind;
    node->literal = std::move(literal);
    node->place = places_.of(begin);
    node->name = std::exchange(name_, "");
    node->name_place = name_place_;
    return node;
  }

  bool scalar(JsonNode::Kind kind, const Literal& literal, std::size_t begin) {
    JsonNode* node = add_node(kind, literal, begin);
    node->written = kind == JsonNode::Kind::text ? std::get<std::string>(literal.value) : text_.substr(begin, word_end_ - begin);
    return true;
  }

  bool open(JsonNode::Kind kind, const char* what) {
    if (open_.size() >= most_depth)
      return add(places_.of(end() - 1), "", fmt::format("more than {} brackets inside each other", most_depth)), false;
    open_.push_back(add_node(kind, {std::monostate{}, what}, end() - 1));
    return true;
  }
  bool close() { return open_.pop_back(), true; }

  void add(JsonPlace place, const std::string& key, const std::string& message) {
    faults_.push_back({file_, place.line, place.column, key, message});
  }

  const std::string& text_;
  const Places places_;
  const std::string& file_;
  JsonNode& root_;
  std::vector<Fault>& faults_;
  const char* taken_ = nullptr;
  std::size_t word_end_ = 0;
  std::string name_;
  JsonPlace name_place_;
  std::vector<JsonNode*> open_;  // an open node is the last child of the one before it, so none of them moves
};

}  // namespace

const JsonNode* JsonNode::member(std::string_view wanted) const {
  const auto it = std::find_if(children.begin(), children.end(), [&](const JsonNode& c) { return c.name == wanted; });
  return kind == Kind::object && it != children.end() && it->kind != Kind::null ? &*it : nullptr;
}

double JsonNode::number() const {
  if (const auto* whole = std::get_if<std::int64_t>(&literal.value)) return static_cast<double>(*whole);
  return std::get<double>(literal.value);
}

bool read_json(const std::string& text, const std::string& file, JsonNode& root, std::vector<Fault>& faults) {
  return TreeBuilder(text, plain_json(text), file, root, faults).parse();
}

}  // namespace tessera
