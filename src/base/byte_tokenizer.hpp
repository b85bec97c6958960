// The byte tokenizer: a token is a byte, and one more stands between documents.
#pragma once
#include <cstdint>

namespace tessera {

inline constexpr std::int32_t byte_tokenizer_vocab = 257, byte_separator = 256;

}  // namespace tessera
