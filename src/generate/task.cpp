#include "generate/task.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/byte_tokenizer.hpp"
#include "base/check.hpp"
#include "io/files/posix_file.hpp"
#include "kernels/cross_entropy/cross_entropy.hpp"

namespace tessera {
namespace {

constexpr std::string_view wanted =
    R"(Every line must be {"context": "...", "choices": ["...", "..."], "answer": 0}, where the answer is the number of a choice, or {"text": "..."}.)";

std::string take_text(const nlohmann::json& object, const char* key, const std::string& where) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_string()) fail(ExitCode::data, "{}: it has no string \"{}\". {}", where, key, wanted);
  return found->get<std::string>();
}

TaskItem item_of(const std::string& text, std::int64_t line, const std::string& where) {
  nlohmann::json object;
  try {
    object = nlohmann::json::parse(text);
  } catch (const nlohmann::json::exception& error) {
    fail(ExitCode::data, "{}: this is no JSON: {}. {}", where, error.what(), wanted);
  }
  if (!object.is_object()) fail(ExitCode::data, "{}: this is no JSON object. {}", where, wanted);
  TaskItem item;
  item.line = line;
  if (object.contains("text")) {
    if (object.contains("choices")) fail(ExitCode::data, "{}: it has a \"text\" beside \"choices\". {}", where, wanted);
    item.text = take_text(object, "text", where);
    if (item.text.empty()) fail(ExitCode::data, "{}: \"text\" is empty, so there is nothing to read. Remove the line.", where);
    return item;
  }
  item.context = take_text(object, "context", where);
  const auto choices = object.find("choices"), answer = object.find("answer");
  if (choices == object.end() || !choices->is_array() || choices->size() < 2)
    fail(ExitCode::data, "{}: it has no list \"choices\" of two or more. {}", where, wanted);
  for (const auto& choice : *choices) {
    if (!choice.is_string() || choice.get_ref<const std::string&>().empty())
      fail(ExitCode::data, "{}: choice {} is no text, or an empty one. {}", where, item.choices.size(), wanted);
    item.choices.push_back(choice.get<std::string>());
  }
  if (answer == object.end() || !answer->is_number_integer() || answer->get<std::int64_t>() < 0 ||
      answer->get<std::int64_t>() >= std::ssize(item.choices))
    fail(ExitCode::data, "{}: \"answer\" is no number from 0 to {}. {}", where, item.choices.size() - 1, wanted);
  item.answer = answer->get<std::size_t>();
  return item;
}

/// A document begins with what stands between documents.
std::vector<std::int32_t> tokens_of(std::string_view text) {
  std::vector<std::int32_t> tokens{byte_separator};
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

/// Tokens that the longest item asks for.
std::int64_t longest(const std::vector<TaskItem>& items) {
  std::size_t most = 1;
  for (const TaskItem& item : items) {
    most = std::max(most, item.text.size());
    for (const std::string& choice : item.choices) most = std::max(most, item.context.size() + choice.size());
  }
  return static_cast<std::int64_t>(most);
}

LoadedModel load_for(const std::string& checkpoint, const std::string& device, const std::vector<TaskItem>& items,
                     const std::string& path) {
  const Deck deck = load_deck(checkpoint, device);
  const std::int64_t T = deck.batch.sequence_length;
  if (deck.model.vocab != byte_tokenizer_vocab)
    fail(ExitCode::usage,
         "this model has a vocabulary of {}, which is not the byte tokenizer's ({}): its tokens of a text are not known here. Evaluate it "
         "on a token file (--data).",
         deck.model.vocab, byte_tokenizer_vocab);
  for (const TaskItem& item : items)
    for (const std::string& choice : item.choices)
      if (std::ssize(choice) > T)
        fail(ExitCode::data,
             "{}:{}: a choice of {} bytes is longer than the model's sequences of {} tokens. Shorten it or remove the line.", path,
             item.line, choice.size(), T);
  return load_model(checkpoint, device, {.micro_batch = 1, .sequence_length = std::min(T, longest(items))});
}

}  // namespace

std::vector<TaskItem> read_task(const std::string& path) {
  const auto file = io::PosixFile::open(path, ExitCode::data);
  std::string all(static_cast<std::size_t>(file.size()), '\0');
  all.resize(file.read(0, all.data(), all.size()));
  std::vector<TaskItem> items;
  std::int64_t line = 1;
  for (std::size_t at = 0; at < all.size(); ++line) {
    const std::size_t end = std::min(all.find('\n', at), all.size());
    const std::string text = all.substr(at, end - at);
    if (text.find_first_not_of(" \t\r") != std::string::npos) items.push_back(item_of(text, line, fmt::format("{}:{}", path, line)));
    at = end + 1;
  }
  if (items.empty()) fail(ExitCode::data, "{}: it holds no lines. {}", path, wanted);
  return items;
}

Examiner::Examiner(const std::string& checkpoint, const std::string& device, const std::vector<TaskItem>& items, const std::string& path)
    : model_(load_for(checkpoint, device, items, path)) {}

double Examiner::loss_of(std::span<const std::int32_t> tokens, std::int64_t counted) {
  const std::span<std::int32_t> inputs = model_.engine->tokens(0), targets = model_.engine->targets(0);
  // What is beyond the room goes at the front; what stays empty comes after the last token, which no earlier one sees.
  if (tokens.size() > inputs.size() + 1) tokens = tokens.last(inputs.size() + 1);
  const std::size_t n = tokens.size() - 1;
  std::ranges::fill(inputs, 0), std::ranges::fill(targets, kernels::no_target);
  std::ranges::fill(model_.engine->document_starts(0), 0);
  std::ranges::copy(tokens.first(n), inputs.begin());
  std::ranges::copy(tokens.last(static_cast<std::size_t>(counted)), targets.begin() + static_cast<std::ptrdiff_t>(n) - counted);
  model_.engine->weight(0) = 1;
  const StepReport report = model_.engine->evaluate(1);
  if (report.not_finite) fail(ExitCode::numerics, "the model's loss is not finite. Look at its weights: tessera inspect CHECKPOINT.");
  return report.loss;
}

Answered Examiner::answer(const TaskItem& question) {
  Answered result;
  const auto by_byte = [&](std::size_t i) { return result.log_likelihoods[i] / static_cast<double>(question.choices[i].size()); };
  for (std::size_t i = 0; i < question.choices.size(); ++i) {
    const std::vector<std::int32_t> tokens = tokens_of(question.context + question.choices[i]);
    result.log_likelihoods.push_back(-loss_of(tokens, std::ssize(question.choices[i])));
    if (result.log_likelihoods[i] > result.log_likelihoods[result.chosen]) result.chosen = i;
    if (by_byte(i) > by_byte(result.chosen_by_byte)) result.chosen_by_byte = i;
  }
  return result;
}

Read Examiner::read(const TaskItem& document) {
  const std::vector<std::int32_t> tokens = tokens_of(document.text);
  const std::span<const std::int32_t> all(tokens);
  const auto room = model_.engine->tokens(0).size();
  Read result;
  for (std::size_t at = 0; at + 1 < tokens.size(); at += room) {
    const std::size_t n = std::min(room, tokens.size() - 1 - at);
    result.loss += loss_of(all.subspan(at, n + 1), static_cast<std::int64_t>(n));
    result.tokens += static_cast<std::int64_t>(n);
  }
  return result;
}

}  // namespace tessera
