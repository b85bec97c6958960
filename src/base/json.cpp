#include "base/json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <ostream>
#include <utility>

#include "base/printable.hpp"

namespace tessera {
namespace {

using Library = nlohmann::json;

constexpr std::size_t most_depth = 512;  // what is nested deeper is no file that anybody wrote

/// What the library says, without its own name.
std::string reason_of(const Library::exception& error) {
  std::string text = error.what();
  if (const auto end = text.find("] "); text.starts_with("[json") && end != std::string::npos) text.erase(0, end + 2);
  return text;
}

/// Hands bytes to the parser and notes how many it has taken: a value ends where the parser is when it reports it.
struct Counted {
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  const char* at;
  const char** taken;
  reference operator*() const { return *at; }
  Counted& operator++() {
    *taken = ++at;
    return *this;
  }
  friend bool operator==(const Counted& a, const Counted& b) { return a.at == b.at; }
};

/// The library's words for ours.
class Heard : public Library::json_sax_t {
 public:
  explicit Heard(JsonEvents& events) : events_(events) {}
  bool null() override { return events_.null(); }
  bool boolean(bool value) override { return events_.boolean(value); }
  bool number_integer(number_integer_t value) override { return events_.integer(value); }
  bool number_unsigned(number_unsigned_t value) override {
    return std::in_range<std::int64_t>(value) ? events_.integer(static_cast<std::int64_t>(value)) : events_.natural(value);
  }
  bool number_float(number_float_t value, const string_t&) override { return events_.real(value); }
  bool binary(binary_t&) override { return false; }  // not in texts
  bool string(string_t& value) override { return events_.text(value); }
  bool key(string_t& name) override { return events_.key(name); }
  bool start_object(std::size_t) override { return events_.begin_object(); }
  bool end_object() override { return events_.end_object(); }
  bool start_array(std::size_t) override { return events_.begin_list(); }
  bool end_array() override { return events_.end_list(); }
  bool parse_error(std::size_t byte, const std::string&, const Library::exception& error) override {
    return events_.fault(byte, reason_of(error), dynamic_cast<const Library::parse_error*>(&error) != nullptr);
  }

 private:
  JsonEvents& events_;
};

}  // namespace

/// Builds a value of what is heard.
class JsonTree : public JsonEvents {
 public:
  explicit JsonTree(bool strict) : strict_(strict) {}
  bool null() override { return put({}); }
  bool boolean(bool value) override { return put(value); }
  bool integer(std::int64_t value) override { return put(value); }
  bool natural(std::uint64_t value) override { return put(value); }
  bool real(double value) override { return put(value); }
  bool text(std::string& value) override { return put(std::move(value)); }
  bool key(std::string& name) override {
    keys_.back() = std::move(name);
    return true;
  }
  bool begin_object() override { return open(Json::object()); }
  bool begin_list() override { return open(Json::array()); }
  bool end_object() override { return leave_last_of_each(open_.back()), close(); }
  bool end_list() override { return close(); }
  bool fault(std::size_t, const std::string& reason, bool) override { throw JsonError(reason); }
  Json whole() { return std::move(root_); }

