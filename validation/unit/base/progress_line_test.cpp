// The line that moves: on a terminal alone, and gone afterwards.
#include "base/progress_line.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <string>

namespace tessera::progress_line_test {
namespace {

/// What comes on standard error, a terminal or a pipe, where two of four parts take a little over a second.
std::string shown(bool terminal) {
  int ends[2] = {-1, -1};
  if (terminal) {
    ends[0] = posix_openpt(O_RDWR | O_NOCTTY);
    if (ends[0] >= 0 && grantpt(ends[0]) == 0 && unlockpt(ends[0]) == 0) ends[1] = open(ptsname(ends[0]), O_RDWR | O_NOCTTY);
  } else if (pipe(ends) != 0) {
    return "no pipe";
  }
  if (ends[1] < 0) return "no terminal";
  const int before = dup(STDERR_FILENO);
  dup2(ends[1], STDERR_FILENO);
  {
    ProgressLine line("predict", 4);
    line.show(0.5);
    line.part_ends();
    usleep(1100000);
    line.show(1);
  }
  dup2(before, STDERR_FILENO);
  close(before);
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  char text[256] = {};
  const ssize_t size = read(ends[0], text, sizeof text);
  close(ends[0]);
  close(ends[1]);
  return {text, static_cast<std::size_t>(size > 0 ? size : 0)};
}

TEST(ProgressLine, IsOnATerminalAloneAndNotOfWhatIsQuick) {
  EXPECT_EQ(shown(false), "");
  const std::string text = shown(true);
  if (text == "no terminal") GTEST_SKIP() << text;
  EXPECT_TRUE(text.starts_with("\r\033[Kpredict 50 %, ")) << text;
  EXPECT_TRUE(text.ends_with(" left\r\033[K")) << text;
  EXPECT_EQ(text.find("predict", text.find("predict") + 1), text.npos) << "the first second says nothing: " << text;
}

}  // namespace
}  // namespace tessera::progress_line_test
