// What a terminal would obey is shown, whoever prints it.
#include "base/printable.hpp"

#include <gtest/gtest.h>

#include "base/log.hpp"

namespace tessera::test::printable_test {
namespace {

TEST(Printable, WhatATerminalWouldObeyIsShown) {
  struct {
    std::string_view text, shown;
  } cases[] = {
      {"", ""},
      {"plain words, 7 \"quotes\" and \\ slashes", "plain words, 7 \"quotes\" and \\ slashes"},
      {"naïve café Привет 你好 ع 😀", "naïve café Привет 你好 ع 😀"},
      {"\x1b[2J\x1b]0;title\x07", "\\u001b[2J\\u001b]0;title\\u0007"},
      {"a\rb\b\x7f\v", "a\\u000db\\u0008\\u007f\\u000b"},
      {"\xc2\x9b"
       "31m",
       "\\u009b31m"},  // CSI as one character
      {"\xe2\x80\xae"
       "cod.exe",
       "\\u202ecod.exe"},  // right to left
      {"\xe2\x80\xa8\xe2\x81\xa6", "\\u2028\\u2066"},
      {"\x9b"
       "31m",
       "\\x9b31m"},  // the same as a byte, as terminals of 8 bits take it
      {"\xff\xfe", "\\xff\\xfe"},
      {"\xc0\x9b", "\\xc0\\x9b"},  // overlong
      {"\xe0\x82\x9b", "\\xe0\\x82\\x9b"},
      {"\xed\xa0\x80", "\\xed\\xa0\\x80"},  // half of a pair
      {"\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"},
      {"a\xe4\xbd", "a\\xe4\\xbd"},  // cut
      {"\xe4\x1b[m", "\\xe4\\u001b[m"},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(printable(c.text), c.shown);
    EXPECT_EQ(printable_name(c.text), c.shown);
    EXPECT_EQ(printable(printable(c.text)), c.shown) << "once is enough";
  }
  EXPECT_EQ(printable(std::string_view("\0", 1)), "\\u0000");
  EXPECT_EQ(printable("two\n\tlines\n"), "two\n\tlines\n");
  EXPECT_EQ(printable_name("two\n\tlines"), "two\\u000a\\u0009lines");
}

TEST(Printable, NoByteReachesATerminalThatItWouldObey) {
  for (int first = 0; first < 256; ++first)
    for (int second = 0; second < 256; ++second) {
      const std::string shown = printable(std::string{static_cast<char>(first), static_cast<char>(second)});
      for (const char c : shown) EXPECT_TRUE(c == '\n' || c == '\t' || (static_cast<unsigned char>(c) >= 0x20 && c != 0x7f)) << first;
      EXPECT_FALSE(shown.size() == 2 && shown[0] == '\xc2' && static_cast<unsigned char>(shown[1]) < 0xa0) << second;
    }
}

TEST(Printable, LinesOfTheLogAndWhatCommandsPrintAre) {
  const std::string name = "layers.0\x1b[2J.weight";
  testing::internal::CaptureStderr();
  info("read {}", name), warning("no {}", name), log_line(LogLevel::error, "bad " + name + "\n  second line");
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "read layers.0\\u001b[2J.weight\ntessera: warning: no layers.0\\u001b[2J.weight\n"
            "tessera: error: bad layers.0\\u001b[2J.weight\n  second line\n");
  testing::internal::CaptureStdout();
  put("{}|\n", name);
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "layers.0\\u001b[2J.weight|\n");
}

}  // namespace
}  // namespace tessera::test::printable_test
