#include "generate/task_tokens.hpp"

#include <algorithm>

#include "base/byte_tokenizer.hpp"
#include "base/check.hpp"
#include "deck/tokenizer_python.hpp"
#include "io/tokenizer/tokenizer.hpp"

namespace tessera {
namespace {

/// Texts that a worker gets at once.
constexpr std::size_t batch = 256;

using Texts = std::vector<std::vector<ScoredText>>;

ScoredText bytes_of(const std::string& text, std::size_t counted) {
  ScoredText scored{.tokens = {byte_separator}, .counted = static_cast<std::int64_t>(counted)};
  for (const char c : text) scored.tokens.push_back(static_cast<unsigned char>(c));
  return scored;
}

Texts as_bytes(const std::vector<TaskItem>& items, const std::string& path) {
  Texts all;
  for (const TaskItem& item : items) {
    if (!item.messages.empty())
      fail(ExitCode::usage,
           "{}:{}: a model's chat template renders \"messages\", but this model's tokenizer is the byte tokenizer. Give --tokenizer DIR, "
           "or a \"context\".",
           path, item.line);
    all.emplace_back();
    if (!item.question()) all.back().push_back(bytes_of(item.text, item.text.size()));
    for (const std::string& choice : item.choices) all.back().push_back(bytes_of(item.context + choice, choice.size()));
  }
  return all;
}

/// One text after the other, and where each belongs.
struct Asked {
  std::size_t item = 0;
  io::DocumentPart part;
};

std::vector<Asked> asked_of(const std::vector<TaskItem>& items, const std::string& path, io::Tokenizer& tokenizer) {
  std::vector<Asked> all;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const TaskItem& item = items[i];
    // A template says itself what stands before a text.
    const bool chat = !item.messages.empty();
    const std::string context = chat ? tokenizer.render_prompt({fmt::format("{}:{}", path, item.line), item.messages}) : item.context;
    const auto add = [&](std::vector<io::TextPiece> pieces) {
      all.push_back({i, {.begins = !chat, .ends = false, .pieces = std::move(pieces)}});
    };
    if (!item.question()) add({{.text = item.text, .counts = true}});
    for (const std::string& choice : item.choices) add({{.text = context, .counts = false}, {.text = choice, .counts = true}});
  }
  return all;
}

ScoredText scored_of(const io::Encoded& encoded, std::int32_t end) {
  ScoredText scored{.tokens = {encoded.ids.begin(), encoded.ids.end()}, .counted = std::ranges::count(encoded.counts, std::uint8_t{1})};
  if (scored.counted == std::ssize(scored.tokens)) scored.tokens.insert(scored.tokens.begin(), end);
  return scored;
}

}  // namespace

std::vector<std::vector<ScoredText>> task_tokens(const std::vector<TaskItem>& items, const std::string& path, const TaskTokenizer& chosen,
                                                 std::int64_t vocab) {
  if (chosen.folder.empty()) return as_bytes(items, path);
  io::Tokenizer tokenizer({.python = tokenizer_python(),
                           .folder = chosen.folder,
                           .end_token = "",
                           .chat_template = chosen.chat_template,
                           .memory = chosen.memory});
  Texts all(items.size());
  const std::vector<Asked> asked = asked_of(items, path, tokenizer);
  for (std::size_t first = 0; first < asked.size(); first += batch) {
    const std::size_t n = std::min(batch, asked.size() - first);
    std::vector<io::DocumentPart> parts;
    for (std::size_t i = 0; i < n; ++i) parts.push_back(asked[first + i].part);
    const std::vector<io::Encoded> encoded = tokenizer.encode(parts, true);
    for (std::size_t i = 0; i < n; ++i) {
      const std::size_t item = asked[first + i].item;
      ScoredText scored = scored_of(encoded[i], tokenizer.facts().end);
      if (scored.counted == 0)
        fail(ExitCode::data, "{}:{}: {}/tokenizer.json makes no token of a choice or a text. Change it or remove the line.", path,
             items[item].line, chosen.folder);
      for (const std::int32_t id : scored.tokens)
        if (id >= vocab)
          fail(ExitCode::data,
               "{}:{}: {}/tokenizer.json makes token {}, but the model has {} tokens: it is the tokenizer of another model.", path,
               items[item].line, chosen.folder, id, vocab);
      all[item].push_back(std::move(scored));
    }
  }
  return all;
}

}  // namespace tessera
