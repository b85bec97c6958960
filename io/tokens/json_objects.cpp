#include "io/tokens/json_objects.hpp"

#include <fmt/format.h>

#include <algorithm>
#include "base/json.hpp"

#include "base/printable.hpp"

namespace tessera::io {
namespace {

/// Hears an object's values one by one, so that none is kept that nobody asks for.
class FirstLevel : public JsonEvents {
 public:
  FirstLevel(std::string_view object, std::span<JsonField> fields, const std::function<void(const std::string&)>& unused)
      : object_(object), fields_(fields), unused_(unused) {}
  const std::string& why() const { return fault_; }
  const char** taken() { return &taken_; }

  bool null() override { return value(JsonField::Kind::null); }
  bool boolean(bool) override { return value(JsonField::Kind::boolean); }
  bool integer(std::int64_t) override { return value(JsonField::Kind::number); }
  bool natural(std::uint64_t) override { return value(JsonField::Kind::number); }
  bool real(double) override { return value(JsonField::Kind::number); }
  bool text(std::string& text) override {
    if (depth_ == 1 && field_) field_->text.swap(text);
    return value(JsonField::Kind::text);
  }
  bool begin_object() override { return depth_ == 0 || value(JsonField::Kind::object) ? ++depth_ > 0 : false; }
  bool begin_list() override { return value(JsonField::Kind::list) ? ++depth_ > 0 : false; }
  bool end_object() override { return --depth_ >= 0; }
  bool end_list() override { return --depth_ >= 0; }
  bool key(std::string& name) override {
    if (depth_ != 1) return true;
    const auto asked = std::ranges::find(fields_, name, &JsonField::key);
    field_ = asked == fields_.end() ? nullptr : &*asked;
    if (!field_) return unused_(name), true;
    if (field_->kind == JsonField::Kind::missing) {
      field_->byte = std::max<std::int64_t>(1, taken_ - object_.data() - std::ssize(name) - 1);  // before it stands a quotation mark
      return true;
    }
    fault_ = fmt::format("{} occurs twice", printable_name(name));
    return false;
  }
  bool fault(std::size_t byte, const std::string& reason, bool syntax) override {
    fault_ = syntax ? fmt::format("broken JSON at byte {}", byte)
                    : "JSON that cannot be read: " + (reason.size() > 120 ? reason.substr(0, 120) + " ..." : reason);
    return false;
  }

 private:
  bool value(JsonField::Kind kind) {
    if (depth_ == 0) fault_ = "no JSON object";
    if (depth_ == 1 && field_) field_->kind = kind;
    return depth_ > 0;
  }
  std::string_view object_;
  const char* taken_ = nullptr;
  std::span<JsonField> fields_;
  const std::function<void(const std::string&)>& unused_;
  JsonField* field_ = nullptr;  ///< that the value to come is of
  std::int64_t depth_ = 0;
  std::string fault_;
};

}  // namespace

std::string read_object(std::string_view text, std::span<JsonField> fields, const std::function<void(const std::string& key)>& unused) {
  FirstLevel heard(text, fields, unused);
  read_json_events(text, heard, heard.taken());
  return heard.why();
}

bool JsonObjects::next(std::string_view& piece) {
  if (state_ != State::inside) object_.clear();
  while (!piece.empty() && fault_.empty()) {
    if (state_ == State::inside) {
      if (!to_end_of_object(piece)) return false;
      if (wanted_ == 0 || documents_ == wanted_) return true;
      object_.clear();
      continue;
    }
    between_objects(piece.front());
    if (state_ != State::inside) piece.remove_prefix(1);
  }
  return false;
}

void JsonObjects::between_objects(char c) {
  if (c == '\n') ++line_;
  if (c == ' ' || c == '\t' || c == '\r' || c == '\n') return;
  const std::string here = fmt::format("line {}", line_);
  switch (state_) {
    case State::begin:
      return begin_document(c, here);
    case State::first:
    case State::value:
      if (c == '{') return begin_object();
      if (c == ']' && state_ == State::first) return void(state_ = State::end);
      fault_ = c == ']' ? here + ": a comma stands before the end of the array"
                        : fmt::format("{}: element {} of the array is not an object", here, number_ + 1);
      return;
    case State::after:
      if (c == ',') return void(state_ = State::value);
      if (c == ']') return void(state_ = State::end);
      fault_ = fmt::format("{}: neither , nor ] follows object {}", here, number_);
      return;
    case State::between:
      if (wanted_ > 0) return begin_document(c, here);
      if (c == '{') return begin_object();
      fault_ = fmt::format("{}: the text after object {} is not an object", here, number_);
      return;
    default:
      if (wanted_ > 0) return begin_document(c, here);
      fault_ = here + ": there is more after the end of the array";
      if (c == '[' || c == '{')
        fault_ = fmt::format(
            "{}: a second JSON document begins, after an array of {} objects. Take one by its number: --document 1 is the first, "
            "--document 2 begins here",
            here, number_);
  }
}

void JsonObjects::begin_document(char c, const std::string& here) {
  if (c != '[' && c != '{') return void(fault_ = fmt::format("{}: it begins with neither [ nor {{", here));
  array_ = c == '[', number_ = 0, ++documents_;
  if (array_)
    state_ = State::first;
  else
    begin_object();
}

void JsonObjects::begin_object() {
  state_ = State::inside, depth_ = 0, begun_on_ = line_;
  ++number_;
}

bool JsonObjects::to_end_of_object(std::string_view& piece) {
  std::size_t at = 0;
  bool ends = false;
  while (at < piece.size() && !ends) {
    if (escaped_) {
      escaped_ = false, ++at;
      continue;
    }
    at = std::min(piece.find_first_of(in_string_ ? "\"\\" : "\"{}[]", at), piece.size());
    if (at == piece.size()) break;
    const char c = piece[at++];
    if (c == '"')
      in_string_ = !in_string_;
    else if (in_string_)
      escaped_ = true;
    else
      depth_ += c == '{' || c == '[' ? 1 : -1, ends = depth_ <= 0;
  }
  line_ += std::ranges::count(piece.substr(0, at), '\n');
  object_.append(piece.substr(0, at));
  piece.remove_prefix(at);
  if (ends) state_ = array_ ? State::after : State::between;
  return ends;
}

}  // namespace tessera::io
