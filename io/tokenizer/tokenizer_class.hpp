// The classes of transformers 5.24 that take the vocabulary of tokenizer.json alone and build the rest of a tokenizer themselves, as
// tokenizer_config.json says (models/*/tokenization_*.py); and which model has which (models/auto/tokenization_auto.py).
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "base/json.hpp"

namespace tessera::io {

constexpr std::int64_t most_tokenizer_bytes = 1 << 30;  ///< of tokenizer.json: the largest vocabularies take tens of MiB

struct TokenizerClass {
  std::string name;
  Json tokens;                 ///< special tokens by name where tokenizer_config.json names none
  bool before_text = false;    ///< a word gets a space before it unless add_prefix_space says otherwise
  bool reads_legacy = false;   ///< the key of that name
  bool reads_unknown = false;  ///< the text of unk_token
  std::string framed_by = {};  ///< name of the token that it puts before a text, whatever tokenizer.json has around one; "": none
};

/// What a folder says of a tokenizer.
struct TokenizerFiles {
  std::string tokenizer;  ///< tokenizer.json
  Json config;  ///< tokenizer_config.json, with special_tokens_map.json where that counts; what cannot be read is a text of its own
  Json model;   ///< config.json likewise
};

/// Error(data): tokenizer.json cannot be read. Of the others the reader says so (model_files.py).
TokenizerFiles read_tokenizer_files(const std::string& folder);

/// The class that builds the tokenizer; nullptr where tokenizer.json stands as it is.
const TokenizerClass* find_tokenizer_class(const TokenizerFiles& files);

/// The text of a member of the object that a text of JSON is, the last of this name; "" where there is none. What stands beside it is not
/// read: a vocabulary is large.
std::string_view member_text(std::string_view json, std::string_view name);

}  // namespace tessera::io
