#include "io/tokens/json_input.hpp"

#include <algorithm>
#include <array>
#include <functional>

#include "base/check.hpp"
#include "base/types.hpp"
#include "io/tokens/json_objects.hpp"
#include "io/tokens/preference_form.hpp"

namespace tessera::io {
namespace {

/// Makes documents of objects.
class ObjectReader {
 public:
  /// `one`: what of the input is an object, "line" or "object".
  ObjectReader(const JsonRules& rules, std::string one, const TextVisitor& visit) : rules_(rules), one_(std::move(one)), visit_(visit) {
    const auto add = [&](std::string key) { fields_.push_back({.key = std::move(key)}); };
    if (rules.preferences)
      fields_ = PreferenceForm::fields();
    else if (!rules.field.empty())
      add(rules.field);
    else
      add("prompt"), add("completion"), add("text"), add("chosen"), add("rejected"), add("label");
  }

  void take(const std::string& place, const std::string& object) {
    for (JsonField& field : fields_) field.kind = JsonField::Kind::missing;
    conversation_.clear();
    if (const std::string fault = read_object(object, fields_, unused_); !fault.empty())
      refuse(place, fault == "no JSON object" ? fmt::format("the {} is {}", one_, fault) : fault);
    if (rules_.preferences) rules_.preferences->take(place, fields_);
    if (rules_.chat || rules_.preferences) return give(place, "", object);
    if (!rules_.field.empty()) return give(place, "", text_of(place, fields_[0]));
    JsonField &prompt = fields_[0], &completion = fields_[1], &text = fields_[2];
    refuse_preferences(place, completion.kind != JsonField::Kind::missing);
    if (prompt.kind == JsonField::Kind::missing && completion.kind == JsonField::Kind::missing)
      return give(place, "", text_of(place, text));
    if (text.kind != JsonField::Kind::missing)
      fail(ExitCode::data, "{}: the object has \"text\" and also \"prompt\" or \"completion\". {} Or choose: --field text.", place,
           wanted());
    const std::string &before = text_of(place, prompt), &after = text_of(place, completion);
    if (after.empty()) fail(ExitCode::data, "{}: \"completion\" is empty, so there is nothing to learn. Remove the {}.", place, one_);
    give(place, before, after);
  }

  /// What is said of every fault: what an object must be, and where the form was guessed, how to say another.
  std::string wanted() const {
    const std::string be = one_ == "object" ? "have" : "be an object with";
    std::string text = rules_.preferences ? fmt::format("Every {} must be a pair, or a completion with a label.", one_)
                       : rules_.chat      ? fmt::format("Every {} must be a conversation.", one_)
                       : rules_.field.empty()
                           ? fmt::format("Every {} must {} a string \"text\", or strings \"prompt\" and \"completion\".", one_, be)
                           : fmt::format("Every {} must {} a string \"{}\".", one_, be, rules_.field);
    if (rules_.guessed)
      text += rules_.chat || rules_.preferences ? " Or name the input's format: --format jsonl or json."
                                                : " Or name the input's format: --format text, jsonl or json.";
    return text;
  }
  [[noreturn]] void refuse(const std::string& place, const std::string& why) const {
    fail(ExitCode::data, "{}: {}. {}", place, why, wanted());
  }

 private:
  /// Answers of which one is better, or which are good or bad: each would become a target, and the bad ones be learnt.
  void refuse_preferences(const std::string& place, bool completes) const {
    const JsonField &text = fields_[2], &chosen = fields_[3], &rejected = fields_[4], &label = fields_[5];
    const bool pairs = chosen.kind != JsonField::Kind::missing || rejected.kind != JsonField::Kind::missing;
    if (pairs && text.kind == JsonField::Kind::missing)
      fail(ExitCode::data,
           "{}: the object has \"chosen\" or \"rejected\": preference pairs, which --preferences takes. To learn only the chosen answers, "
           "write each as \"prompt\" and \"completion\", or name one key: --field chosen.",
           place);
    if (label.kind != JsonField::Kind::missing && completes)
      fail(ExitCode::data,
           "{}: the object has a \"label\" with its \"completion\": preference data for KTO, which --preferences takes. Without it a "
           "completion whose label is false would be learnt too: keep the lines whose label is true, and take \"label\" out.",
           place);
    for (const JsonField* field : {&chosen, &rejected, &label})
      if (field->kind != JsonField::Kind::missing && rules_.unused) rules_.unused->add(field->key);
  }
  /// What only --chat reads.
  [[noreturn]] void refuse_conversation(const std::string& place, const std::string& missing) const {
    const bool alpaca = conversation_ == "instruction";
    fail(ExitCode::data,
         "{}: the object has no \"{}\" but \"{}\": it is {}, which --chat renders with a chat template. Give --tokenizer MODEL --chat{}.",
         place, missing, conversation_, alpaca ? "an instruction with its answer, as in Alpaca" : "a conversation",
         alpaca ? ", and --chat-template alpaca if the model has no template of its own" : "");
  }
  const std::string& text_of(const std::string& place, const JsonField& field) const {
    if (field.kind == JsonField::Kind::missing && !conversation_.empty()) refuse_conversation(place, field.key);
    if (field.kind == JsonField::Kind::missing) refuse(place, fmt::format("the object has no \"{}\"", field.key));
    if (field.kind == JsonField::Kind::null) refuse(place, fmt::format("\"{}\" is null, and no string", field.key));
    if (field.kind != JsonField::Kind::text) refuse(place, fmt::format("\"{}\" is not a string", field.key));
    return field.text;
  }
  void give(const std::string& place, std::string_view before, std::string_view text) const {
    if (text.empty()) return;
    visit_.place(place);
    if (!before.empty()) visit_.text(before, false);
    visit_.text(text, true), visit_.end_document();
  }

