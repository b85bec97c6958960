#include "io/tokenizer/tokenizer.hpp"

#include <cmath>
#include <cstring>
#include <filesystem>
#include "base/json.hpp"

#include "base/check.hpp"
#include "io/files/utf8.hpp"
#include "io/tokenizer/chat_templates.hpp"
#include "io/tokenizer/child.hpp"
#include "io/tokenizer/tokenizer_class.hpp"
#include "io/tokenizer/worker.hpp"

namespace tessera::io {
namespace {

namespace fs = std::filesystem;

/// The bytes of a request.
class WorkerRequest {
 public:
  template <class Number>
  WorkerRequest& add(Number number) {
    bytes_.append(reinterpret_cast<const char*>(&number), sizeof number);  // little-endian, as the machine
    return *this;
  }
  WorkerRequest& add_text(std::string_view text) {
    add(static_cast<std::uint32_t>(text.size()));
    bytes_.append(text);
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

/// The bytes of an answer, front to back.
class Answer {
 public:
  explicit Answer(std::string bytes) : bytes_(std::move(bytes)) {}
  void take(void* to, std::size_t bytes) {
    TESSERA_REQUIRE(bytes <= bytes_.size() - at_, "an answer of {} bytes is cut at {}", bytes_.size(), at_);
    if (bytes > 0) std::memcpy(to, bytes_.data() + at_, bytes);
    at_ += bytes;
  }
  std::uint32_t number() {
    std::uint32_t value = 0;
    take(&value, sizeof value);
    return value;
  }
  std::string text() {
    std::string bytes(number(), '\0');
    take(bytes.data(), bytes.size());
    return bytes;
  }
  bool done() const { return at_ == bytes_.size(); }

 private:
  std::string bytes_;
  std::size_t at_ = 0;
};

std::string name_of_tokenizer(const std::string& folder) {
  std::error_code ignored;  // a folder that cannot be looked at is refused by who reads it
  const fs::path path = fs::weakly_canonical(folder, ignored);
  return path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
}

void add_lines(WorkerRequest& request, const std::vector<std::string>& ignored, const std::vector<ChatLine>& lines) {
  request.add(static_cast<std::uint32_t>(ignored.size()));
  for (const std::string& key : ignored) {
    require_utf8("--ignore", key);
    request.add_text(key);
  }
  request.add(static_cast<std::uint32_t>(lines.size()));
  for (const ChatLine& line : lines) request.add_text(line.place).add_text(line.text);
}

void take_tokens(Answer& answer, Encoded& one, bool masked) {
  one.ids.resize(answer.number());
  answer.take(one.ids.data(), one.ids.size() * sizeof(std::uint32_t));
  if (!masked) return;
  one.counts.resize(one.ids.size());
  answer.take(one.counts.data(), one.counts.size());
}

std::vector<Encoded> take_encoded(Answer answer, bool masked) {
  std::vector<Encoded> all(answer.number());
  for (Encoded& one : all) take_tokens(answer, one, masked);
  TESSERA_REQUIRE(answer.done(), "an answer has more after its end");
  return all;
}

}  // namespace

Tokenizer::Tokenizer(const TokenizerSource& source) : folder_(source.folder), patience_(source.patience) {
  require_utf8("the name of the tokenizer's folder", source.folder);
  require_utf8("--end-token", source.end_token);
  facts_.name = name_of_tokenizer(source.folder);
  const TokenizerFiles files = read_tokenizer_files(source.folder);
  facts_.digest = tokenizer_digest(files);
  child_ = start_worker(source.python, worker_text, source.memory);
  require_utf8("--chat-template", source.chat_template);
  const TokenizerClass* const built = find_tokenizer_class(files);
  const Json asked{{"folder", source.folder},
                   {"class", built ? built->name : ""},
                   {"class_tokens", built ? built->tokens : Json::object()},
                   {"framed_by", built ? built->framed_by : ""},
                   {"end_token", source.end_token},
                   {"chat_template", source.chat_template},
                   {"chat_template_text", find_chat_template(source.chat_template).value_or("")},
                   {"our_templates", chat_template_names()}};
  const Json found = Json::parse(ask("open", asked.dump(), worker_patience));
  found.at("vocab").get_to(facts_.vocab), found.at("end").get_to(facts_.end), found.at("end_name").get_to(facts_.end_name);
  found.at("stops").get_to(facts_.stops), found.at("cuts").get_to(facts_.cuts), found.at("notes").get_to(facts_.notes),
      found.at("package").get_to(facts_.package);
}

std::string Tokenizer::ask(std::string_view operation, std::string_view request) { return ask(operation, request, patience_); }

std::string Tokenizer::ask(std::string_view operation, std::string_view request, std::chrono::seconds patience) {
  try {
    return ask_worker(*child_, operation, request, patience);
  } catch (const Error& error) {
    if (error.code != ExitCode::environment) throw;
    fail(error.code, "{}/tokenizer.json: {}", folder_, error.what());  // which tokenizer a process has ended over
  }
}

Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;

std::vector<Encoded> Tokenizer::encode(const std::vector<DocumentPart>& parts, bool masked) {
  WorkerRequest request;
  request.add<std::uint8_t>(masked).add(static_cast<std::uint32_t>(parts.size()));
  for (const DocumentPart& part : parts) {
    request.add(static_cast<std::uint8_t>((part.begins ? 1 : 0) | (part.ends ? 2 : 0))).add(static_cast<std::uint32_t>(part.pieces.size()));
    for (const TextPiece& piece : part.pieces) request.add<std::uint8_t>(piece.counts).add_text(piece.text);
  }
  std::vector<Encoded> all = take_encoded(Answer(ask("text", request.bytes())), masked);
  TESSERA_REQUIRE(all.size() == parts.size(), "{} answers to {} documents", all.size(), parts.size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i].begins = parts[i].begins;
  return all;
}

std::vector<Encoded> Tokenizer::encode_chats(const std::vector<ChatLine>& lines, const ChatKeys& keys, std::vector<std::string>& unused) {
  require_utf8("--field", keys.field);
  WorkerRequest request;
  request.add_text(keys.field);
  add_lines(request, keys.ignored, lines);
  Answer answer(ask("chat", request.bytes()));
  for (const Json& name : Json::parse(answer.text())) unused.push_back(name.get<std::string>());
  return take_encoded(std::move(answer), true);
}

std::vector<Encoded> Tokenizer::encode_preferences(const std::vector<ChatLine>& lines, const PreferenceKeys& keys,
                                                   std::vector<std::string>& unused, PreferenceNotes& notes) {
  WorkerRequest request;
  request.add<std::uint8_t>(keys.texts_are_turns).add(keys.longest);
  add_lines(request, keys.ignored, lines);
  Answer answer(ask("pref", request.bytes()));
  for (const Json& name : Json::parse(answer.text())) unused.push_back(name.get<std::string>());
  const Json told = Json::parse(answer.text());
  told.at("equal").get_to(notes.equal), told.at("without_prompt").get_to(notes.without_prompt);
  told.at("too_long").get_to(notes.too_long), told.at("truncated").get_to(notes.truncated);
  std::vector<Encoded> all(answer.number());
  for (Encoded& one : all) {
    take_tokens(answer, one, true);
    std::uint8_t label = 0;
    float margin = 0;
    answer.take(&label, sizeof label), answer.take(&margin, sizeof margin);
    if (label < 2) one.label = label == 1;
    if (!std::isnan(margin)) one.margin = margin;
  }
  TESSERA_REQUIRE(answer.done(), "an answer has more after its end");
  return all;
}

std::vector<std::int32_t> Tokenizer::encode_prompt(const std::string& text) {
  const std::vector<DocumentPart> part{{.begins = true, .ends = false, .pieces = {{text}}}};
  const Encoded encoded = encode(part, false).at(0);
  if (encoded.ids.empty()) return {facts_.end};
  return {encoded.ids.begin(), encoded.ids.end()};
}

std::vector<std::int32_t> Tokenizer::encode_question(const std::string& system, const std::string& text) {
  Json messages = Json::array();
  if (!system.empty()) messages.push_back({{"role", "system"}, {"content", system}});
  messages.push_back({{"role", "user"}, {"content", text}});
  Answer answer(ask("prom", messages.dump()));
  std::vector<std::int32_t> ids(answer.number());
  answer.take(ids.data(), ids.size() * sizeof(std::int32_t));
  return ids;
}

std::string Tokenizer::render_prompt(const ChatLine& messages) {
  WorkerRequest request;
  request.add_text(messages.place).add_text(messages.text);
  return ask("rend", request.bytes());
}

void Tokenizer::begin_text(const std::vector<std::int32_t>& prompt) {
  ask("begi", {reinterpret_cast<const char*>(prompt.data()), prompt.size() * sizeof(std::int32_t)});
}

std::string Tokenizer::next_text(std::int32_t token) { return ask("step", {reinterpret_cast<const char*>(&token), sizeof token}); }

std::string Tokenizer::rest_of_text() { return ask("rest", ""); }

}  // namespace tessera::io
