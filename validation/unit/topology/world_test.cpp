#include "topology/world.hpp"

#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>

#include "topology/devices/binding.hpp"
#include "world_main.hpp"

namespace tessera {
namespace {

using testing::world;

TEST(World, EveryRankHasItsOwnPlace) {
  const Place& place = world().place();
  auto texts = world().gather_text(
      fmt::format("{}/{} {}/{} {}/{}", place.rank, place.ranks, place.node, place.nodes, place.local_rank, place.local_ranks));
  ASSERT_EQ(static_cast<int>(texts.size()), world().ranks());
  EXPECT_EQ(std::set<std::string>(texts.begin(), texts.end()).size(), texts.size());
  EXPECT_EQ(texts[static_cast<std::size_t>(place.rank)].substr(0, 1), std::to_string(place.rank));
  EXPECT_FALSE(place.host.empty());
  // Under one mpiexec on one machine.
  if (place.nodes == 1) {
    EXPECT_EQ(place.local_rank, place.rank);
  }
}

TEST(World, AnMpiLibraryIsNamedInAFewWords) {
  EXPECT_EQ(name_mpi("MPICH Version:\t4.0.2\nMPICH Release date:\tThu Apr  7 12:34:45 CDT 2022\n"), "MPICH 4.0.2");
  EXPECT_EQ(name_mpi("Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4, repo rev: v4.1.4, May 26, 2022"), "Open MPI v4.1.4");
  EXPECT_EQ(name_mpi("MVAPICH2 Version      :\t2.3.7\nMVAPICH2 Release date : Wed March 02 22:00:00 EST 2022"), "MVAPICH2 2.3.7");
  EXPECT_EQ(name_mpi("Intel(R) MPI Library 2021.7 for Linux* OS\n"), "Intel(R) MPI Library 2021.7 for Linux* OS");
  EXPECT_EQ(name_mpi("Some Version:"), "Some Version:");
  const std::string mine = mpi_version();
  EXPECT_FALSE(mine.empty());
  EXPECT_EQ(mine.find_first_of("\t\n,"), mine.npos) << mine;
}

TEST(World, TextsKeepTheirLengths) {
  std::string mine(static_cast<std::size_t>(world().rank()) * 1000, 'x');
  auto texts = world().gather_text(mine);
  for (int r = 0; r < world().ranks(); ++r) EXPECT_EQ(texts[static_cast<std::size_t>(r)].size(), static_cast<std::size_t>(r) * 1000);
  EXPECT_EQ(world().broadcast_text(world().rank() == 0 ? "from the root" : "not this"), "from the root");
  int last = world().ranks() - 1;
  EXPECT_EQ(world().broadcast_text(std::to_string(world().rank()), last), std::to_string(last));
}

TEST(World, AFaultOnOneRankIsThrownOnAllWithItsMessageAndCode) {
  world().together([] {});
  int last = world().ranks() - 1;
  try {
    world().together([last] {
      if (world().rank() == last) fail(ExitCode::data, "token file of rank {}", last);
    });
    FAIL() << "nothing was thrown";
  } catch (const AgreedError& error) {
    EXPECT_EQ(error.code, ExitCode::data);
    EXPECT_EQ(error.what(), fmt::format("token file of rank {}", last));
    EXPECT_EQ(error.speaker, last);
  }
  try {
    world().together([] { throw std::runtime_error(fmt::format("seen by rank {}", world().rank())); });
    FAIL() << "nothing was thrown";
  } catch (const AgreedError& error) {
    EXPECT_EQ(error.code, ExitCode::internal);
    EXPECT_EQ(std::string(error.what()).find("seen by rank 0. This is a defect of Tessera"), 0u) << error.what();
  }
}

TEST(World, RanksThatDifferAreRefusedByName) {
  world().require_same("deck", hash_text("the same"));
  if (world().ranks() == 1) return;
  try {
    world().require_same("deck", hash_text(world().rank() == 1 ? "other" : "the same"));
    FAIL() << "nothing was thrown";
  } catch (const AgreedError& error) {
    EXPECT_EQ(error.code, ExitCode::environment);
    EXPECT_NE(std::string(error.what()).find("the deck of rank 1 on "), std::string::npos) << error.what();
  }
}

TEST(World, LinesThatDifferAreShownOfBothRanks) {
  world().require_same_lines("schedule", {"a", "b"}, 0);
  world().require_same_lines("schedule", {fmt::format("of rank {}", world().rank())}, world().rank());
  if (world().ranks() == 1) return;
  const auto said = [&](const std::vector<std::string>& others, const std::vector<std::string>& of_rank_1) -> std::string {
    try {
      world().require_same_lines("schedule", world().rank() == 1 ? of_rank_1 : others, 0);
    } catch (const AgreedError& error) {
      EXPECT_EQ(error.code, ExitCode::internal);
      return error.what();
    }
    return "nothing was thrown";
  };
  const std::string other = said({"begin", "reduce a", "end"}, {"begin", "reduce b", "end"}), shorter = said({"begin", "end"}, {"begin"});
  for (const char* part : {"the schedule of rank 1 on ", "\"reduce b\" on rank 1", "\"reduce a\" on rank 0", "defect of Tessera"})
    EXPECT_NE(other.find(part), other.npos) << other;
  EXPECT_NE(shorter.find("nothing on rank 1 and \"end\" on rank 0"), shorter.npos) << shorter;
}

TEST(World, RanksOfANodeAreBoundApart) {
  Binding before = bind_process(world(), false);
  EXPECT_NE(before.source, Binding::Source::tessera);
  EXPECT_GE(before.threads, 1);
  EXPECT_FALSE(before.units.empty());
  Binding mine = bind_process(world());
  cpu_set_t set;
  ASSERT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
  EXPECT_EQ(CPU_COUNT(&set), static_cast<int>(mine.units.size()));
  for (int unit : mine.units) EXPECT_TRUE(CPU_ISSET(unit, &set));
  if (mine.source == Binding::Source::tessera && world().place().nodes == 1) {
    auto texts = world().gather_text(unit_ranges(mine.units));
    EXPECT_EQ(std::set<std::string>(texts.begin(), texts.end()).size(), texts.size());
    // Bound now, so a second look finds a binding that stands.
    EXPECT_EQ(bind_process(world()).units, mine.units);
  }
}

// What a job manager or a person sends for a core of a rank that hangs. The child has the rank's handlers.
TEST(World, AnAbortFromOutsideIsNotSwallowed) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const rlimit no_core{0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    if (write(ready[1], "", 1) == 1) pause();
    _exit(0);  // the signal was taken, and nothing came of it
  }
  ASSERT_GT(child, 0);
  char byte = 0;
  EXPECT_EQ(read(ready[0], &byte, 1), 1);
  EXPECT_EQ(kill(child, SIGABRT), 0);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  close(ready[0]), close(ready[1]);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT) << "wait status " << status;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) { return tessera::testing::run_tests(argc, argv); }