  const JsonRules& rules_;
  std::string one_;
  const TextVisitor& visit_;
  std::vector<JsonField> fields_;
  std::string conversation_;  ///< a key of the object that says that it is one
  std::function<void(const std::string&)> unused_ = [this](const std::string& key) {
    if (key == "messages" || key == "conversations" || key == "instruction") conversation_ = key;
    if (rules_.unused && !rules_.chat && !rules_.preferences) rules_.unused->add(key);
  };
};

bool too_long(std::size_t bytes, std::int64_t longest) { return longest > 0 && static_cast<std::int64_t>(bytes) > longest; }

}  // namespace

void UnusedKeys::add(const std::string& key) {
  if (names_.size() < most && std::ranges::find(names_, key) == names_.end()) names_.push_back(key);
}

void refuse_long(const std::string& place, const std::string& what, std::int64_t longest) {
  fail(ExitCode::data,
       "{}: the {} has more than {}, and needs up to 260 times its bytes of memory in a worker. Cut it into several documents, or raise "
       "--longest-line and, with the tokenizer of a model, --worker-memory.",
       place, what, human_bytes(static_cast<double>(longest)));
}

void scan_lines(TextInput& input, const JsonRules& rules, const TextVisitor& visit) {
  ObjectReader reader(rules, "line", visit);
  std::string line;
  std::int64_t number = 1, offset = 0;  // of the line under way
  const auto place = [&] { return fmt::format("{}:{}", input.name(), number); };
  const auto take_line = [&] {
    if (too_long(line.size(), rules.longest)) refuse_long(place(), "line", rules.longest);
    Utf8Checker checker;
    auto fault = checker.feed(line);
    if (!fault) fault = checker.finish();
    if (fault) refuse_utf8(input, {number, offset + fault->offset, fault->byte, fault->cut});
    if (line.find_first_not_of(" \t\r") != std::string::npos) reader.take(place(), line);
    offset += static_cast<std::int64_t>(line.size()) + 1, ++number;
    line.clear();
  };
  for (auto piece = input.next(); !piece.empty(); piece = input.next()) {
    visit.progress(static_cast<std::int64_t>(piece.size()));
    for (auto end = piece.find('\n'); end != piece.npos; end = piece.find('\n')) {
      line.append(piece.substr(0, end));
      piece.remove_prefix(end + 1);
      take_line();
    }
    line.append(piece);
    if (too_long(line.size(), rules.longest)) refuse_long(place(), "line", rules.longest);
  }
  if (!line.empty()) take_line();
}

void scan_objects(TextInput& input, const JsonRules& rules, const TextVisitor& visit) {
  ObjectReader reader(rules, "object", visit);
  JsonObjects objects(rules.document);
  Utf8Checker checker;
  const auto place = [&] { return fmt::format("{}:{}: object {}", input.name(), objects.line(), objects.number()); };
  for (auto piece = input.next(); !piece.empty(); piece = input.next()) {
    if (auto fault = checker.feed(piece)) refuse_utf8(input, *fault);
    visit.progress(static_cast<std::int64_t>(piece.size()));
    while (objects.next(piece)) {
      if (too_long(objects.object().size(), rules.longest)) refuse_long(place(), "object", rules.longest);
      reader.take(place(), objects.object());
    }
    if (!objects.fault().empty()) reader.refuse(input.name(), objects.fault());
    if (too_long(objects.object().size(), rules.longest)) refuse_long(place(), "object", rules.longest);
  }
  if (auto fault = checker.finish()) refuse_utf8(input, *fault);
  if (!objects.may_end()) reader.refuse(place(), "the input ends before the object or the array does: it is truncated, or not JSON");
  if (objects.documents() < rules.document)
    fail(ExitCode::data, "{}: --document {} is requested, but the input holds {}.", input.name(), rules.document,
         objects.documents() == 1 ? "one JSON document" : fmt::format("{} JSON documents", objects.documents()));
}

}  // namespace tessera::io
