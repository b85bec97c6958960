// tessera generate CHECKPOINT --prompt TEXT
#include <charconv>
#include <cstdio>
#include <memory>
#include <thread>

#include "base/byte_tokenizer.hpp"
#include "commands/commands.hpp"
#include "generate/decoder.hpp"
#include "generate/inference.hpp"
#include "generate/sampling.hpp"
#include "memory/runtime.hpp"
#include "train/device.hpp"

namespace tessera {
namespace {

struct GenerateOptions {
  std::string checkpoint, prompt, prompt_tokens, device = "auto";
  std::int64_t tokens = 200, top_k = 0, seed = 1;
  double temperature = 0.8;
};

std::vector<std::int32_t> parse_tokens(const std::string& text, std::int64_t vocab) {
  std::vector<std::int32_t> tokens;
  const char* at = text.data();
  const char* end = at + text.size();
  while (at < end) {
    std::int32_t token = 0;
    auto [next, error] = std::from_chars(at, end, token);
    if (error != std::errc() || (next < end && *next != ','))
      fail(ExitCode::usage, "--prompt-tokens takes numbers with commas between them, and {} is none", std::string(at, end));
    if (token < 0 || token >= vocab) fail(ExitCode::data, "--prompt-tokens: {} is not in the vocabulary (0 to {})", token, vocab - 1);
    tokens.push_back(token);
    at = next + 1;
  }
  return tokens;
}

std::vector<std::int32_t> prompt_of(const GenerateOptions& o, const Deck& deck, bool bytes) {
  if (!o.prompt_tokens.empty()) return parse_tokens(o.prompt_tokens, deck.model.vocab);
  if (!bytes)
    fail(ExitCode::usage,
         "this model has a vocabulary of {}, which is not the byte tokenizer's ({}): give the prompt as --prompt-tokens 1,2,3",
         deck.model.vocab, byte_tokenizer_vocab);
  std::vector<std::int32_t> tokens{byte_separator};  // a document begins
  for (char c : o.prompt) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

int generate(const GenerateOptions& o) {
  const std::string device = choose_device(o.device);
  KernelRuntime runtime(static_cast<int>(std::thread::hardware_concurrency()), spaces_of(device));
  // 1. The prompt, which says how much memory the text takes.
  const Deck deck = load_deck(o.checkpoint, device);
  const bool bytes = deck.model.vocab == byte_tokenizer_vocab && o.prompt_tokens.empty();
  const std::vector<std::int32_t> prompt = prompt_of(o, deck, bytes);
  const auto length = static_cast<std::int64_t>(prompt.size());
  const TextSize text{.prompt = length, .capacity = length + o.tokens, .likeliest = o.temperature == 0};
  // 2. The model.
  const LoadedModel model = load_model(o.checkpoint, device, {.text = text});
  Decoder decoder(*model.engine);
  // 3. The text.
  std::fputs(o.prompt.c_str(), stdout);
  decoder.start(prompt);
  for (std::int64_t i = 0; i < o.tokens; ++i) {
    const std::int32_t token =
        o.temperature > 0 ? sample_token(decoder.logits(), o.temperature, o.top_k, static_cast<std::uint64_t>(o.seed), decoder.length())
                          : decoder.likeliest();
    if (!bytes)
      fmt::print("{}{}", i ? "," : "", token);
    else if (token == byte_separator)
      break;  // the document ends
    else
      std::fputc(token, stdout);
    std::fflush(stdout);
    if (i + 1 < o.tokens) decoder.next(token);
  }
  std::fputc('\n', stdout);
  return 0;
}

}  // namespace

void add_generate(CLI::App& app, Chosen& chosen) {
  CLI::App* command = app.add_subcommand("generate", "Continue a text with a checkpoint's model");
  auto options = std::make_shared<GenerateOptions>();
  command->add_option("CHECKPOINT", options->checkpoint, "Step folder, for example runs/quickstart/checkpoints/latest")->required();
  command->add_option("--prompt", options->prompt, "Text to continue (models of the byte tokenizer)");
  command->add_option("--prompt-tokens", options->prompt_tokens, "Token ids to continue, 1,2,3 (any model); prints ids")
      ->excludes("--prompt");
  command->add_option("--tokens", options->tokens, "Tokens to add")->check(CLI::Range(1, 1000000000))->capture_default_str();
  command->add_option("--temperature", options->temperature, "0 takes the likeliest token each time")
      ->check(number_between(0, 1e6))
      ->capture_default_str();
  command->add_option("--top-k", options->top_k, "Draw from the k likeliest tokens; 0: from all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--seed", options->seed, "The same seed gives the same text")->capture_default_str();
  command->add_option("--device", options->device, "host, cuda, or auto: a GPU where this build has kernels for one and sees one")
      ->check(CLI::IsMember({"auto", "host", "cuda"}))
      ->capture_default_str();
  command->footer("Example:\n  tessera generate runs/quickstart/checkpoints/latest --prompt \"In the beginning\" --tokens 200");
  command->callback([options, &chosen] { chosen = [options] { return generate(*options); }; });
}

}  // namespace tessera