 private:
  bool put(Json value) {
    if (open_.empty()) return root_ = std::move(value), true;
    Json& home = open_.back();
    if (home.kind_ == Json::Kind::list)
      home.of_.list->push_back(std::move(value));
    else
      home.of_.object->push_back({std::move(keys_.back()), std::move(value)});
    return true;
  }
  bool open(Json value) {
    if (open_.size() == most_depth) throw JsonError(fmt::format("it is nested deeper than {} levels", most_depth));
    open_.push_back(std::move(value)), keys_.emplace_back();
    return true;
  }
  bool close() {
    Json value = std::move(open_.back());
    open_.pop_back(), keys_.pop_back();
    return put(std::move(value));
  }
  /// Of a key that stands there several times, in the place of the first.
  void leave_last_of_each(Json& object) const {
    auto& members = *object.of_.object;
    std::vector<std::size_t> order(members.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::ranges::stable_sort(order, {}, [&](std::size_t i) -> const std::string& { return members[i].key; });
    std::vector<std::size_t> gone;
    for (std::size_t i = 0, first = 0; i < order.size(); ++i) {
      if (members[order[i]].key != members[order[first]].key) first = i;
      if (i == first) continue;
      if (strict_) throw JsonError(fmt::format("{} is there twice", printable_name(members[order[i]].key)));
      members[order[first]].value = std::move(members[order[i]].value);
      gone.push_back(order[i]);
    }
    std::ranges::sort(gone, std::greater<>());
    for (const std::size_t i : gone) members.erase(members.begin() + static_cast<std::ptrdiff_t>(i));
  }
  bool strict_;
  Json root_;
  std::vector<Json> open_;
  std::vector<std::string> keys_;  ///< of what is open: of the member to come
};

Json::Json(std::string text) : kind_(Kind::text) { of_.text = new std::string(std::move(text)); }

Json::Json(std::initializer_list<Json> values) {
  const bool pairs = std::ranges::all_of(values, [](const Json& v) { return v.is_array() && v.size() == 2 && v[0].is_string(); });
  if (!pairs) {
    *this = array(values);
    return;
  }
  *this = object();
  for (const Json& v : values) (*this)[v[0].text()] = v[1];
}

Json Json::array(std::initializer_list<Json> values) {
  Json list;
  list.become_list();
  list.of_.list->assign(values);
  return list;
}

Json Json::object() {
  Json object;
  object.of_.object = new std::vector<Member>();
  object.kind_ = Kind::object;
  return object;
}

void Json::become_list() {
  of_.list = new std::vector<Json>();
  kind_ = Kind::list;
}

Json::Json(const Json& other) : kind_(other.kind_), of_(other.of_) {
  if (kind_ == Kind::text) of_.text = new std::string(*other.of_.text);
  if (kind_ == Kind::list) of_.list = new std::vector<Json>(*other.of_.list);
  if (kind_ == Kind::object) of_.object = new std::vector<Member>(*other.of_.object);
}

void Json::destroy() {
  if (kind_ == Kind::text) delete of_.text;
  if (kind_ == Kind::list) delete of_.list;
  if (kind_ == Kind::object) delete of_.object;
}

const char* Json::kind_name() const {
  constexpr const char* names[] = {"null", "boolean", "number", "number", "number", "string", "array", "object"};
  return names[static_cast<std::size_t>(kind_)];
}

void Json::refuse(const char* wanted) const { throw JsonError(fmt::format("type must be {}, but is {}", wanted, kind_name())); }

std::size_t Json::size() const {
  if (kind_ == Kind::object) return of_.object->size();
  return kind_ == Kind::list ? of_.list->size() : kind_ == Kind::null ? 0 : 1;
}

const std::vector<Json>& Json::list() const { return kind_ == Kind::list ? *of_.list : (refuse("array"), *of_.list); }

const std::vector<Json>& Json::elements() const {
  static const std::vector<Json> none;
  return kind_ == Kind::null ? none : list();
}

std::vector<Json>& Json::elements() {
  if (kind_ == Kind::null) become_list();
  return const_cast<std::vector<Json>&>(list());
}

const Json& Json::at(std::size_t index) const {
  const auto& all = list();
  if (index >= all.size()) throw JsonError(fmt::format("array index {} is out of range", index));
  return all[index];
}

void Json::push_back(Json value) { elements().push_back(std::move(value)); }

const std::vector<Json::Member>& Json::items() const {
  static const std::vector<Member> none;
  if (kind_ == Kind::null) return none;
  return kind_ == Kind::object ? *of_.object : (refuse("object"), none);
}

const Json* Json::find(std::string_view key) const {
  const auto& all = items();
  const auto found = std::ranges::find(all, key, &Member::key);
  return found == all.end() ? nullptr : &found->value;
}

const Json& Json::at(std::string_view key) const {
  if (const Json* found = find(key)) return *found;
  throw JsonError(fmt::format("key '{}' not found", printable(std::string(key))));
}

Json& Json::operator[](std::string_view key) {
  if (kind_ == Kind::null) *this = object();
  if (const Json* found = find(key)) return const_cast<Json&>(*found);
  return of_.object->emplace_back(std::string(key), Json()).value;
}

Json& Json::nested(std::string_view path, char separator) {
  const std::size_t end = path.find(separator);
  Json& first = (*this)[path.substr(0, end)];
  return end == std::string_view::npos ? first : first.nested(path.substr(end + 1), separator);
}

void Json::erase(std::string_view key) {
  items();
  if (kind_ == Kind::object) std::erase_if(*of_.object, [&](const Member& member) { return member.key == key; });
}

void Json::update(const Json& object) {
  for (const auto& [key, value] : object.items()) (*this)[key] = value;
}

bool Json::boolean() const { return kind_ == Kind::boolean ? of_.boolean : (refuse("boolean"), false); }

double Json::real() const {
  if (kind_ == Kind::integer) return static_cast<double>(of_.integer);
  if (kind_ == Kind::natural) return static_cast<double>(of_.natural);
  return kind_ == Kind::real ? of_.real : (refuse("number"), 0);
}

std::int64_t Json::integer(std::int64_t least, std::int64_t most) const {
  std::int64_t value = 0;
  bool held = true;
  if (kind_ == Kind::integer) value = of_.integer;
  if (kind_ == Kind::natural) value = static_cast<std::int64_t>(of_.natural), held = std::in_range<std::int64_t>(of_.natural);
  if (kind_ == Kind::real) {
    held = std::trunc(of_.real) == of_.real && std::abs(of_.real) < 0x1p63;
    value = held ? static_cast<std::int64_t>(of_.real) : 0;
  }
  if (!is_number()) refuse("number");
  if (!held || value < least || value > most) throw JsonError(fmt::format("{} is not a whole number from {} to {}", dump(), least, most));
  return value;
}

std::uint64_t Json::natural(std::uint64_t most) const {
  if (kind_ == Kind::natural && of_.natural <= most) return of_.natural;
  if (!is_number()) refuse("number");
  const bool held = kind_ == Kind::integer ? of_.integer >= 0
                                           : kind_ == Kind::real && std::trunc(of_.real) == of_.real && of_.real >= 0 && of_.real < 0x1p64;
  const std::uint64_t value = !held                    ? 0
                              : kind_ == Kind::integer ? static_cast<std::uint64_t>(of_.integer)
                                                       : static_cast<std::uint64_t>(of_.real);
  if (!held || value > most) throw JsonError(fmt::format("{} is not a whole number from 0 to {}", dump(), most));
  return value;
}

const std::string& Json::text() const { return kind_ == Kind::text ? *of_.text : (refuse("string"), *of_.text); }

bool Json::equal(const Json& a, const Json& b) {
  if (a.is_number() && b.is_number()) {
    if (a.kind_ == Kind::real || b.kind_ == Kind::real) return a.real() == b.real();
    if (a.kind_ == b.kind_) return a.of_.integer == b.of_.integer;
    return a.kind_ == Kind::integer ? std::cmp_equal(a.of_.integer, b.of_.natural) : std::cmp_equal(a.of_.natural, b.of_.integer);
  }
  if (a.kind_ != b.kind_) return false;
  switch (a.kind_) {
    case Kind::boolean:
      return a.of_.boolean == b.of_.boolean;
    case Kind::text:
      return *a.of_.text == *b.of_.text;
    case Kind::list:
      return *a.of_.list == *b.of_.list;
    case Kind::object:
      return a.size() == b.size() && std::ranges::all_of(a.items(), [&](const Member& m) {
               const Json* other = b.find(m.key);
               return other && *other == m.value;
             });
    default:
      return true;
  }
}

std::partial_ordering Json::order(const Json& a, const Json& b) {
  if (!a.is_number() || !b.is_number()) return std::partial_ordering::unordered;
  return equal(a, b) ? std::partial_ordering::equivalent : a.real() <=> b.real();
}

std::ostream& operator<<(std::ostream& out, const Json& json) { return out << json.dump(-1, BadText::replace); }

namespace {
void write_text(std::string& to, const std::string& text, BadText bad) {
  const auto simple = [](char c) { return c >= ' ' && c < 0x7f && c != '"' && c != '\\'; };
  if (std::ranges::all_of(text, simple)) {
    to.append(1, '"').append(text).append(1, '"');
    return;
  }
  try {
    to +=
        Library(text).dump(-1, ' ', false, bad == BadText::replace ? Library::error_handler_t::replace : Library::error_handler_t::strict);
  } catch (const Library::exception& error) {
    throw JsonError(reason_of(error));
  }
}
}  // namespace

void Json::write(std::string& to, int indent, int depth, BadText bad) const {
  const auto line = [&](int levels) {
    if (indent >= 0) to.append(1, '\n').append(static_cast<std::size_t>(indent * levels), ' ');
  };
  switch (kind_) {
    case Kind::null:
      to += "null";
      return;
    case Kind::boolean:
      to += of_.boolean ? "true" : "false";
      return;
    case Kind::integer:
      to += std::to_string(of_.integer);
      return;
    case Kind::natural:
      to += std::to_string(of_.natural);
      return;
    case Kind::real:
      to += Library(of_.real).dump();
      return;
    case Kind::text:
      return write_text(to, *of_.text, bad);
    case Kind::list:
    case Kind::object:
      break;
  }
  const bool list = kind_ == Kind::list;
  if (empty()) return void(to += list ? "[]" : "{}");
  to += list ? '[' : '{';
  for (std::size_t i = 0; i < size(); ++i) {
    if (i > 0) to += ',';
    line(depth + 1);
    if (!list) {
      write_text(to, (*of_.object)[i].key, bad);
      to += indent >= 0 ? ": " : ":";
    }
    (list ? (*of_.list)[i] : (*of_.object)[i].value).write(to, indent, depth + 1, bad);
  }
  line(depth);
  to += list ? ']' : '}';
}

std::string Json::dump(int indent, BadText bad) const {
  std::string text;
  write(text, indent, 0, bad);
  return text;
}

bool read_json_events(std::string_view text, JsonEvents& events, const char** taken) {
  Heard heard(events);
  const char* at = nullptr;
  if (!taken) taken = &at;
  *taken = text.data();
  return Library::sax_parse(Counted{text.data(), taken}, Counted{text.data() + text.size(), taken}, &heard);
}

namespace {
Json parse_text(std::string_view text, bool strict) {
  JsonTree tree(strict);
  Heard heard(tree);
  Library::sax_parse(text, &heard);
  return tree.whole();
}
}  // namespace

Json Json::parse(std::string_view text) { return parse_text(text, false); }
Json Json::parse_strict(std::string_view text) { return parse_text(text, true); }
std::optional<Json> Json::try_parse(std::string_view text) {
  try {
    return parse(text);
  } catch (const JsonError&) {
    return std::nullopt;
  }
}

}  // namespace tessera
