// The watch over many processes, light ones that have links and no MPI.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>

#include "../sample.hpp"
#include "base/clock.hpp"
#include "topology/make_watch.hpp"

namespace tessera::watch_crowd_test {
namespace {

constexpr int most = 512;
// Both have a rank below rank 0 with nodes of its own below it.
const int crowd = test::Sample::full() ? most : 80, node_size = crowd == most ? 8 : 2;
constexpr double hang_seconds = 250;

/// Memory of all: the texts that MPI would gather, and how far each has come.
struct Board {
  struct Text {
    std::uint32_t bytes;
    char text[1020];
  };
  std::atomic<int> arrived[3];
  std::atomic<int> saw[most];        ///< 1 + the rank whose loss it heard of
  std::atomic<int> answered, links;  ///< rank 0's: ranks that answered it; sockets it has
  std::atomic<bool> over;
  Text texts[2][most];
};

/// False at the limit.
template <class Condition>
bool wait_until(Condition condition) {
  for (const double begin = now_seconds(); !condition(); usleep(2000))
    if (now_seconds() - begin > hang_seconds) return false;
  return true;
}

void meet(Board& board, int place) {
  ++board.arrived[place];
  if (!wait_until([&] { return board.arrived[place] >= crowd; })) _exit(1);
}

std::vector<std::string> gather(Board& board, int round, int rank, const std::string& mine) {
  Board::Text& text = board.texts[round][rank];
  if (mine.size() > sizeof text.text) _exit(2);
  text.bytes = static_cast<std::uint32_t>(mine.size());
  std::memcpy(text.text, mine.data(), mine.size());
  meet(board, round);
  std::vector<std::string> all;
  for (int r = 0; r < crowd; ++r) all.emplace_back(board.texts[round][r].text, board.texts[round][r].bytes);
  return all;
}

int own_sockets() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    count += std::filesystem::read_symlink(entry.path(), error).string().starts_with("socket:") ? 1 : 0;
  }
  return count;
}

[[noreturn]] void live_as(int rank, Board& board, int sockets_before) {
  std::vector<int> leaders;
  for (int r = 0; r < crowd; ++r) leaders.push_back(r - r % node_size);
  WatchPlan plan{.rank = rank, .hosts = {}, .leaders = leaders, .processes = {}, .tree = WatchTree(leaders)};
  for (int r = 0; r < crowd; ++r) plan.hosts.push_back("n" + std::to_string(r / node_size));
  int round = 0;
  WatchNetwork made = make_links(plan.tree, rank, leaders, [&](const std::string& mine) { return gather(board, round++, rank, mine); });
  if (!made.unreached.empty()) _exit(3);
  plan.processes = made.processes;
  Watch watch(std::move(plan), std::move(made.links), {});
  watch.whereabouts().begin_wait(&watch, "the crowd's barrier");
  meet(board, 2);
  if (rank == 0) {
    board.links = own_sockets() - sockets_before;
    const std::string text = watch.explain("the crowd's barrier");
    board.answered =
        text.starts_with(fmt::format("ranks 0-{} on n0", node_size - 1)) && text.find("so MPI or the network") != text.npos ? crowd : 0;
  }
  // A rank with others below it is killed by the test now.
  wait_until([&] { return watch.lost() >= 0 || board.over; });
  board.saw[rank] = 1 + watch.lost();
  wait_until([&] { return board.over.load(); });
  _exit(0);  // none says goodbye: all are to be killed or to end
}

TEST(Watch, ManyProcessesAnswerAndHearOfALossWithFewLinksEach) {
  auto* board = static_cast<Board*>(mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(static_cast<void*>(board), MAP_FAILED);
  new (board) Board{};
  const int before = own_sockets();
  const int said = memfd_create("rank 0's standard error", 0);
  ASSERT_GE(said, 0);
  std::vector<pid_t> children;
  for (int rank = 0; rank < crowd; ++rank) {
    const pid_t child = fork();
    if (child == 0 && rank == 0) dup2(said, STDERR_FILENO);
    if (child == 0) live_as(rank, *board, before);
    ASSERT_GT(child, 0);
    children.push_back(child);
  }
  EXPECT_TRUE(wait_until([&] { return board->answered.load() != 0; })) << board->arrived[0] << " " << board->arrived[2];
  EXPECT_EQ(board->answered, crowd);
  EXPECT_GT(board->links, 0);
  EXPECT_LE(board->links, most_links);
  const int lost = node_size;  // the first rank of node 1: the others of its node are below it, and nodes
  kill(children[static_cast<std::size_t>(lost)], SIGKILL);
  const auto heard = [&] {
    int count = 0;
    for (int r = 0; r < crowd; ++r) count += board->saw[r] == 1 + lost ? 1 : 0;
    return count;
  };
  const double begin = now_seconds();
  EXPECT_TRUE(wait_until([&] { return heard() == crowd - 1; })) << heard();
  ::testing::Test::RecordProperty("seconds_to_hear", std::to_string(now_seconds() - begin));
  board->over = true;
  for (pid_t child : children) {
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(child == children[static_cast<std::size_t>(lost)] ? WIFSIGNALED(status) : WIFEXITED(status) && WEXITSTATUS(status) == 0)
        << status;
  }
  std::string words(4096, '\0');
  words.resize(static_cast<std::size_t>(std::max<ssize_t>(pread(said, words.data(), words.size(), 0), 0)));
  close(said);
  EXPECT_NE(words.find(fmt::format("rank {} on n1 was lost ", lost)), words.npos) << words;
  EXPECT_NE(words.find("s in the crowd's barrier"), words.npos) << words;
  munmap(board, sizeof(Board));
}

}  // namespace
}  // namespace tessera::watch_crowd_test
