#include "generate/task.hpp"

#include <algorithm>
#include <array>
#include "base/json.hpp"

#include "base/byte_tokenizer.hpp"
#include "base/check.hpp"
#include "generate/task_tokens.hpp"
#include "io/files/posix_file.hpp"
#include "train/data/run_tokenizer.hpp"

namespace tessera {
namespace {

constexpr std::int64_t most_task_bytes = std::int64_t{1} << 32;  // it is held in memory

/// Keys that a conversation to be trained on has for its template.
constexpr std::array<std::string_view, 5> of_conversations{"system", "tools", "documents", "chat_template_kwargs", "history"};

constexpr std::string_view wanted =
    R"(Every line must be {"context": "...", "choices": ["...", "..."], "answer": 0}, where the answer is the number of a choice, the same with "messages": [{"role": "user", "content": "..."}] in place of the context, or {"text": "..."}.)";

std::string take_text(const Json& object, const char* key, const std::string& where) {
  const Json* found = object.find(key);
  if (!found || !found->is_string()) fail(ExitCode::data, "{}: it lacks the string \"{}\". {}", where, key, wanted);
  return found->get<std::string>();
}

/// A key whose value is null is absent.
void leave_out_nulls(Json& object) {
  Json kept = Json::object();
  for (const auto& [key, value] : object.items())
    if (!value.is_null()) kept[key] = value;
  object = std::move(kept);
}

/// Names the keys of which nothing is made; beside messages, those that would change what the model is asked are refused.
void look_at_others(const Json& object, const std::string& where, io::UnusedKeys& unused) {
  const bool text = object.contains("text"), messages = object.contains("messages");
  for (const auto& [key, value] : object.items()) {
    const bool used = text ? key == "text" : key == "choices" || key == "answer" || key == (messages ? "messages" : "context");
    if (used) continue;
    if (messages && std::ranges::find(of_conversations, key) != of_conversations.end())
      fail(ExitCode::data, "{}: a task's messages are rendered without \"{}\". Put it into a message, or leave it out.", where, key);
    unused.add(key);
  }
}

TaskItem item_of(const std::string& text, std::int64_t line, const std::string& where, io::UnusedKeys& unused) {
  Json object;
  try {
    object = Json::parse(text);
  } catch (const JsonError& error) {
    fail(ExitCode::data, "{}: this is not JSON: {}. {}", where, error.what(), wanted);
  }
  if (!object.is_object()) fail(ExitCode::data, "{}: this is not a JSON object. {}", where, wanted);
  leave_out_nulls(object);
  TaskItem item;
  item.line = line;
  if (object.contains("text")) {
    if (object.contains("choices")) fail(ExitCode::data, "{}: it has \"text\" and \"choices\". {}", where, wanted);
    item.text = take_text(object, "text", where);
    if (item.text.empty()) fail(ExitCode::data, "{}: \"text\" is empty, so there is nothing to read. Remove the line.", where);
    return look_at_others(object, where, unused), item;
  }
  if (const Json* messages = object.find("messages"); !messages) {
    item.context = take_text(object, "context", where);
  } else {
    if (object.contains("context")) fail(ExitCode::data, "{}: it has \"messages\" and a \"context\". {}", where, wanted);
    item.messages = messages->dump();
  }
  const Json *choices = object.find("choices"), *answer = object.find("answer");
  if (!choices || !choices->is_array() || choices->size() < 2)
    fail(ExitCode::data, "{}: it lacks a list \"choices\" of two or more. {}", where, wanted);
  for (const auto& choice : *choices) {
    if (!choice.is_string() || choice.text().empty())
      fail(ExitCode::data, "{}: choice {} is not a text, or an empty one. {}", where, item.choices.size(), wanted);
    item.choices.push_back(choice.get<std::string>());
  }
  if (!answer || !answer->is_number_integer() || answer->get<std::int64_t>() < 0 || answer->get<std::int64_t>() >= std::ssize(item.choices))
    fail(ExitCode::data, "{}: \"answer\" is not a number from 0 to {}. {}", where, item.choices.size() - 1, wanted);
  item.answer = answer->get<std::size_t>();
  look_at_others(object, where, unused);
  return item;
}

}  // namespace

std::vector<TaskItem> read_task(const std::string& path, io::UnusedKeys& unused) {
  const std::string all = io::read_small_file(path, ExitCode::data, most_task_bytes);
  std::vector<TaskItem> items;
  std::int64_t line = 1;
  for (std::size_t at = 0; at < all.size(); ++line) {
    const std::size_t end = std::min(all.find('\n', at), all.size());
    const std::string text = all.substr(at, end - at);
    if (text.find_first_not_of(" \t\r") != std::string::npos)
      items.push_back(item_of(text, line, fmt::format("{}:{}", path, line), unused));
    at = end + 1;
  }
  if (items.empty()) fail(ExitCode::data, "{}: it holds no lines. {}", path, wanted);
  return items;
}

Examiner::Examiner(const std::string& checkpoint, RunDevice device, std::vector<TaskItem> items, const std::string& path,
                   const TaskTokenizer& tokenizer, std::int64_t pass_tokens)
    : items_(std::move(items)), model_(load(checkpoint, device, path, tokenizer, pass_tokens)) {}

Examiner::~Examiner() = default;

void Examiner::cut(std::int64_t T, const std::string& path) {
  const auto room = static_cast<std::size_t>(T);
  for (std::size_t i = 0; i < items_.size(); ++i) {
    first_piece_.push_back(pieces_.size());
    for (const ScoredText& text : texts_[i]) {
      const std::span<const std::int32_t> all(text.tokens);
      if (items_[i].question()) {
        if (text.counted > T)
          fail(ExitCode::data,
               "{}:{}: a choice of {} tokens is longer than the model's sequences of {} tokens. Shorten it or remove the line.", path,
               items_[i].line, text.counted, T);
        // What is beyond the room goes at the front.
        pieces_.push_back({all.last(std::min(all.size(), room + 1)), text.counted});
        continue;
      }
      // What stands before the text is read and not scored.
      for (std::size_t at = all.size() - 1 - static_cast<std::size_t>(text.counted); at + 1 < all.size(); at += room) {
        const std::size_t n = std::min(room, all.size() - 1 - at);
        pieces_.push_back({all.subspan(at, n + 1), static_cast<std::int64_t>(n)});
      }
    }
  }
  first_piece_.push_back(pieces_.size());
}

LoadedModel Examiner::load(const std::string& checkpoint, RunDevice device, const std::string& path, const TaskTokenizer& tokenizer,
                           std::int64_t pass_tokens) {
  const Deck deck = load_deck(checkpoint, device);
  const std::string folder = choose_tokenizer(tokenizer.folder, checkpoint);
  if (folder.empty() && deck.model.vocab != byte_tokenizer_vocab)
    fail(ExitCode::usage,
         "this model has a vocabulary of {}, not the byte tokenizer's ({}), and its run has no tokenizer. Give --tokenizer DIR, or "
         "evaluate it on a token file (--data).",
         deck.model.vocab, byte_tokenizer_vocab);
  texts_ = task_tokens(items_, path, {folder, tokenizer.chat_template, tokenizer.memory}, deck.model.vocab);
  cut(deck.batch.sequence_length, path);
  const std::int64_t longest = std::ranges::max_element(pieces_, {}, &TaskPiece::places)->places();
  if (pass_tokens == 0) pass_tokens = device == RunDevice::cuda ? gpu_pass_tokens : host_pass_tokens;
  const bool drops = deck.model.experts > 0 && deck.experts.capacity_factor > 0;
  if (pass_tokens == 1 || drops)
    return load_model(checkpoint, device, {.micro_batch = 1, .sequence_length = longest, .pads = true, .loss_groups = 1});
  std::int64_t all = 0;
  for (const TaskPiece& piece : pieces_) all += piece.places();
  return load_model(checkpoint, device,
                    {.micro_batch = std::max<std::int64_t>(1, std::min(pass_tokens / longest, ceil_div(all, longest))),
                     .fewer_where_they_do_not_fit = true,
                     .sequence_length = longest,
                     .mask_documents = true,
                     .pads = true,
                     .loss_groups = std::min<std::int64_t>(std::ssize(pieces_), 256)});
}

void Examiner::make_pass() {
  Engine& engine = *model_.engine;
  const ModelShape& s = engine.schedule().shape;
  const std::span<const TaskPiece> left = std::span(pieces_).subspan(losses_.size());
  const std::vector<PiecePlace> places = place_pieces(left, s.B, s.T, static_cast<std::size_t>(s.loss_groups));
  write_pass(left, places, s.T,
             {.tokens = engine.tokens(0),
              .targets = engine.targets(0),
              .weights = engine.row_weights(0),
              .groups = engine.token_groups(0),
              .document_starts = engine.document_starts(0),
              .padding = engine.padding(0)});
  engine.set_weight(0, 1);
  if (engine.evaluate({.tokens = s.tokens()}).not_finite)
    fail(ExitCode::numerics, "the model's loss is not finite. Look at its weights: tessera inspect CHECKPOINT.");
  const std::vector<GroupLoss> losses = engine.group_losses();
  for (std::size_t p = 0; p < places.size(); ++p) losses_.push_back(losses[p].sum);
}

std::span<const double> Examiner::losses_of(std::size_t item) {
  const std::size_t begin = first_piece_[item], end = first_piece_[item + 1];
  while (losses_.size() < end) make_pass();
  return std::span(losses_).subspan(begin, end - begin);
}

Answered Examiner::answer(std::size_t i) {
  const TaskItem& question = items_[i];
  Answered result;
  const auto by_byte = [&](std::size_t c) { return result.log_likelihoods[c] / static_cast<double>(question.choices[c].size()); };
  const std::span<const double> losses = losses_of(i);
  for (std::size_t c = 0; c < question.choices.size(); ++c) {
    result.log_likelihoods.push_back(-losses[c]);
    if (result.log_likelihoods[c] > result.log_likelihoods[result.chosen]) result.chosen = c;
    if (by_byte(c) > by_byte(result.chosen_by_byte)) result.chosen_by_byte = c;
  }
  return result;
}

Read Examiner::read(std::size_t i) {
  Read result{.tokens = texts_[i].front().counted, .bytes = std::ssize(items_[i].text)};
  for (const double loss : losses_of(i)) result.loss += loss;
  return result;
}

}  // namespace tessera
