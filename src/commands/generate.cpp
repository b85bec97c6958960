// tessera generate CHECKPOINT --prompt TEXT
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <utility>

#include "base/byte_tokenizer.hpp"
#include "base/control_groups.hpp"
#include "base/log.hpp"
#include "commands/commands.hpp"
#include "commands/named_checkpoint.hpp"
#include "commands/one_process.hpp"
#include "deck/tokenizer_python.hpp"
#include "generate/inference.hpp"
#include "io/checkpoint/survey.hpp"
#include "io/files/utf8.hpp"
#include "io/tokenizer/tokenizer.hpp"
#include "memory/runtime.hpp"
#include "train/data/run_tokenizer.hpp"
#include "train/engine/device.hpp"
#include "train/text/decoder.hpp"
#include "train/text/language.hpp"
#include "train/text/sampling.hpp"

namespace tessera {
namespace {

struct GenerateOptions {
  std::string checkpoint, prompt, prompt_tokens, chat, system, chat_template, tokenizer, end_token, device = "auto";
  std::int64_t tokens = 200, top_k = 0, seed = 1, worker_memory = io::worker_memory;
  double temperature = 0.8;
  bool watch = false;
};

std::vector<std::int32_t> parse_tokens(const std::string& text, std::int64_t vocab) {
  std::vector<std::int32_t> tokens;
  const char* at = text.data();
  const char* end = at + text.size();
  while (at < end) {
    std::int32_t token = 0;
    auto [next, error] = std::from_chars(at, end, token);
    if (error != std::errc() || (next < end && *next != ','))
      fail(ExitCode::usage, "--prompt-tokens takes numbers with commas between them, and {} is not one", std::string(at, end));
    if (token < 0 || token >= vocab) fail(ExitCode::data, "--prompt-tokens: {} is not in the vocabulary (0 to {})", token, vocab - 1);
    tokens.push_back(token);
    at = next + 1;
  }
  return tokens;
}

/// Numbers are the text.
class Ids : public Language {
 public:
  explicit Ids(std::vector<std::int32_t> prompt) : prompt_(std::move(prompt)) {}
  std::vector<std::int32_t> encode(const std::string&) override { return prompt_; }
  std::string say(std::int32_t token) override { return fmt::format("{}{}", std::exchange(said_, true) ? "," : "", token); }

