#include "train/text/sample_texts.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sstream>

#include "base/byte_tokenizer.hpp"
#include "base/check.hpp"
#include "deck/schema/value.hpp"
#include "deck/tokenizer_python.hpp"
#include "io/files/posix_file.hpp"
#include "io/files/utf8.hpp"

namespace tessera {
namespace {

std::vector<std::string> prompts_of(const SampleKeys& keys) {
  std::vector<std::string> prompts = keys.prompts;
  if (!keys.file.empty()) {
    std::istringstream lines(io::read_small_file(keys.file, ExitCode::data));
    for (std::string line; std::getline(lines, line);) {
      if (line.ends_with('\r')) line.pop_back();
      if (!line.empty()) prompts.push_back(line);
    }
    if (prompts.empty()) fail(ExitCode::data, "samples.file = \"{}\" has only empty lines: write a prompt a line", keys.file);
  }
  for (std::size_t k = 0; k < prompts.size(); ++k) {
    io::Utf8Checker checker;
    if (checker.feed(prompts[k]) || checker.finish())
      fail(ExitCode::data, "prompt {} of [samples] is not UTF-8. Convert it, for example with iconv -t UTF-8", k + 1);
  }
  return prompts;
}

std::unique_ptr<Language> language_of(const Deck& deck, const RunTokenizer& tokenizer) {
  if (!tokenizer.folder.empty())
    return std::make_unique<ModelLanguage>(io::TokenizerSource{.python = tokenizer_python(), .folder = tokenizer.folder}, deck.model.vocab);
  if (tokenizer.digest.empty() && deck.model.vocab == byte_tokenizer_vocab) return std::make_unique<ByteLanguage>();
  fail(ExitCode::usage,
       "samples.every: prompts need the run's tokenizer, and its folder is not known. Name it with data.tokenizer=DIR, or set "
       "samples.every = 0");
}

/// "1 2 3" a prompt.
std::vector<std::vector<std::int32_t>> parse_tokens(const std::string& text) {
  std::vector<std::vector<std::int32_t>> all;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream numbers(line);
    std::vector<std::int32_t>& tokens = all.emplace_back();
    for (std::int32_t token = 0; numbers >> token;) tokens.push_back(token);
  }
  return all;
}

}  // namespace

std::optional<SampleTexts> read_sample_texts(const World& world, const Deck& deck, const RunTokenizer& tokenizer) {
  if (deck.samples.every == 0) return {};
  SampleTexts texts;
  std::string tokens;
  world.together([&] {
    if (world.rank() != 0) return;
    texts.prompts = prompts_of(deck.samples);
    texts.language = language_of(deck, tokenizer);
    for (const std::string& prompt : texts.prompts) {
      const std::vector<std::int32_t> of_prompt = texts.language->encode(prompt);
      if (of_prompt.empty()) fail(ExitCode::data, "{} of [samples] has no token: give a prompt that has one", toml_string(prompt));
      if (std::ssize(of_prompt) >= deck.samples.tokens)
        fail(ExitCode::data, "{} of [samples] has {} tokens, so samples.tokens = {} leaves none to follow: set samples.tokens={}",
             toml_string(prompt), of_prompt.size(), deck.samples.tokens, of_prompt.size() + 64);
      tokens += fmt::format("{}\n", fmt::join(of_prompt, " "));
    }
  });
  texts.tokens = parse_tokens(world.broadcast_text(tokens));
  return texts;
}

}  // namespace tessera
