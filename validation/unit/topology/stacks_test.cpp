#include "topology/failure/stacks.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "../scratch.hpp"

namespace tessera::stacks_test {
namespace {

char state_of(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string stat;
  std::getline(file, stat);
  const std::size_t end = stat.rfind(") ");
  return end == stat.npos ? '?' : stat[end + 2];
}

bool comes_to(pid_t process, char state) {
  constexpr int tries = 100000;
  for (int i = 0; i < tries; ++i, usleep(1000))
    if (state_of(process) == state) return true;
  return false;
}

TEST(Stacks, AreThoseOfAStoppedProcessWhichStaysStoppedAndOfOneThatLoops) {
  for (const bool stopped : {true, false}) {
    const pid_t child = fork();
    if (child == 0) {
      if (stopped) raise(SIGSTOP);
      volatile int turns = 0;
      while (true) turns = turns ^ 1;
    }
    ASSERT_GT(child, 0);
    int status = 0;
    if (stopped) {
      ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
    }
    const std::string text = read_stacks(child, 100);
    EXPECT_TRUE(test::has(text, stopped ? "stopped" : "runs")) << text;
    EXPECT_TRUE(test::has(text, "no stacks: ") || test::has(text, " in test_topology")) << text;
    // The kernel takes a moment to put it back.
    EXPECT_TRUE(comes_to(child, stopped ? 'T' : 'R'));
    if (stopped) {
      kill(child, SIGCONT);  // it goes on as if nobody had looked
      EXPECT_TRUE(comes_to(child, 'R'));
    }
    kill(child, SIGKILL);
    EXPECT_EQ(waitpid(child, &status, 0), child);
  }
  EXPECT_TRUE(test::has(read_stacks(1 << 30, 1), "is gone"));
}

}  // namespace
}  // namespace tessera::stacks_test
