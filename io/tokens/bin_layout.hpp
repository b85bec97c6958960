// Where the tokens of a .bin file lie.
#pragma once
#include <cstddef>
#include <cstdint>

#include "io/files/posix_file.hpp"

namespace tessera::io {

struct BinLayout {
  std::int64_t begin = 0;  ///< byte of the first token
  std::int64_t tokens = 0;
  std::size_t token_bytes = 2;
};

/// nanoGPT's form is uint16 and nothing else. llm.c's has a header of 256 int32 first (magic, version, number of tokens) and uint16 for
/// GPT-2, uint32 for Llama-3. Errors (ExitCode::data): a header of another version, a number of tokens that the file's size belies, 32-bit
/// ids without a header.
BinLayout bin_layout(const PosixFile& file);

}  // namespace tessera::io
