// tessera slurm: the script follows the plan, and what cannot be is refused by name. The figures of a header are tested in
// validation/unit/report.
#include <gtest/gtest.h>

#include "base/json.hpp"

#include "program.hpp"

namespace tessera::slurm_test {
namespace {

const std::string source = TESSERA_SOURCE_DIR, h100 = source + "/inputs/machines/h100_8.toml";

test::Finished run_slurm(const test::Scratch& scratch, const std::string& deck, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"slurm", source + "/inputs/" + deck});
  return test::run_program(scratch, arguments);
}

Json job_of(const test::Scratch& scratch, const std::string& deck, std::vector<std::string> arguments) {
  arguments.emplace_back("--json");
  const auto done = run_slurm(scratch, deck, std::move(arguments));
  EXPECT_EQ(done.status, 0) << done.err;
  return Json::parse(done.out);
}

TEST(SlurmCommand, TakesTheFewestNodesThatHoldThePlan) {
  const test::Scratch scratch;
  const Json job = job_of(scratch, "train_7b.toml", {"--machine", h100});
  EXPECT_EQ(job["nodes"], 1);
  EXPECT_EQ(job["gpus_per_node"], 8);
  // One node fewer does not hold it.
  const Json large = job_of(scratch, "train_70b.toml", {"--machine", h100});
  const int nodes = large["nodes"].get<int>();
  EXPECT_GT(nodes, 1);
  const auto fewer = run_slurm(scratch, "train_70b.toml", {"--machine", h100, "--ranks", std::to_string(8 * nodes / 2)});
  EXPECT_EQ(fewer.status, 5) << fewer.out;
  EXPECT_TRUE(test::has(fewer.err, "Ask for more ranks")) << fewer.err;
}

TEST(SlurmCommand, TimeIsThatOfThePlan) {
  const test::Scratch scratch;
  const Json job = job_of(scratch, "train_7b.toml", {"--machine", h100, "run.steps=4000"});
  const auto planned =
      test::run_program(scratch, {"plan", source + "/inputs/train_7b.toml", "--ranks", "8", "--machine", h100, "run.steps=4000", "--json"});
  const double step = Json::parse(planned.out)["prediction"]["step_seconds"].get<double>();
  EXPECT_NEAR(job["steps_seconds"].get<double>(), 4000 * step, 1e-3 * step);
}

TEST(SlurmCommand, AScriptKeepsItsOverrides) {
  const test::Scratch scratch;
  const auto done = run_slurm(scratch, "quickstart.toml", {"--ranks", "4", "run.name=a b", "--ranks-per-node", "2"});
  EXPECT_EQ(done.status, 0) << done.err;
  for (const char* part : {"#SBATCH --nodes=2\n", "#SBATCH --ntasks-per-node=2\n", "quickstart.toml 'run.name=a b' \"$@\"\n",
                           "# time: not predicted", "#SBATCH --time=1-00:00:00\n", "run.device = \"auto\" is planned for the host"})
    EXPECT_TRUE(test::has(done.out, part)) << part << done.out;
}

TEST(SlurmCommand, ASmallBatchTakesAPartOfANode) {
  const test::Scratch scratch;
  const Json job = job_of(scratch, "quickstart.toml", {"--hours", "3"});  // 8 sequences in micro-batches of 4
  EXPECT_EQ(job["nodes"], 1);
  EXPECT_EQ(job["ntasks_per_node"], 2);
  EXPECT_EQ(job_of(scratch, "quickstart.toml", {"batch.global=64"})["ntasks_per_node"], 8);
  EXPECT_EQ(job_of(scratch, "quickstart.toml", {"mesh.tp=2"})["ntasks_per_node"], 4);
  EXPECT_EQ(job_of(scratch, "quickstart.toml", {"--machine", h100})["gpus_per_node"], 2);
  EXPECT_TRUE(test::has(run_slurm(scratch, "quickstart.toml", {"--hours", "3"}).out, "#SBATCH --time=03:00:00\n"));
}

TEST(SlurmCommand, FaultsAreNamed) {
  const test::Scratch scratch;
  const auto typo = run_slurm(scratch, "train_7b.toml", {"optimizer.learning_rat=1"});
  EXPECT_EQ(typo.status, 2);
  EXPECT_TRUE(test::has(typo.err, "optimizer.learning_rat")) << typo.err;
  const auto half = run_slurm(scratch, "train_7b.toml", {"--ranks", "12", "batch.global=96", "--machine", h100});
  EXPECT_EQ(half.status, 2);
  EXPECT_TRUE(test::has(half.err, "12 ranks do not fill nodes of 8")) << half.err;
}

}  // namespace
}  // namespace tessera::slurm_test
