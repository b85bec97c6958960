// The line that moves: on a terminal alone, and gone afterwards.
#include "base/progress_line.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <string>

namespace tessera::progress_line_test {
namespace {

double now = 0;

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
    now = 100;
    ProgressLine line("predict", 4, [] { return now; });
    line.show(0.5);
    line.part_ends();
    now += 1.1;
    line.show(1);
  }
  dup2(before, STDERR_FILENO);
  close(before);
  close(ends[1]);
  // A terminal hands over its text in parts. All of it is there where read() says that nobody can write any more.
  std::string text;
  char part[256];
  for (ssize_t size = 0; (size = read(ends[0], part, sizeof part)) > 0;) text.append(part, static_cast<std::size_t>(size));
  close(ends[0]);
  return text;
}

TEST(ProgressLine, IsOnATerminalAloneAndNotOfWhatIsQuick) {
  EXPECT_EQ(shown(false), "");
  const std::string text = shown(true);
  if (text == "no terminal") GTEST_SKIP() << text;
  EXPECT_EQ(text, "\r\033[Kpredict 50 %, 1 s left\r\033[K") << "the first second says nothing";
}

}  // namespace
}  // namespace tessera::progress_line_test
