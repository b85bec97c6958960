#include "base/printable.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

namespace tessera {
namespace {

constexpr char32_t none = 0xffffffff;

/// The character at the front of `text` and its bytes; none and 1 where it is no UTF-8: cut, overlong, half of a pair, or too large.
struct Character {
  char32_t code = none;
  std::size_t bytes = 1;
};
Character first_of(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char head = byte(0);
  if (head < 0x80) return {head, 1};
  const std::size_t bytes = head >= 0xf0 ? 4 : head >= 0xe0 ? 3 : 2;
  if (head < 0xc2 || head > 0xf4 || text.size() < bytes) return {};
  char32_t code = head & (0xffu >> (bytes + 1));
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3fu);
  }
  const char32_t least = bytes == 2 ? 0x80 : bytes == 3 ? 0x800 : 0x10000;
  if (code < least || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return {};
  return {code, bytes};
}

/// C0 and C1, of which U+009B begins commands as ESC [ does; line and paragraph separators; overrides and isolates of direction.
bool commands(char32_t c) { return c < 0x20 || (c >= 0x7f && c < 0xa0) || (c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069); }

std::string shown(std::string_view text, bool lines) {
  const auto plain = [&](char c) { return (c >= 0x20 && c < 0x7f) || (lines && (c == '\n' || c == '\t')); };
  if (std::ranges::all_of(text, plain)) return std::string(text);
  std::string out;
  while (!text.empty()) {
    const Character c = first_of(text);
    if (plain(text.front()) || (c.code != none && !commands(c.code)))
      out += text.substr(0, c.bytes);
    else if (c.code == none)
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text.front()));
    else
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c.code));
    text.remove_prefix(c.bytes);
  }
  return out;
}

}  // namespace

std::string printable(std::string_view text) { return shown(text, true); }
std::string printable_name(std::string_view name) { return shown(name, false); }

}  // namespace tessera
