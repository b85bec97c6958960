#include "topology/launch.hpp"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>
#include <string_view>
#include <thread>

#include "topology/communicators/make_communicator.hpp"
#include "topology/devices/binding.hpp"
#include "topology/failure/mpi.hpp"
#include "topology/world.hpp"

// MPI's profiling interface: what is made and not freed shows.
namespace {
std::atomic<int> communicators{0}, types{0};
}
extern "C" {
int MPI_Comm_dup(MPI_Comm from, MPI_Comm* made) { return ++communicators, PMPI_Comm_dup(from, made); }
int MPI_Comm_idup(MPI_Comm from, MPI_Comm* made, MPI_Request* request) { return ++communicators, PMPI_Comm_idup(from, made, request); }
int MPI_Comm_split(MPI_Comm from, int color, int key, MPI_Comm* made) { return ++communicators, PMPI_Comm_split(from, color, key, made); }
int MPI_Comm_split_type(MPI_Comm from, int type, int key, MPI_Info info, MPI_Comm* made) {
  return ++communicators, PMPI_Comm_split_type(from, type, key, info, made);
}
int MPI_Comm_create_group(MPI_Comm from, MPI_Group group, int tag, MPI_Comm* made) {
  return ++communicators, PMPI_Comm_create_group(from, group, tag, made);
}
int MPI_Comm_free(MPI_Comm* comm) { return --communicators, PMPI_Comm_free(comm); }
int MPI_Type_commit(MPI_Datatype* type) { return ++types, PMPI_Type_commit(type); }
int MPI_Type_free(MPI_Datatype* type) { return --types, PMPI_Type_free(type); }
}

namespace tessera {
namespace {

Launch* g_launch = nullptr;
Launch& launch() { return *g_launch; }

std::int64_t entries_of(const char* folder) {
  return std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator());
}

/// Names in /dev/shm as shared blocks have them for a moment: this process's, and those of whoever runs beside it.
std::set<std::string> names_of_blocks() {
  constexpr std::string_view prefix = "tessera-";
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm"))
    if (const std::string name = entry.path().filename(); name.starts_with(prefix) && name.size() == prefix.size() + 32 &&
                                                          name.find_first_not_of("0123456789abcdef", prefix.size()) == name.npos)
      names.insert(name);
  return names;
}

/// Of those names what still stands when all had time to go.
std::set<std::string> left_names(const std::set<std::string>& before) {
  std::set<std::string> left = names_of_blocks();
  for (int wait = 0; wait < 2000; ++wait) {
    const std::set<std::string> now = names_of_blocks();
    std::erase_if(left, [&](const std::string& name) { return before.contains(name) || !now.contains(name); });
    if (left.empty()) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return left;
}

/// Mappings of memory that processes share, but MPI's own.
std::int64_t shared_blocks() {
  std::ifstream maps("/proc/self/maps");
  std::int64_t count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find("tessera") != line.npos && line.find("memfd") != line.npos;
  return count;
}

std::string processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof set, &set);
  std::string text;
  for (int unit = 0; unit < CPU_SETSIZE; ++unit)
    if (CPU_ISSET(unit, &set)) text += fmt::format("{} ", unit);
  return text;
}

/// What a world may leave behind.
struct Left {
  std::int64_t threads = entries_of("/proc/self/task"), files = entries_of("/proc/self/fd"), blocks = shared_blocks();
  int made = communicators, committed = types;
  std::string units = processors();
  bool handles_aborts = [] {
    struct sigaction action = {};
    sigaction(SIGABRT, nullptr, &action);
    return action.sa_handler != SIG_DFL;
  }();
  friend bool operator==(const Left&, const Left&) = default;
  std::string text() const {
    return fmt::format("{} threads, {} files, {} shared blocks, {} communicators, {} types, units {}, handler {}", threads, files, blocks,
                       made, committed, units, handles_aborts);
  }
};

/// A world of so many ranks that uses what runs use; an AgreedError of its last rank where `fails`.
int play(int ranks, bool fails) {
  return run_in_world({.collective_timeout_seconds = 120, .finalize_timeout_seconds = 5}, [&](World& world) {
    EXPECT_EQ(world.ranks(), ranks);
    EXPECT_EQ(world.rank(), launch().rank());
    bind_process(world);
    const DescribedWork work(world, [] {
      RankWork at;
      at.beside = "a test";
      return at;
    });
    Arena arena(Tier::shared, 1 << 16, "tessera.test");
    Node node(world);
    node.register_arena(arena);
    Group all{.axes = data_axes, .rank = world.rank(), .size = ranks, .world = std::vector<int>(static_cast<std::size_t>(ranks))};
    std::iota(all.world.begin(), all.world.end(), 0);
    for (const CommunicatorPath path : {CommunicatorPath::fastest, CommunicatorPath::mpi}) {
      const auto communicator = make_communicator(world, all, {.node = &node, .path = path});
      std::vector<float> values(100, 1.0f);
      communicator->all_reduce(values.data(), static_cast<std::int64_t>(values.size()), DType::f32, Reduction::sum);
      EXPECT_EQ(values.back(), static_cast<float>(ranks));
    }
    EXPECT_EQ(world.sum(1), ranks);
    EXPECT_EQ(world.gather_text(std::to_string(world.rank())).back(), std::to_string(ranks - 1));
    EXPECT_EQ(world.broadcast_text(std::to_string(world.rank())), "0");
    world.require_same("test", hash_text("the same"));
    world.barrier();
    node.unregister_arena(arena);
    world.together([&] {
      if (fails && world.rank() == ranks - 1) fail(ExitCode::data, "rank {} fails on purpose", world.rank());
    });
    return 0;
  });
}

