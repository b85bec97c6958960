#include "train/text/language.hpp"

#include <algorithm>

#include "base/byte_tokenizer.hpp"
#include "base/check.hpp"

namespace tessera {

std::vector<std::int32_t> ByteLanguage::encode(const std::string& text) {
  std::vector<std::int32_t> tokens{byte_separator};  // a document begins
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

bool ByteLanguage::ends(std::int32_t token) const { return token == byte_separator; }

ModelLanguage::ModelLanguage(const io::TokenizerSource& source, std::int64_t vocab)
    : tokenizer_(source), folder_(source.folder), vocab_(vocab) {}

bool ModelLanguage::ends(std::int32_t token) const {
  const std::vector<std::int32_t>& stops = tokenizer_.facts().stops;
  return std::ranges::find(stops, token) != stops.end();
}

std::vector<std::int32_t> ModelLanguage::checked(std::vector<std::int32_t> tokens) const {
  for (const std::int32_t id : tokens)
    if (id >= vocab_)
      fail(ExitCode::data,
           "{}/tokenizer.json makes token {} of the prompt, but the model has {} tokens. Remove that token's text from the prompt, or name "
           "the tokenizer of this model",
           folder_, id, vocab_);
  return tokens;
}

}  // namespace tessera
