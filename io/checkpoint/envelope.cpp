#include "io/checkpoint/envelope.hpp"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <vector>

#include "base/types.hpp"
#include "io/checkpoint/checkpoint.hpp"

namespace tessera::io {
namespace {

static_assert(std::endian::native == std::endian::little, "checkpoint files hold little-endian numbers as they are in memory");
constexpr std::size_t line_bytes = 160;
constexpr std::int64_t most_block_bytes = 1 << 30;  // read before it is known to be right: directories of the largest models take a tenth
constexpr std::string_view restore = "Restore the file from a copy, or use an older checkpoint of the run.";

std::string head_line(std::string_view kind, const Envelope& e) {
  std::string line = fmt::format("tessera checkpoint format {}: {} of {:015} bytes, block {:010}, directory {:010}, xxh3 {}", e.format,
                                 kind, e.file_bytes, e.block_bytes, e.directory.size(), e.hash.hex());
  line.resize(line_bytes - 1, ' ');
  return line + "\n";
}

/// The number after `word`, or -1.
std::int64_t number_after(std::string_view line, std::string_view word) {
  auto at = line.find(word);
  if (at == std::string_view::npos) return -1;
  line.remove_prefix(at + word.size());
  std::int64_t value = -1;
  auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), value);
  return error == std::errc() ? value : -1;
}

}  // namespace

std::int64_t user_block_for(std::int64_t directory_bytes) {
  auto need = static_cast<std::uint64_t>(directory_bytes) + line_bytes;
  return static_cast<std::int64_t>(std::bit_ceil(std::max<std::uint64_t>(need, 4096)));
}

Image build_image(const std::string& shown_name, std::int64_t user_block, const std::function<void(hdf5::File&)>& build) {
  Image image{PosixFile::in_memory(shown_name), 0};
  // Raw data start on pages, so that large writes and reads are aligned.
  auto file = hdf5::File::create(image.memory.link_path(), {.user_block = user_block, .alignment = 4096, .through_descriptor = true},
                                 ExitCode::storage, shown_name);
  build(file);
  file.close();
  image.bytes = image.memory.size();
  return image;
}

void copy_image(const Image& image, PosixFile& out, std::span<const Extent> holes) {
  std::vector<char> buffer(1 << 20);
  auto copy = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t p = begin; p < end;) {
      auto n = image.memory.read(p, buffer.data(), static_cast<std::size_t>(std::min<std::int64_t>(1 << 20, end - p)));
      TESSERA_REQUIRE(n > 0);
      out.write(p, buffer.data(), n);
      p += static_cast<std::int64_t>(n);
    }
  };
  std::int64_t begin = 0, end = 0;
  for (std::int64_t at = 0; image.memory.next_run(at, begin, end); at = end) {
    for (; !holes.empty() && holes.front().begin < end; holes = holes.subspan(1)) {
      copy(begin, holes.front().begin);
      begin = std::max(begin, holes.front().end);
      if (begin >= end) break;  // it may go on in the next run
    }
    copy(begin, end);
  }
}

Hash128 hash_outside(const PosixFile& file, std::int64_t begin, std::int64_t end, std::span<const Extent> holes) {
  Hasher hasher;
  std::vector<char> buffer(1 << 18);
  auto add = [&](std::int64_t from, std::int64_t to) {
    while (from < to) {
      auto n = file.read(from, buffer.data(), static_cast<std::size_t>(std::min<std::int64_t>(1 << 18, to - from)));
      if (n == 0) return;  // a file that ends early gives another hash
      hasher.update(buffer.data(), n);
      from += static_cast<std::int64_t>(n);
    }
  };
  for (auto& hole : holes) {
    add(begin, std::min(hole.begin, end));
    begin = std::max(begin, hole.end);
  }
  add(begin, end);
  return hasher.digest();
}

void write_envelope(PosixFile& out, std::string_view kind, const Envelope& e) {
  TESSERA_REQUIRE(static_cast<std::int64_t>(line_bytes + e.directory.size()) <= e.block_bytes);
  std::string block = head_line(kind, e) + e.directory;
  block.resize(static_cast<std::size_t>(e.block_bytes), '\0');
  out.write(0, block.data(), block.size());
}

Envelope read_envelope(const PosixFile& file, std::string_view kind) {
  std::string line(line_bytes, '\0');
  line.resize(file.read(0, line.data(), line.size()));
  auto refuse = [&](const std::string& why) { fail(ExitCode::checkpoint, "{}: {} {}", file.path(), why, restore); };
  if (line.empty()) refuse("the file is empty.");
  auto format = number_after(line, "tessera checkpoint format ");
  if (line.size() < line_bytes || format < 0 || !line.starts_with("tessera checkpoint format "))
    refuse(fmt::format("this is not a Tessera checkpoint {}, or its first bytes are damaged.", kind));
  if (format < 1 || format > newest_checkpoint_format)
    fail(ExitCode::checkpoint, "{}: checkpoint format {} cannot be read by this Tessera (1 to {}). Use the version that wrote it.",
         file.path(), format, newest_checkpoint_format);
  Envelope e;
  e.format = static_cast<int>(format);
  e.file_bytes = number_after(line, " of ");
  e.block_bytes = number_after(line, "block ");
  auto directory_bytes = number_after(line, "directory ");
  auto mark = line.find("xxh3 ");
  auto hex = mark == std::string::npos ? std::string_view() : std::string_view(line).substr(mark + 5, 32);
  bool sane = e.block_bytes >= 4096 && e.block_bytes <= most_block_bytes && e.file_bytes >= e.block_bytes && directory_bytes >= 0 &&
              directory_bytes <= e.block_bytes - static_cast<std::int64_t>(line_bytes) && parse_hash(hex, e.hash);
  if (!sane) refuse("its first line is damaged.");
  auto size = file.size();
  if (size < e.file_bytes) refuse(fmt::format("the file is truncated: {} of {} bytes.", size, e.file_bytes));
  if (size > e.file_bytes) refuse(fmt::format("the file has {} bytes, but {} were written: it was altered.", size, e.file_bytes));
  std::string block(static_cast<std::size_t>(e.block_bytes), '\0');
  if (file.read(0, block.data(), block.size()) != block.size()) refuse("the file is truncated.");
  e.directory = block.substr(line_bytes, static_cast<std::size_t>(directory_bytes));
  if (hash_text(e.directory) != e.hash) refuse("its directory does not match its checksum: the file was altered.");
  bool padded =
      std::all_of(block.begin() + static_cast<std::ptrdiff_t>(line_bytes) + directory_bytes, block.end(), [](char c) { return c == '\0'; });
  if (head_line(kind, e) != line.substr(0, line_bytes) || !padded)
    refuse(fmt::format("its head is not that of a {}: it was altered or belongs to another file.", kind));
  return e;
}

}  // namespace tessera::io
