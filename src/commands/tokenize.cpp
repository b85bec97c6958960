// tessera tokenize: text to token files.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>

#include "base/log.hpp"
#include "base/printable.hpp"
#include "base/some_of.hpp"
#include "base/types.hpp"
#include "commands/commands.hpp"
#include "commands/one_process.hpp"
#include "deck/tokenizer_python.hpp"
#include "io/tokenizer/chat_templates.hpp"
#include "io/tokens/tokens.hpp"

namespace tessera {
namespace {

constexpr double mebibyte = 1 << 20;

/// More equal pairs than this share are no accident.
constexpr double many_equal_pairs = 0.01;

void put_preferences(const io::TokenizeResult& result) {
  const io::PreferenceCounts& of = result.preferences;
  const double kept = static_cast<double>(of.documents);
  if (result.set == io::TokenSet::pairs)
    put("  {} pairs; a completion has {:.1f} tokens if chosen, {:.1f} if rejected\n", of.documents,
        static_cast<double>(of.chosen_tokens) / kept, static_cast<double>(of.rejected_tokens) / kept);
  else
    put("  {} completions, {} desirable and {} not\n", of.documents, of.desirable, of.documents - of.desirable);
  if (of.too_long > 0) put("  left out: {}, whose prompt alone has --longest-sequence tokens or more\n", of.too_long);
  if (of.truncated > 0) put("  truncated: {} completions\n", of.truncated);
  if (of.equal > 0) put("  equal: {} pairs have the same completion twice\n", of.equal);
  if (of.without_prompt > 0) put("  left out: {} of these, in which nothing says where the prompt ends\n", of.without_prompt);
  const std::int64_t all = of.documents + of.too_long + of.without_prompt;
  if (static_cast<double>(of.equal) > many_equal_pairs * static_cast<double>(all))
    warning("{} of {} pairs have the same completion twice, and teach nothing. Look at how the pairs were made.", of.equal, all);
}

/// The usage names the folder, which is the last of the words.
int run_tokenize(const io::TokenizeOptions& o) {
  auto result = io::tokenize(o);
  auto documents = result.documents == 1 ? "1 document" : fmt::format("{} documents", result.documents);
  put("{}: {}, {} tokenizer, vocabulary {}{}\n", result.inputs, documents, result.tokenizer, result.vocab,
      result.digest.empty() ? "" : ", digest " + result.digest.substr(0, 8));
  const auto counted = [](std::int64_t tokens) { return tokens < 0 ? "" : fmt::format(", {} of which count in the loss", tokens); };
  put("  {}/train.h5: {} tokens{}\n", o.output_dir, result.train_tokens, counted(result.train_counted));
  if (o.validation > 0) put("  {}/val.h5: {} tokens{}\n", o.output_dir, result.validation_tokens, counted(result.validation_counted));
  if (o.preferences) put_preferences(result);
  if (!result.unused.empty()) put("  not used: {}\n", printable_name(some_of(result.unused, 20)));
  return 0;
}

}  // namespace

void add_tokenize(const Command& app) {
  const Command command = app.command("tokenize", "Turn text into token files for training");
  auto options = std::make_shared<io::TokenizeOptions>();
  options->progress = true;
  auto places = std::make_shared<std::vector<std::string>>();
  command
      .option("INPUT... FOLDER", *places,
              "Inputs in their order, then the folder for train.h5 and val.h5, which is created if missing. An input is text (one "
              "document), or JSON lines, a JSON array or Parquet with one document a line, object or row. Documents are read from "
              "\"text\", or from \"prompt\" and \"completion\", of which only completions count in the loss. A pipe, - for standard input, "
              "or a pattern in quotes for many files works too")
      .at_least(2)
      .required();
  command.usage("INPUT... FOLDER");
  command
      .option("--tokenizer", options->tokenizer,
              "byte: a token is a byte, and 256 separates documents; or the folder of a Hugging Face model, with its tokenizer.json")
      .shows_default();
  command
      .option(
          "--train-bpe", options->train_bpe,
          "First learn a byte-level BPE tokenizer with this many tokens from INPUT, in FOLDER/tokenizer; other texts use it by --tokenizer")
      .positive();
  command.flag("--chat", options->chat,
               "Lines or rows are conversations (\"messages\" with roles, or \"instruction\" and \"output\", or \"prompt\" and "
               "\"completion\"). The model's chat template renders them, and only the assistant's turns count in the loss");
  command.flag(
      "--preferences", options->preferences,
      "Lines or rows are preferences: \"prompt\", \"chosen\" and \"rejected\"; or \"prompt\", \"completion\" and a \"label\", true or "
      "false; or the forms of UltraFeedback, LLaMA-Factory and Alpaca. The chat template renders lists of messages. Texts are joined; with "
      "--chat they are turns");
  command
      .option("--longest-sequence", options->longest_sequence,
              "With --preferences: first tokens of a prompt with a completion that are kept. A line whose prompt alone is as long is left "
              "out; 0: no limit")
      .not_negative()
      .shows_default();
  command.option(
      "--chat-template", options->chat_template,
      fmt::format("With --chat or --preferences: a template instead of the model's, or one of several that it has: a name ({}), or a file",
                  fmt::join(io::chat_template_names(), ", ")));
  command
      .option("--ignore", options->ignored,
              "With --chat or --preferences: keys of lines or messages, separated by commas, that are not for the model; unknown keys are "
              "refused")
      .parted_by(',');
  command.option("--end-token", options->end_token, "Token that ends a document, by name; by default the one that the model's files name");
  command.option("--workers", options->workers, "Processes that tokenize in parallel, for the tokenizer of a model; 0: one for each core")
      .between(0, 4096)
      .shows_default();
  command
      .option("--patience", options->patience_seconds,
              "Seconds that such a process may take to answer, plus one for each 64 KiB of its input, before it is killed")
      .between(1, 1000000)
      .shows_default();
  auto longest = std::make_shared<double>(static_cast<double>(options->longest_line) / mebibyte);
  command
      .option("--longest-line", *longest,
              "MiB that a line, an object, a row, or a text that cannot be tokenized in parts may have. A longer one is refused by name "
              "before anything is tokenized; 0: no limit")
      .between(0.0, 1e6)
      .shows_default();
  add_worker_memory(command, options->worker_memory, "one of these, and the process that reads Parquet,");
  command.option("--field", options->field,
                 "Key or column of the text, or of the messages with --chat; by default \"text\", or \"prompt\" and \"completion\"");
  command
      .option("--format", options->format,
              "Format of all inputs: text, jsonl (an object a line), json (an array of objects, or a sequence of objects), parquet, or "
              "auto: by the bytes of each")
      .one_of(std::vector<std::string>(std::begin(io::input_formats), std::end(io::input_formats)))
      .shows_default();
  command.option("--document", options->document, "Which of several JSON documents in one input to take, from 1; 0: there is one")
      .not_negative()
      .shows_default();
  command.option("--validation", options->validation, "Share of the documents, or of the only one, that goes to val.h5: the tail")
      .shows_default();
  command.footer(
      "Example:\n  tessera tokenize --tokenizer byte input.txt data/ --validation 0.05\n  tessera tokenize --tokenizer models/SmolLM2-135M "
      "docs.jsonl data/\n  tessera tokenize a.jsonl b.txt 'web/*.parquet' data/\n  tessera tokenize --train-bpe 32000 corpus.txt data/ "
      "--validation 0.01\n  tessera tokenize --tokenizer "
      "models/Llama-3.2-1B-Instruct chat.jsonl data/ --chat\n  tessera tokenize --tokenizer models/Llama-3.2-1B-Instruct preferences.jsonl "
      "data/ "
      "--preferences\n  zcat text.jsonl.gz | tessera tokenize - data/");
  command.does([options, places, longest] {
    require_one_process("tokenize");
    options->output_dir = places->back();
    while (options->output_dir.size() > 1 && options->output_dir.ends_with('/')) options->output_dir.pop_back();
    options->inputs.assign(places->begin(), places->end() - 1);
    options->longest_line = static_cast<std::int64_t>(*longest * mebibyte);
    options->python = tokenizer_python();
    return run_tokenize(*options);
  });
}

}  // namespace tessera
