// Digests of tokenizers: equal ones make the same tokens of a text. One is XXH3-128 of tokenizer.json, a hyphen, and 16 digits of what the
// files beside it change: the class of transformers that builds the tokenizer with its options, and tokens that tokenizer.json lacks. The
// token that ends a document is not part of it, since a user may choose another; nor is the chat template.
#pragma once
#include <string>
#include <string_view>

namespace tessera::io {

struct TokenizerFiles;

std::string tokenizer_digest(const TokenizerFiles& files);
/// Of the files in a folder. Error(data): tokenizer.json cannot be read.
std::string tokenizer_digest(const std::string& folder);

/// Earlier versions wrote 32 digits, of tokenizer.json alone.
bool is_tokenizer_digest(std::string_view text);
bool has_tokenizer_settings(std::string_view digest);
/// Whether nothing speaks against it: one of tokenizer.json alone is compared in that.
bool may_be_same_tokenizer(std::string_view a, std::string_view b);
/// For messages: the first digits of what is compared.
std::string first_digits(std::string_view digest);
/// What differs between two digests: "" or, where tokenizer.json is the same, words that say so.
std::string settings_differ(std::string_view a, std::string_view b);

}  // namespace tessera::io