 private:
  std::vector<std::int32_t> prompt_;
  bool said_ = false;
};

struct Conversation {
  std::unique_ptr<Language> language;
  std::vector<std::int32_t> prompt;
};

Conversation with_words(const GenerateOptions& o, const std::string& folder, std::int64_t vocab) {
  auto words = std::make_unique<ModelLanguage>(io::TokenizerSource{.python = tokenizer_python(),
                                                                   .folder = folder,
                                                                   .end_token = o.end_token,
                                                                   .chat_template = o.chat_template,
                                                                   .memory = o.worker_memory},
                                               vocab);
  std::vector<std::int32_t> prompt = o.chat.empty() ? words->encode(o.prompt) : words->encode_question(o.system, o.chat);
  return {.language = std::move(words), .prompt = std::move(prompt)};
}

Conversation with(std::unique_ptr<Language> language, const std::string& prompt) {
  std::vector<std::int32_t> tokens = language->encode(prompt);
  return {.language = std::move(language), .prompt = std::move(tokens)};
}

Conversation conversation_of(const GenerateOptions& o, const Deck& deck) {
  for (const std::string& text : {o.prompt, o.chat, o.system}) {
    io::Utf8Checker checker;
    if (checker.feed(text) || checker.finish())
      fail(ExitCode::data, "the prompt is not UTF-8. Convert it, for example with iconv -t UTF-8.");
  }
  if (!o.prompt_tokens.empty()) return with(std::make_unique<Ids>(parse_tokens(o.prompt_tokens, deck.model.vocab)), "");
  const std::string folder = choose_tokenizer(o.tokenizer, o.checkpoint);
  if (!folder.empty()) return with_words(o, folder, deck.model.vocab);
  if (!o.chat.empty())
    fail(ExitCode::usage,
         "--chat needs a chat template, but this checkpoint's run has no tokenizer. Give --tokenizer DIR, the model's folder.");
  if (deck.model.vocab != byte_tokenizer_vocab)
    fail(ExitCode::usage,
         "this model has a vocabulary of {}, not the byte tokenizer's ({}), and its run has no tokenizer. Give --tokenizer DIR, or the "
         "prompt as --prompt-tokens 1,2,3",
         deck.model.vocab, byte_tokenizer_vocab);
  return with(std::make_unique<ByteLanguage>(), o.prompt);
}

/// Writes what follows a prompt that the decoder has taken.
void write_text(Decoder& decoder, Language& language, const GenerateOptions& o) {
  for (std::int64_t i = 0; i < o.tokens; ++i) {
    const std::int32_t token =
        o.temperature > 0 ? sample_token(decoder.logits(), o.temperature, o.top_k, static_cast<std::uint64_t>(o.seed), decoder.length())
                          : decoder.likeliest();
    if (language.ends(token)) break;
    const std::string said = language.say(token);
    std::fwrite(said.data(), 1, said.size(), stdout);
    std::fflush(stdout);
    if (i + 1 < o.tokens) decoder.next(token);
  }
  const std::string rest = language.rest() + "\n";
  std::fwrite(rest.data(), 1, rest.size(), stdout);
  std::fflush(stdout);
}

int generate(const GenerateOptions& o) {
  const RunDevice device = choose_device(from_word<RunDevice>(o.device).value());
  KernelRuntime runtime(usable_threads(), spaces_of(device));
  // 1. The prompt, which says how much memory the text takes.
  const Deck deck = load_deck(o.checkpoint, device);
  const auto [language, prompt] = conversation_of(o, deck);
  const auto length = static_cast<std::int64_t>(prompt.size());
  const TextSize text{.prompt = length, .capacity = length + o.tokens, .likeliest = o.temperature == 0};
  if (const std::int64_t most = deck.model.learned_positions; most > 0 && text.capacity - 1 > most)
    fail(ExitCode::usage,
         "a prompt of {} tokens and {} more (--tokens) need {} positions, and the model has {} position vectors (model.learned_positions): "
         "{}",
         length, o.tokens, text.capacity - 1, most,
         length <= most ? fmt::format("give --tokens {} at most", most + 1 - length) : "give a shorter prompt");
  // 2. The model.
  const LoadedModel model = load_model(o.checkpoint, device, {.text = text});
  Decoder decoder(*model.engine);
  // 3. The text.
  std::fputs(o.prompt.c_str(), stdout);
  language->begin(prompt);
  decoder.start(prompt);
  write_text(decoder, *language, o);
  return 0;
}

/// Answers lines with the newest checkpoint of a run, which may be at work.
class Watching {
 public:
  Watching(const GenerateOptions& o, std::string run)
      : o_(o), run_(std::move(run)), device_(choose_device(from_word<RunDevice>(o.device).value())) {}

  /// A line is a message where the run's tokenizer has a chat template; else a text to continue.
  void answer(const std::string& line) {
    load_newest();
    const std::vector<std::int32_t> prompt = tokens_of(line);
    if (prompt.empty() || std::ssize(prompt) > capacity_ - o_.tokens)
      return warning("a line of {} tokens is skipped: a line may have 1 to {}", prompt.size(), capacity_ - o_.tokens);
    language_->begin(prompt);
    Decoder decoder(*model_.engine);
    for (const std::int32_t token : prompt) decoder.next(token);
    write_text(decoder, *language_, o_);
  }
  void load_newest() {
    const io::Head head = io::find_head(io::survey_checkpoints(run_ + "/checkpoints"));
    if (!head.fault.empty()) fail(ExitCode::checkpoint, "{}", head.fault);
    if (!head.entry)
      fail(ExitCode::checkpoint, "{}: this run has no checkpoint yet. It saves one every checkpoint.every steps and at its end.", run_);
    if (head.entry->digest == loaded_) return;
    if (!language_) begin(head.entry->path);
    model_ = {};  // two may have no room
    model_ = load_model(run_ + "/checkpoints/latest", device_, {.text = {.capacity = capacity_, .likeliest = o_.temperature == 0}});
    loaded_ = head.entry->digest;
    info("answers now come from step {}", model_.step);
  }

