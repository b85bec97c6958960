#include "train/text/decoder.hpp"

#include <algorithm>

#include "train/text/sampling.hpp"

namespace tessera {

Decoder::Decoder(Engine& engine)
    : engine_(engine),
      size_(engine.planned().request.text),
      prompt_(engine.host_values<std::int32_t>("prompt")),
      token_(engine.host_values<std::int32_t>("token")),
      logits_(engine.host_values<float>("logits")),
      likeliest_(engine.host_values<std::int32_t>("likeliest")) {
  TESSERA_REQUIRE(size_.capacity > 0, "an engine without room for a text");
}

void Decoder::start(std::span<const std::int32_t> tokens) {
  TESSERA_REQUIRE(length_ == 0 && static_cast<std::int64_t>(tokens.size()) == size_.prompt, "a start with {} tokens after {}",
                  tokens.size(), length_);
  if (tokens.size() == 1) return next(tokens[0]);
  std::ranges::copy(tokens, prompt_.begin());
  engine_.run(ProgramKind::prompt);
  length_ = size_.prompt;
}

void Decoder::next(std::int32_t token) {
  TESSERA_REQUIRE(length_ < size_.capacity, "the caches hold {} tokens", size_.capacity);
  token_[0] = token, token_[1] = static_cast<std::int32_t>(length_);
  engine_.run(ProgramKind::token);
  ++length_;
}

std::span<const float> Decoder::logits() const {
  TESSERA_REQUIRE(!size_.likeliest, "logits of a text of most likely tokens");
  return logits_;
}

std::int32_t Decoder::likeliest() const {
  TESSERA_REQUIRE(size_.likeliest, "the most likely token of a text that is drawn");
  if (likeliest_[0] < 0) fail_of_logits(length_);
  return likeliest_[0];
}

}  // namespace tessera
