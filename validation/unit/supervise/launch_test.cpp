// Which nodes a run gets, and the command lines of launchers.
#include "supervise/launch.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "base/check.hpp"

namespace tessera::launch_test {

using Names = std::vector<std::string>;

std::string line(const Names& words) { return fmt::format("{}", fmt::join(words, " ")); }

/// Status and words of a refusal.
std::pair<int, std::string> refusal(const WhereToLaunch& where) {
  try {
    first_launch(where);
  } catch (const Error& error) {
    return {static_cast<int>(error.code), error.what()};
  }
  return {0, ""};
}

TEST(FirstLaunchTest, InsideAJobOfSlurm) {
  const FirstLaunch first = first_launch({.ranks = 6, .spares = 1, .slurm_nodes = "n[1-4]"});
  EXPECT_EQ(first.places, (RankPlaces{.ranks = 6, .per_node = 2, .nodes = {"n1", "n2", "n3"}, .spares = {"n4"}}));
  EXPECT_EQ(host_lines(first.places), "n1\nn1\nn2\nn2\nn3\nn3\n");
  EXPECT_EQ(
      line(launch_words(first.launcher, first.places, "h", "r", {"tessera", "train"})),
      "srun --export=ALL --mpi=pmi2 --wait=30 --kill-on-bad-exit=0 --cpus-per-task=1 --oom-kill-step=0 --overlap --nodes=3 --ntasks=6 "
      "--distribution=arbitrary tessera train");
  EXPECT_EQ(line(probe_words(first.launcher, "n2")), "srun --nodes=1 --ntasks=1 --nodelist=n2 --overlap --mpi=none true");
}

TEST(FirstLaunchTest, OlderSrunAndSettingsOfASite) {
  const FirstLaunch first = first_launch({.ranks = 2,
                                          .slurm_nodes = "n[1-2]",
                                          .slurm_mpi = "pmix",
                                          .slurm_cores = "7",
                                          .srun = "--cpu-bind=cores",
                                          .srun_has = [](std::string_view) { return false; }});
  EXPECT_EQ(line(first.launcher.words), "srun --export=ALL --mpi=pmix --wait=30 --kill-on-bad-exit=0 --cpus-per-task=7 --cpu-bind=cores");
}

TEST(FirstLaunchTest, OnNamedHosts) {
  const FirstLaunch first = first_launch({.ranks = 2, .spares = 1, .hosts = "a,b,c"});
  EXPECT_EQ(line(launch_words(first.launcher, first.places, "h", "r", {"tessera", "train"})),
            "mpiexec -n 2 --hostfile h env TESSERA_STATUS_FILE=r tessera train");
  EXPECT_EQ(line(probe_words(first.launcher, "c")), "mpiexec -n 1 --host c true");
  EXPECT_EQ(first_launch({.ranks = 2, .hostfile = "# mine\nn1:8\n\nn2 slots=8\n"}).places.nodes, (Names{"n1", "n2"}));
  EXPECT_EQ(first_launch({.ranks = 4, .pbs_hostfile = "n1\nn1\nn2\nn2\n"}).places.nodes, (Names{"n1", "n2"}));
  EXPECT_EQ(first_launch({.ranks = 2, .hosts = "a,b", .slurm_nodes = "n[1-4]"}).launcher.words, Names{"mpiexec"})
      << "what is named comes first";
  EXPECT_EQ(first_launch({.ranks = 4, .launcher = "/opt/mpiexec --x", .slurm_nodes = "n[1-4]"}).launcher.way, LaunchWay::hosts);
}

TEST(FirstLaunchTest, OnThisMachine) {
  const FirstLaunch first = first_launch({.ranks = 2, .local = true, .launcher = "mpiexec --oversubscribe"});
  EXPECT_EQ(line(launch_words(first.launcher, first.places, "h", "r", {"tessera", "train"})), "mpiexec --oversubscribe -n 2 tessera train");
  EXPECT_TRUE(first.places.nodes.empty());
  EXPECT_EQ(line(first_launch({.ranks = 2, .local = true, .mpiexec = "mpirun -q"}).launcher.words), "mpirun -q");
}

TEST(FirstLaunchTest, Refusals) {
  EXPECT_EQ(refusal({.ranks = 2}).first, 6);
  EXPECT_NE(refusal({.ranks = 2}).second.find("or give --local"), std::string::npos);
  EXPECT_EQ(refusal({.local = true}).first, 2);
  EXPECT_EQ(refusal({.ranks = 2, .spares = 1, .local = true}).first, 2);
  EXPECT_EQ(refusal({.ranks = 2, .spares = 2, .hosts = "a,b"}).first, 2);
  EXPECT_NE(refusal({.ranks = 7, .spares = 1, .hosts = "a,b,c,d"}).second.find("start 6 ranks"), std::string::npos);
  EXPECT_EQ(refusal({.ranks = 2, .hostfile = "#\n"}).first, 2);
  EXPECT_EQ(refusal({.ranks = 2, .local = true, .launcher = "srun"}).first, 2);
}

}  // namespace tessera::launch_test
