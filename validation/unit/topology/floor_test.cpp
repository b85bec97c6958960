// Which rank of a node says why a run ends: many processes that want to at once, and those that end or stop before they have.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <functional>

#include "topology/failure/floor.hpp"

namespace tessera::floor_test {
namespace {

constexpr int ranks = 12, status = 76;

/// Memory of all processes.
struct Board {
  NodeFloor floor;
  std::atomic<int> arrived, took, said, silent, kept_silent_too_early;
  std::array<std::atomic<pid_t>, ranks> pids;
};

void meet(Board& board, int times) {
  for (++board.arrived; board.arrived < times * ranks;) usleep(100);
}

/// A process for each rank. What each does that has the floor, `number` having had it before: it ends, or returns and has said it.
void race(Board& board, double patience, const std::function<void(int number)>& holds) {
  std::array<pid_t, ranks> children{};
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = children[static_cast<std::size_t>(rank)] = fork();
    ASSERT_GE(child, 0);
    if (child != 0) continue;
    alarm(60);
    board.pids[static_cast<std::size_t>(rank)] = getpid();
    meet(board, 1);
    std::array<int, ranks> descriptors{};
    for (int r = 0; r < ranks; ++r)
      descriptors[static_cast<std::size_t>(r)] =
          static_cast<int>(syscall(SYS_pidfd_open, board.pids[static_cast<std::size_t>(r)].load(), 0));
    meet(board, 2);
    const auto has_ended = [&](int r) {
      pollfd watched{descriptors[static_cast<std::size_t>(r)], POLLIN, 0};
      return poll(&watched, 1, 0) == 1;
    };
    if (board.floor.take(rank, status, has_ended, patience)) {
      holds(board.took++);
      ++board.said;
      board.floor.said();
    } else {
      if (board.said == 0) ++board.kept_silent_too_early;
      ++board.silent;
    }
    _exit(0);
  }
  while (board.took + board.silent < ranks) usleep(1000);
  for (pid_t child : children) kill(child, SIGKILL);  // stopped ones
  for (pid_t child : children) EXPECT_EQ(waitpid(child, nullptr, 0), child);
}

class Floor : public ::testing::Test {
 public:
  Floor() : board(*new (mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Board()) {}
  ~Floor() override { munmap(&board, sizeof(Board)); }
  Board& board;
};

TEST_F(Floor, OneOfManyThatAskAtOnceHasIt) {
  race(board, 60, [](int) { usleep(20000); });  // the others wait until it has said it
  EXPECT_EQ(board.took, 1);
  EXPECT_EQ(board.silent, ranks - 1);
  EXPECT_EQ(board.kept_silent_too_early, 0);
  EXPECT_EQ(board.floor.status(), status);
}

TEST_F(Floor, AnotherOneHasItWhereThoseBeforeAreKilledFirst) {
  race(board, 60, [](int number) {
    if (number < 3) raise(SIGKILL);
  });
  EXPECT_EQ(board.took, 4);
  EXPECT_EQ(board.said, 1);
  EXPECT_EQ(board.silent, ranks - 4);
  EXPECT_EQ(board.kept_silent_too_early, 0);
}

TEST_F(Floor, AnotherOneHasItWhereTheOneBeforeIsStopped) {
  race(board, 2, [](int number) {
    if (number == 0) raise(SIGSTOP);
  });
  EXPECT_EQ(board.said, 1);
  EXPECT_EQ(board.took, 2);
  EXPECT_EQ(board.kept_silent_too_early, 0);
}

}  // namespace
}  // namespace tessera::floor_test
