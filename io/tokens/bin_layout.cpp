#include "io/tokens/bin_layout.hpp"

#include <algorithm>
#include <vector>

namespace tessera::io {
namespace {

struct Kind {
  std::int32_t magic, version;
  std::size_t token_bytes;
  const char* name;
};
constexpr Kind kinds[] = {{20240520, 1, 2, "GPT-2"}, {20240801, 7, 4, "Llama-3"}};
constexpr std::int32_t evaluation_magic = 20240522;
constexpr std::int64_t header_bytes = 1024;

BinLayout with_header(const PosixFile& file, const Kind& kind, std::int32_t version, std::int32_t tokens) {
  const std::int64_t bytes = file.size();
  if (version != kind.version)
    fail(ExitCode::data,
         "{}: its header is that of llm.c's {} tokens in version {}; version {} is the one that can be read. Write it with a version of "
         "llm.c "
         "that makes this one, or write HDF5.",
         file.path(), kind.name, version, kind.version);
  const std::int64_t expected = header_bytes + tokens * static_cast<std::int64_t>(kind.token_bytes);
  if (tokens < 0 || bytes != expected)
    fail(ExitCode::data, "{}: its header promises {} tokens ({} bytes) but the file has {} bytes: it is {}. Copy or make it again.",
         file.path(), tokens, expected, bytes,
         tokens < 0         ? "damaged"
         : bytes < expected ? "truncated"
                            : "too long");
  return {header_bytes, tokens, kind.token_bytes};
}

/// 32-bit ids read as 16-bit ones: of each pair the second, their upper half, is almost nothing, and the first is not.
void refuse_wide_ids(const PosixFile& file, std::int64_t tokens) {
  constexpr std::int64_t most = 4096, least = 64;
  constexpr std::uint16_t small = 16;  // upper halves of ids below 2^20; vocabularies end before
  std::vector<std::uint16_t> ids(most);
  std::int64_t pairs = 0, large_first = 0;
  for (std::int64_t part : {0, 1, 2}) {                                                  // at the beginning, in the middle, at the end
    const std::int64_t begin = std::max<std::int64_t>(0, tokens - most) / 4 * part * 2;  // even
    const auto read = file.read(2 * begin, ids.data(), 2 * static_cast<std::size_t>(std::min(most, tokens - begin)));
    for (std::size_t i = 0; i + 1 < read / 2; i += 2, ++pairs) {
      if (ids[i + 1] >= small) return;
      large_first += ids[i] >= small;
    }
  }
  if (pairs < least || 2 * large_first < pairs) return;
  fail(ExitCode::data,
       "{}: it looks like ids of 32 bits: every second number of 16 bits is below {}. A .bin without a header is read as uint16. Write the "
       "tokens as uint16 (numpy: tokens.astype(numpy.uint16).tofile), or, with ids above 65535, as a dataset 'tokens' of uint32 in HDF5.",
       file.path(), small);
}

}  // namespace

BinLayout bin_layout(const PosixFile& file) {
  const std::int64_t bytes = file.size();
  std::int32_t header[3] = {0, 0, 0};
  if (file.read(0, header, sizeof header) == sizeof header) {
    for (const Kind& kind : kinds)
      if (header[0] == kind.magic) return with_header(file, kind, header[1], header[2]);
    if (header[0] == evaluation_magic)
      fail(ExitCode::data, "{}: this is a file of multiple-choice questions of llm.c, no text to train on. Give a file of tokens.",
           file.path());
  }
  if (bytes % 2 != 0)
    fail(ExitCode::data, "{}: {} bytes are not whole uint16 tokens: the file is truncated. Copy or make it again.", file.path(), bytes);
  refuse_wide_ids(file, bytes / 2);
  return {0, bytes / 2, 2};
}

}  // namespace tessera::io
