// UTF-8 checked as it streams by.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tessera::io {

/// Where a text stops being UTF-8.
struct Utf8Fault {
  std::int64_t line = 0;    // from 1
  std::int64_t offset = 0;  // byte of the text where the broken character starts, from 0
  unsigned char byte = 0;   // the byte that does not fit, or 0 where the text ends too early
  bool cut = false;         // the text ends inside a character
};

/// Feed pieces in order; a character may be split between pieces. Overlong forms, surrogates and values above U+10FFFF are faults.
class Utf8Checker {
 public:
  std::optional<Utf8Fault> feed(std::string_view piece);
  /// At the end of the text.
  std::optional<Utf8Fault> finish() const;

 private:
  bool step(unsigned char byte);
  std::int64_t offset_ = 0, start_ = 0, line_ = 1;
  int pending_ = 0;                         // bytes that the character still needs
  unsigned char low_ = 0x80, high_ = 0xbf;  // what the next of them may be
};

/// Error(usage): a text of the command line is no UTF-8. `what`: "--field".
void require_utf8(const std::string& what, const std::string& text);

}  // namespace tessera::io
