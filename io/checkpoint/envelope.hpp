// The head of every checkpoint file. HDF5 leaves a "user block" at the start of a file to its writer; ours holds one line that says what
// the file is, then a JSON text ("directory") with a checksum. Our reader works from it alone: it never parses HDF5 metadata, so a damaged
// file cannot lead it astray, and every byte of the file is covered by some checksum.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "base/hash.hpp"
#include "io/files/posix_file.hpp"
#include "io/hdf5/hdf5.hpp"

namespace tessera::io {

/// [begin, end) in bytes of a file.
struct Extent {
  std::int64_t begin = 0, end = 0;
};

struct Envelope {
  int format = 0;
  std::string directory;
  Hash128 hash;  // of `directory`
  std::int64_t file_bytes = 0, block_bytes = 0;
};

/// Bytes of user block for a directory of at most `directory_bytes`: a power of two, at least 4096.
std::int64_t user_block_for(std::int64_t directory_bytes);

/// An HDF5 file that exists in memory only: its metadata, with holes where raw data will go.
struct Image {
  PosixFile memory;
  std::int64_t bytes = 0;
};
Image build_image(const std::string& shown_name, std::int64_t user_block, const std::function<void(hdf5::File&)>& build);
/// Writes the metadata of the image to the same places of `out`, and nothing where `holes` (ascending) are.
void copy_image(const Image& image, PosixFile& out, std::span<const Extent> holes = {});

/// XXH3-128 of the bytes [begin, end) that lie in none of `holes` (ascending).
Hash128 hash_outside(const PosixFile& file, std::int64_t begin, std::int64_t end, std::span<const Extent> holes);

void write_envelope(PosixFile& out, std::string_view kind, const Envelope& envelope);
/// Checks that the file is one of ours, of a format that we read and of `kind`, whole, and that its directory is as it was written;
/// otherwise Error(checkpoint) that names the file and the cause.
Envelope read_envelope(const PosixFile& file, std::string_view kind);

}  // namespace tessera::io
