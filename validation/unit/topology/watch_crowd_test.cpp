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
#include <functional>
#include <memory>

#include "../sample.hpp"
#include "base/clock.hpp"
#include "topology/make_watch.hpp"

namespace tessera::watch_crowd_test {
namespace {

constexpr int most = 512;
// Both have a rank below rank 0 with nodes of its own below it.
const int large_crowd = test::Sample::full() ? most : 80;
int crowd = large_crowd, node_size = crowd == most ? 8 : 2;
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
  std::atomic<int> took, wanted, said, silent_too_early;  ///< of the floor
  std::atomic<bool> killed;
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

std::unique_ptr<Watch> join(int rank, Board& board) {
  std::vector<int> leaders;
  for (int r = 0; r < crowd; ++r) leaders.push_back(r - r % node_size);
  WatchPlan plan{.rank = rank, .hosts = {}, .leaders = leaders, .processes = {}, .tree = WatchTree(leaders)};
  for (int r = 0; r < crowd; ++r) plan.hosts.push_back("n" + std::to_string(r / node_size));
  int round = 0;
  WatchNetwork made = make_links(plan.tree, rank, leaders, [&](const std::string& mine) { return gather(board, round++, rank, mine); });
  if (!made.unreached.empty()) _exit(3);
  plan.processes = made.processes;
  return std::make_unique<Watch>(std::move(plan), std::move(made.links), std::vector<int>{});
}

[[noreturn]] void live_as(int rank, Board& board, int sockets_before) {
  const std::unique_ptr<Watch> joined = join(rank, board);
  Watch& watch = *joined;
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

/// All processes, and the standard error of rank 0's.
struct Crowd {
  Board* board = static_cast<Board*>(mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  int said = memfd_create("rank 0's standard error", 0);
  std::vector<pid_t> children;

  template <class Life>
  explicit Crowd(const Life& live) {
    new (board) Board{};
    for (int rank = 0; rank < crowd; ++rank) {
      const pid_t child = fork();
      if (child == 0 && rank == 0) dup2(said, STDERR_FILENO);
      if (child == 0) live(rank, *board);
      children.push_back(child);
    }
  }
  ~Crowd() {
    munmap(board, sizeof(Board));
    close(said);
  }
  Crowd(const Crowd&) = delete;
  Crowd& operator=(const Crowd&) = delete;
  pid_t child(int rank) const { return children[static_cast<std::size_t>(rank)]; }
  std::string words() const {
    std::string text(4096, '\0');
    text.resize(static_cast<std::size_t>(std::max<ssize_t>(pread(said, text.data(), text.size(), 0), 0)));
    return text;
  }
};

TEST(Watch, ManyProcessesAnswerAndHearOfALossWithFewLinksEach) {
  const int before = own_sockets();
  Crowd all([&](int rank, Board& board) { live_as(rank, board, before); });
  Board* board = all.board;
  EXPECT_TRUE(wait_until([&] { return board->answered.load() != 0; })) << board->arrived[0] << " " << board->arrived[2];
  EXPECT_EQ(board->answered, crowd);
  EXPECT_GT(board->links, 0);
  EXPECT_LE(board->links, most_links);
  const int lost = node_size;  // the first rank of node 1: the others of its node are below it, and nodes
  kill(all.child(lost), SIGKILL);
  const auto heard = [&] {
    int count = 0;
    for (int r = 0; r < crowd; ++r) count += board->saw[r] == 1 + lost ? 1 : 0;
    return count;
  };
  const double begin = now_seconds();
  EXPECT_TRUE(wait_until([&] { return heard() == crowd - 1; })) << heard();
  ::testing::Test::RecordProperty("seconds_to_hear", std::to_string(now_seconds() - begin));
  board->over = true;
  for (pid_t child : all.children) {
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(child == all.child(lost) ? WIFSIGNALED(status) : WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
  const std::string words = all.words();
  EXPECT_NE(words.find(fmt::format("rank {} on n1 was lost ", lost)), words.npos) << words;
  EXPECT_NE(words.find("s in the crowd's barrier"), words.npos) << words;
}

/// What happens to the floor. `first` takes it, and is killed before it speaks; the others want it before, afterwards, or not at all.
struct FloorCase {
  int first;           ///< -1: all ask at once
  bool others = true;  ///< want it
  bool knows(int rank, int third) const { return others && rank != first && (first < 0 || rank % 3 == third); }
  int early() const {
    int count = 0;
    for (int r = 0; r < crowd; ++r) count += first >= 0 && knows(r, 1) ? 1 : 0;
    return count;
  }
};
constexpr int floor_status = 76;

[[noreturn]] void want_floor(int rank, Board& board, const FloorCase& c) {
  alarm(static_cast<unsigned>(hang_seconds));
  const std::unique_ptr<Watch> watch = join(rank, board);
  meet(board, 2);
  if (rank == c.first) {
    if (!watch->become_speaker(floor_status)) _exit(1);
    ++board.took;
    if (!wait_until([&] { return board.wanted >= c.early(); })) _exit(1);
    board.killed = true;
    raise(SIGKILL);
  }
  const bool early = c.first < 0 || c.knows(rank, 1);
  if (early || c.knows(rank, 2)) {
    if (c.first >= 0 && !wait_until([&] { return early ? board.took > 0 : board.killed.load(); })) _exit(1);
    ++board.wanted;
    if (watch->become_speaker(floor_status)) {
      ++board.took;
      usleep(20000);
      ++board.said;
      watch->has_spoken();
      _exit(floor_status);
    }
    if (board.said == 0) ++board.silent_too_early;
  }
  wait_until([&] { return board.over || watch->lost() >= 0; });
  _exit(watch->lost() >= 0 ? 0 : 1);
}

/// Runs it to its end, which comes by itself.
std::string play(const FloorCase& c, const std::function<void(const Board&)>& check) {
  Crowd all([&](int rank, Board& board) { want_floor(rank, board, c); });
  for (int rank = 0; rank < crowd; ++rank) {
    int status = 0;
    EXPECT_EQ(waitpid(all.child(rank), &status, 0), all.child(rank));
    if (rank == c.first)
      EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
    else if (c.first == 0)  // those that did not want it hear that rank 0 was lost
      EXPECT_TRUE(WIFEXITED(status) && (WEXITSTATUS(status) == floor_status || WEXITSTATUS(status) == 0)) << rank << ": " << status;
    else
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == floor_status) << rank << ": " << status;
  }
  check(*all.board);
  return all.words();
}

class WatchFloor : public ::testing::Test {
 public:
  // Few: what is tested is who speaks, and some wait for others that must come to their turn.
  WatchFloor() { crowd = 14, node_size = 2; }
  ~WatchFloor() override { crowd = large_crowd, node_size = crowd == most ? 8 : 2; }
};

TEST_F(WatchFloor, OneOfAllSpeaksForAll) {
  play({.first = -1}, [](const Board& board) {
    EXPECT_EQ(board.took, 1);
    EXPECT_EQ(board.said, 1);
    EXPECT_EQ(board.silent_too_early, 0);
  });
}

TEST_F(WatchFloor, AnotherOneSpeaksWhereTheFirstIsKilledBeforeItDoes) {
  for (int first : {crowd - 1, node_size}) {  // a leaf; one with ranks below it
    const std::string words = play({.first = first}, [](const Board& board) {
      EXPECT_EQ(board.took, 2);
      EXPECT_EQ(board.said, 1);
      EXPECT_EQ(board.silent_too_early, 0);
    });
    EXPECT_EQ(words.find("before it reported the reason"), words.npos) << words;
  }
}

TEST_F(WatchFloor, RankZeroSpeaksForOneThatWasKilledBeforeItDidWhereNobodyElseWantsTo) {
  const int first = crowd - 1;
  const std::string words = play({.first = first, .others = false}, [](const Board& board) { EXPECT_EQ(board.took, 1); });
  const std::string wanted =
      fmt::format("rank {} on n{} ended the run with status 76, and was lost before it reported the reason", first, first / node_size);
  EXPECT_NE(words.find(wanted), words.npos) << words;
}

TEST_F(WatchFloor, SomebodySpeaksWhereRankZeroIsKilledBeforeItDoes) {
  play({.first = 0}, [](const Board& board) { EXPECT_GE(board.said, 1); });  // nobody is left who could give it to one alone
}

}  // namespace
}  // namespace tessera::watch_crowd_test