TEST(Launch, WorldsOfAnySizeComeAndGoAndLeaveNothing) {
  const auto round = [](int number) {
    const int ranks = 1 + (launch().ranks() - 1 + 3 * number) % launch().ranks();
    const bool fails = number % 3 == 2;
    if (launch().rank() >= ranks) return;
    launch().choose(ranks);
    EXPECT_EQ(play(ranks, fails), fails ? static_cast<int>(ExitCode::data) : 0) << "world " << number << " of " << ranks << " ranks";
  };
  // MPI connects ranks when they first meet, and keeps that.
  for (int number = 0; number < 4; ++number) round(number);
  launch().await_text("");
  const Left before;
  const std::set<std::string> names = names_of_blocks();
  for (int number = 0; number < 20; ++number) round(number);
  const Left after;
  EXPECT_EQ(after, before) << after.text() << " instead of " << before.text();
  launch().await_text("");
  if (launch().rank() == 0) {
    EXPECT_EQ(left_names(names), std::set<std::string>());
  }
  EXPECT_FALSE(before.handles_aborts);
}

TEST(Launch, AWorldHasItsOwnNodes) {
  const int ranks = launch().ranks();
  for (const int of_node : {1, 2, 0}) {
    if (of_node > 0)
      setenv("TESSERA_RANKS_PER_NODE", std::to_string(of_node).c_str(), 1);
    else
      unsetenv("TESSERA_RANKS_PER_NODE");
    launch().choose(ranks);
    EXPECT_EQ(run_in_world({},
                           [&](World& world) {
                             EXPECT_EQ(world.place().nodes, of_node > 0 ? (ranks + of_node - 1) / of_node : 1);
                             return 0;
                           }),
              0);
  }
}

TEST(Launch, AnErrorOfTheWorldsStatusIsThatOfTheHighestRank) {
  launch().choose(launch().ranks());
  EXPECT_EQ(run_in_world({}, [](World& world) { return world.rank(); }), launch().ranks() - 1);
}

TEST(Launch, TextsGoToAllAndComeFromSome) {
  EXPECT_EQ(launch().await_text(launch().rank() == 0 ? "the word" : "not this"), "the word");
  for (int ranks = 1; ranks <= launch().ranks(); ++ranks) {
    if (launch().rank() >= ranks) continue;
    const std::vector<std::string> texts = launch().collect_texts(ranks, std::string(static_cast<std::size_t>(launch().rank()), 'x'));
    ASSERT_EQ(texts.size(), launch().rank() == 0 ? static_cast<std::size_t>(ranks) : 0u);
    for (std::size_t r = 0; r < texts.size(); ++r) EXPECT_EQ(texts[r], std::string(r, 'x'));
  }
}

TEST(Launch, WhoWaitsSleeps) {
  const auto used = [] {
    rusage own = {};
    getrusage(RUSAGE_SELF, &own);
    return static_cast<double>(own.ru_utime.tv_sec + own.ru_stime.tv_sec) +
           1e-6 * static_cast<double>(own.ru_utime.tv_usec + own.ru_stime.tv_usec);
  };
  launch().await_text("");
  const double before = used();
  if (launch().rank() == 0) usleep(400000);
  launch().await_text("");
  EXPECT_LT(used() - before, 0.2);
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  tessera::Launch launch;
  tessera::g_launch = &launch;
  if (launch.rank() != 0)
    delete ::testing::UnitTest::GetInstance()->listeners().Release(
        ::testing::UnitTest::GetInstance()->listeners().default_result_printer());
  struct FailuresOnly : ::testing::EmptyTestEventListener {
    void OnTestPartResult(const ::testing::TestPartResult& result) override {
      if (result.failed())
        fmt::print(stderr, "rank {}: {}:{}: {}\n", tessera::Launch::current()->rank(), result.file_name() ? result.file_name() : "",
                   result.line_number(), result.message());
    }
  };
  if (launch.rank() != 0) ::testing::UnitTest::GetInstance()->listeners().Append(new FailuresOnly);
  const int status = RUN_ALL_TESTS();
  launch.end(status);
  return status;
}
