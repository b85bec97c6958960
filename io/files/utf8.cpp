#include "io/files/utf8.hpp"

#include <algorithm>
#include <cstring>

#include "base/check.hpp"

namespace tessera::io {

/// The well-formed sequences of the Unicode standard (table 3-7): only the second byte is restricted beyond 80..BF.
bool Utf8Checker::step(unsigned char byte) {
  if (pending_ > 0) {
    if (byte < low_ || byte > high_) return false;
    low_ = 0x80, high_ = 0xbf, --pending_;
    return true;
  }
  if (byte < 0x80) return true;
  if (byte < 0xc2 || byte > 0xf4) return false;
  pending_ = byte < 0xe0 ? 1 : byte < 0xf0 ? 2 : 3;
  low_ = byte == 0xe0 ? 0xa0 : byte == 0xf0 ? 0x90 : 0x80;
  high_ = byte == 0xed ? 0x9f : byte == 0xf4 ? 0x8f : 0xbf;
  return true;
}

std::optional<Utf8Fault> Utf8Checker::feed(std::string_view piece) {
  for (std::size_t i = 0; i < piece.size();) {
    // Most text is ASCII: eight bytes at once.
    std::uint64_t eight;
    if (pending_ == 0 && i + 8 <= piece.size() && (std::memcpy(&eight, piece.data() + i, 8), (eight & 0x8080808080808080u) == 0)) {
      i += 8;
      continue;
    }
    auto byte = static_cast<unsigned char>(piece[i]);
    if (pending_ == 0) start_ = offset_ + static_cast<std::int64_t>(i);
    if (!step(byte)) {
      line_ += std::count(piece.begin(), piece.begin() + static_cast<std::ptrdiff_t>(i), '\n');
      return Utf8Fault{line_, start_, byte, false};
    }
    ++i;
  }
  line_ += std::count(piece.begin(), piece.end(), '\n');
  offset_ += static_cast<std::int64_t>(piece.size());
  return std::nullopt;
}

std::optional<Utf8Fault> Utf8Checker::finish() const {
  if (pending_ == 0) return std::nullopt;
  return Utf8Fault{line_, start_, 0, true};
}

void require_utf8(const std::string& what, const std::string& text) {
  Utf8Checker checker;
  if (checker.feed(text) || checker.finish()) fail(ExitCode::usage, "{} is not UTF-8: {}. Give one that is.", what, text);
}

}  // namespace tessera::io
