// Where the tokens of a .bin file lie.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/words.hpp"
#include "io/files/posix_file.hpp"

namespace tessera::io {

struct BinLayout {
  std::int64_t begin = 0;  ///< byte of the first token
  std::int64_t tokens = 0;
  std::size_t token_bytes = 2;
};

/// nanoGPT's form is uint16 and nothing else; `ids` = uint32 says 32 bits of a file without a header. llm.c's has a header of 256 int32
/// first (magic, version, number of tokens) and uint16 for GPT-2, uint32 for Llama-3. Errors (ExitCode::data): a header of another version,
/// a number of tokens that the file's size belies, an array of NumPy, and with `ids` = automatic text, and ids of 32 or 64 bits or floats.
BinLayout bin_layout(const PosixFile& file, BinIds ids);
/// Whether the file begins with a header of llm.c.
bool has_bin_header(const PosixFile& file);
/// Whether the file has the signature of HDF5, at one of the places where it may stand.
bool has_hdf5_signature(const PosixFile& file);

}  // namespace tessera::io
