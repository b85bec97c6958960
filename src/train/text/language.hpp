// How a text becomes tokens, and tokens a text.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "io/tokenizer/tokenizer.hpp"

namespace tessera {

class Language {
 public:
  virtual ~Language() = default;
  /// Of a text that is to be continued.
  virtual std::vector<std::int32_t> encode(const std::string& text) = 0;
  /// The tokens that are said from here on come after these.
  virtual void begin(const std::vector<std::int32_t>& prompt) { static_cast<void>(prompt); }
  virtual bool ends(std::int32_t token) const { return static_cast<void>(token), false; }
  /// What a token adds to the text.
  virtual std::string say(std::int32_t token) = 0;
  virtual std::string rest() { return ""; }
};

/// A token a byte, after the one that begins a document.
class ByteLanguage : public Language {
 public:
  std::vector<std::int32_t> encode(const std::string& text) override;
  bool ends(std::int32_t token) const override;
  std::string say(std::int32_t token) override { return {static_cast<char>(token)}; }
};

/// Of a model's own tokenizer. Error(data) where a prompt has a token that a model of so many does not have.
class ModelLanguage : public Language {
 public:
  ModelLanguage(const io::TokenizerSource& source, std::int64_t vocab);
  std::vector<std::int32_t> encode(const std::string& text) override { return checked(tokenizer_.encode_prompt(text)); }
  /// Of a message that is to be answered.
  std::vector<std::int32_t> encode_question(const std::string& system, const std::string& text) {
    return checked(tokenizer_.encode_question(system, text));
  }
  void begin(const std::vector<std::int32_t>& prompt) override { tokenizer_.begin_text(prompt); }
  bool ends(std::int32_t token) const override;
  std::string say(std::int32_t token) override { return tokenizer_.next_text(token); }
  std::string rest() override { return tokenizer_.rest_of_text(); }

 private:
  std::vector<std::int32_t> checked(std::vector<std::int32_t> tokens) const;
  io::Tokenizer tokenizer_;
  std::string folder_;
  std::int64_t vocab_;
};

}  // namespace tessera
