#include "io/tokens/bin_layout.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>
#include <vector>

namespace tessera::io {
namespace {

struct LayoutKind {
  std::int32_t magic, version;
  std::size_t token_bytes;
  const char* name;
};
constexpr LayoutKind kinds[] = {{20240520, 1, 2, "GPT-2"}, {20240801, 7, 4, "Llama-3"}};
constexpr std::int32_t evaluation_magic = 20240522;
constexpr std::int64_t header_bytes = 1024;

BinLayout with_header(const PosixFile& file, const LayoutKind& kind, std::int32_t version, std::int32_t tokens) {
  const std::int64_t bytes = file.size();
  if (version != kind.version)
    fail(ExitCode::data,
         "{}: its header is that of llm.c's {} tokens in version {}, but only version {} can be read. Write it with a version of llm.c "
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

/// Numbers of 16 bits from a file's beginning, middle and end, in groups of four that begin where the file's own groups of 8 bytes do.
std::vector<std::uint16_t> sample_of(const PosixFile& file) {
  constexpr std::int64_t most = 1 << 14;
  const std::int64_t numbers = file.size() / 2 / 4 * 4;
  std::vector<std::uint16_t> sample;
  for (const std::int64_t begin : {std::int64_t{0}, std::max(most, numbers / 2 / 4 * 4), std::max(2 * most, numbers - most)}) {
    const std::int64_t count = std::min(most, numbers - begin);
    if (count <= 0) break;
    const std::size_t done = sample.size();
    sample.resize(done + static_cast<std::size_t>(count));
    if (file.read(2 * begin, sample.data() + done, 2 * static_cast<std::size_t>(count)) != 2 * static_cast<std::size_t>(count)) return {};
  }
  return sample;
}

/// So many numbers of a type at least speak for it: fewer may be chance, or the padding of a short file.
constexpr std::int64_t least = 64;

/// All numbers of this type are whole, from 0 to `limit`, and not all 0.
template <class T>
bool all_ids(const std::vector<std::uint16_t>& sample, double limit) {
  std::int64_t above_zero = 0;
  for (std::size_t at = 0; at + sizeof(T) / 2 <= sample.size(); at += sizeof(T) / 2) {
    T value;
    std::memcpy(&value, sample.data() + at, sizeof value);
    const auto number = static_cast<double>(value);
    if (!(number >= 0 && number < limit && std::floor(number) == number)) return false;
    above_zero += number > 0;
  }
  return above_zero >= least;
}

/// 32-bit ids read as 16-bit ones: of each pair the second, the upper half, is 0, or almost nothing where the first is not.
bool all_pairs_wide(const std::vector<std::uint16_t>& sample) {
  constexpr std::uint16_t small = 16;  // upper halves of ids below 2^20; vocabularies end before
  std::int64_t pairs = 0, above_zero = 0, large = 0;
  bool zeros = true;
  for (std::size_t i = 0; i + 1 < sample.size(); i += 2, ++pairs) {
    if (sample[i + 1] >= small) return false;
    zeros = zeros && sample[i + 1] == 0;
    above_zero += sample[i] > 0, large += sample[i] >= small;
  }
  return (zeros && above_zero >= least) || (pairs >= least && 2 * large >= pairs);
}

/// Only bytes that text has. Of token ids most are below 8192, with an upper byte that no text has.
bool all_text(const std::vector<std::uint16_t>& sample) {
  const std::string_view bytes(reinterpret_cast<const char*>(sample.data()), 2 * sample.size());
  const auto of_text = [](unsigned char c) { return c >= ' ' || (c >= '\t' && c <= '\r'); };
  return std::ssize(sample) >= 4 * least && std::ranges::all_of(bytes, of_text);
}

/// Refuses what trains as uint16 and is something else. Each test holds of every number in up to 49,152, from three places: were the tokens
/// of real text 0 (or below 16) as often as one in ten, 64 of them in a row at every second place would be one chance in 10^64. A made-up
/// file may be so on purpose, and data.bin_ids says it.
void refuse_others(const PosixFile& file) {
  const std::vector<std::uint16_t> sample = sample_of(file);
  const std::int64_t bytes = file.size();
  const std::string& path = file.path();
  const auto refuse = [&](const std::string& is, const char* type) {
    const std::string convert =
        type ? fmt::format(
                   "Convert it: python3 -c \"import numpy; numpy.fromfile('{}', '{}').astype('<u4').tofile('{}.u32.bin')\", and set "
                   "data.bin_ids = \"uint32\"",
                   path, type, path)
             : std::string("Set data.bin_ids = \"uint32\"");
    fail(ExitCode::data,
         "{}: it looks like ids of {}, in all of {} places that were checked, but a .bin without a header is read as uint16. {}. If the "
         "ids do have 16 bits, set data.bin_ids = \"uint16\" (evaluate: --bin-ids).",
         path, is, sample.size(), convert);
  };
  constexpr double ids = 1LL << 32, exact_floats = 1 << 24;
  if (all_text(sample))
    fail(ExitCode::data,
         "{}: it looks like text, but a .bin holds token ids of 16 bits. Make tokens from it with `tessera tokenize`; if these are ids, "
         "set data.bin_ids = \"uint16\".",
         path);
  if (bytes % 8 == 0 && all_ids<std::int64_t>(sample, ids)) refuse("64 bits (int64)", "<i8");
  if (bytes % 8 == 0 && all_ids<double>(sample, ids)) refuse("float64", "<f8");
  if (bytes % 4 == 0 && all_ids<float>(sample, exact_floats)) refuse("float32", "<f4");
  if (bytes % 4 == 0 && all_pairs_wide(sample)) refuse("32 bits: every second number of 16 bits is almost nothing", nullptr);
}

void refuse_numpy(const PosixFile& file) {
  char head[128] = {};
  const std::string_view begin(head, file.read(0, head, sizeof head));
  if (!begin.starts_with("\x93NUMPY")) return;
  const bool narrow = begin.find("'<u2'") != begin.npos;
  fail(ExitCode::data,
       "{0}: this is an array of NumPy, but a .bin holds only ids. Convert it: python3 -c \"import numpy; "
       "numpy.load('{0}').astype('{1}').tofile('{0}.{2}.bin')\"{3}.",
       file.path(), narrow ? "<u2" : "<u4", narrow ? "u16" : "u32", narrow ? "" : ", and set data.bin_ids = \"uint32\"");
}

const LayoutKind* kind_of(std::int32_t magic) {
  const auto* kind = std::ranges::find(kinds, magic, &LayoutKind::magic);
  return kind == std::end(kinds) ? nullptr : kind;
}

}  // namespace

bool has_bin_header(const PosixFile& file) {
  std::int32_t magic = 0;
  return file.read(0, &magic, sizeof magic) == sizeof magic && (kind_of(magic) || magic == evaluation_magic);
}

bool has_hdf5_signature(const PosixFile& file) {
  constexpr std::string_view signature = "\x89HDF\r\n\x1a\n";
  char here[8] = {};
  for (std::int64_t at = 0; file.read(at, here, sizeof here) == sizeof here; at = at == 0 ? 512 : 2 * at)
    if (std::string_view(here, sizeof here) == signature) return true;
  return false;
}

BinLayout bin_layout(const PosixFile& file, BinIds ids) {
  const std::int64_t bytes = file.size();
  std::int32_t header[3] = {0, 0, 0};
  if (file.read(0, header, sizeof header) == sizeof header) {
    if (const LayoutKind* kind = kind_of(header[0])) return with_header(file, *kind, header[1], header[2]);
    if (header[0] == evaluation_magic)
      fail(ExitCode::data, "{}: this is a file of multiple-choice questions of llm.c, not text to train on. Give a file of tokens.",
           file.path());
  }
  refuse_numpy(file);
  const std::int64_t width = ids == BinIds::uint32 ? 4 : 2;
  if (bytes % width != 0)
    fail(ExitCode::data, "{}: {} bytes are not whole uint{} tokens: the file is truncated. Copy or make it again.", file.path(), bytes,
         8 * width);
  if (ids == BinIds::automatic) refuse_others(file);
  return {0, bytes / width, static_cast<std::size_t>(width)};
}

}  // namespace tessera::io