 private:
  void begin(const std::string& checkpoint) {
    const Deck deck = load_deck(checkpoint, device_);
    capacity_ = deck.batch.sequence_length + o_.tokens;
    if (const std::int64_t most = deck.model.learned_positions; most > 0) capacity_ = std::min(capacity_, most + 1);
    if (capacity_ <= o_.tokens)
      fail(ExitCode::usage, "--tokens {} leaves no space for a message: the model has {} positions. Give fewer", o_.tokens, capacity_ - 1);
    GenerateOptions first = o_;
    first.checkpoint = checkpoint;
    language_ = conversation_of(first, deck).language;
  }
  std::vector<std::int32_t> tokens_of(const std::string& line) {
    auto* model = dynamic_cast<ModelLanguage*>(language_.get());
    if (!model || !chats_) return language_->encode(line);
    try {
      return model->encode_question(o_.system, line);
    } catch (const Error& error) {
      if (error.code != ExitCode::usage) throw;
      info("lines are texts to continue, not messages: {}", error.what());
      chats_ = false;
      return language_->encode(line);
    }
  }

  const GenerateOptions& o_;
  std::string run_, loaded_;
  RunDevice device_;
  std::int64_t capacity_ = 0;
  bool chats_ = true;
  std::unique_ptr<Language> language_;
  LoadedModel model_;
};

int watch(const GenerateOptions& o, const std::string& run) {
  KernelRuntime runtime(usable_threads(), spaces_of(choose_device(from_word<RunDevice>(o.device).value())));
  Watching watching(o, run);
  watching.load_newest();
  const bool person = isatty(STDIN_FILENO) == 1;
  std::string line;
  while ((person ? std::fputs("> ", stdout), std::fflush(stdout) : 0), std::getline(std::cin, line))
    if (!line.empty()) watching.answer(line);
  return 0;
}

}  // namespace

void add_generate(const Command& app) {
  const Command command = app.command("generate", "Continue a text with a checkpoint's model");
  auto options = std::make_shared<GenerateOptions>();
  command.option("CHECKPOINT", options->checkpoint, checkpoint_help).required();
  command.option("--prompt", options->prompt, "Text to continue, encoded by the run's tokenizer (RUN/tokenizer), or as bytes");
  const Option chat =
      command.option("--chat", options->chat, "A message to answer, in the chat template of the run's tokenizer; prints the answer")
          .excludes("--prompt");
  command.option("--system", options->system, "A system message before it").needs(chat);
  command.option("--chat-template", options->chat_template, "Template instead of the run's: a name, or a file").needs(chat);
  command.option("--tokenizer", options->tokenizer, "Folder of the model whose tokenizer is used instead");
  command.option("--end-token", options->end_token, "Token that ends the text, by name, besides those in the tokenizer's files");
  add_worker_memory(command, options->worker_memory, "the process of the tokenizer");
  command.option("--prompt-tokens", options->prompt_tokens, "Token ids to continue, 1,2,3 (any model); prints ids")
      .excludes("--prompt")
      .excludes(chat);
  command
      .flag("--watch", options->watch,
            "Answer lines of standard input, each as a separate message, with the newest checkpoint of a run. The run may still be "
            "training: a newer checkpoint is read before the next answer")
      .excludes("--prompt")
      .excludes("--prompt-tokens")
      .excludes(chat);
  command.option("--tokens", options->tokens, "Tokens to add").between(1, 1000000000).shows_default();
  command.option("--temperature", options->temperature, "0 takes the most likely token each time").between(0.0, 1e6).shows_default();
  command.option("--top-k", options->top_k, "Draw from the k most likely tokens; 0: from all").not_negative().shows_default();
  command.option("--seed", options->seed, "The same seed gives the same text").shows_default();
  command.option("--device", options->device, "host, cuda, or auto: a GPU if this build has kernels for one and finds one")
      .one_of({enum_words<RunDevice>.begin(), enum_words<RunDevice>.end()})
      .shows_default();
  command.footer(
      "Example:\n  tessera generate runs/quickstart --prompt \"In the beginning\" --tokens 200\n  tessera generate "
      "runs/ft --chat \"Why is the sky blue?\"\n  tessera generate runs/ft --watch");
  command.does([options] {
    require_one_process("generate");
    if (options->watch) {
      if (!std::filesystem::is_directory(options->checkpoint + "/checkpoints"))
        fail(ExitCode::usage, "--watch takes the folder of a run, with checkpoints/ in it, and {} is not one", options->checkpoint);
      return watch(*options, options->checkpoint);
    }
    options->checkpoint = named_checkpoint(options->checkpoint);
    return generate(*options);
  });
}

}  // namespace tessera
