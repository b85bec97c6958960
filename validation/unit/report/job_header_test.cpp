// What a run asks of Slurm, from numbers given by hand.
#include "report/job_header.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"

namespace tessera::job_header_test {
namespace {

constexpr std::int64_t gib = std::int64_t{1} << 30;

JobNeeds of_gpus() {
  return {.deck = "a.toml",
          .ranks = 64,
          .per_node = 8,
          .cores = 12,
          .gpus = true,
          .host_bytes = 3 * gib,
          .steps = 1000,
          .seconds = 36000,
          .machine = "m"};
}
bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(JobHeader, RanksFillNodes) {
  const JobHeader h = job_header(of_gpus());
  EXPECT_EQ(h.nodes, 8);
  EXPECT_EQ(h.tasks_per_node, 8);
  EXPECT_EQ(h.gpus_per_node, 8);
  EXPECT_EQ(h.cpus_per_task, 12);
  EXPECT_EQ(h.mem_gib, 8 * (3 + 4));
  JobNeeds few = of_gpus();
  few.ranks = 4, few.gpus = false, few.host_bytes = 1;
  EXPECT_EQ(job_header(few).nodes, 1);
  EXPECT_EQ(job_header(few).tasks_per_node, 4);
  EXPECT_EQ(job_header(few).gpus_per_node, 0);
  EXPECT_EQ(job_header(few).mem_gib, 5) << "four processes, and four bytes that round up";
}

TEST(JobHeader, RanksThatLeaveANodeHalfEmptyAreRefused) {
  JobNeeds needs = of_gpus();
  needs.ranks = 12;
  try {
    job_header(needs);
    FAIL() << "12 ranks on nodes of 8";
  } catch (const Error& error) {
    EXPECT_EQ(error.code, ExitCode::usage);
    EXPECT_TRUE(has(error.what(), "--ranks 8 or 16")) << error.what();
  }
}

TEST(JobHeader, TheLimitHoldsTheRun) {
  const JobHeader h = job_header(of_gpus());
  EXPECT_EQ(h.jobs, 1);
  EXPECT_EQ(h.minutes, (36000 * 11 / 10 + 600) / 60);
  JobNeeds little = of_gpus();
  little.seconds = 1;
  EXPECT_GE(*job_header(little).minutes * 60, job_header(little).notice + 120)
      << "a limit within the notice would be asked to save at once";
}

TEST(JobHeader, ALongRunIsSeveralJobs) {
  JobNeeds needs = of_gpus();
  needs.seconds = 20 * 86400;
  const JobHeader h = job_header(needs);
  EXPECT_EQ(h.minutes, 1440);
  // Each start has its beginning and the notice to lose.
  EXPECT_EQ(h.jobs, 23);
  EXPECT_TRUE(has(print_job(needs, h), "23 starts, which the job requests by itself"));
  EXPECT_TRUE(has(print_job(needs, h), "#SBATCH --time=1-00:00:00\n"));
}

TEST(JobHeader, WithoutAPredictionTheLimitIsThatOfHours) {
  JobNeeds needs = of_gpus();
  needs.seconds.reset();
  const std::string text = print_job(needs, job_header(needs));
  EXPECT_TRUE(has(text, "#SBATCH --time=1-00:00:00\n")) << text;
  EXPECT_TRUE(has(text, "not predicted, so the limit is --hours, and a longer run queues itself again: --machine PROFILE predicts it"))
      << text;
  needs.seconds = 5, needs.steps = 0;
  EXPECT_TRUE(has(print_job(needs, job_header(needs)), "queues itself again: the number of steps")) << text;
}

TEST(JobHeader, StateOnTheHostHasLongerToSave) {
  JobNeeds needs = of_gpus();
  needs.state_on_host = true;
  EXPECT_TRUE(has(print_job(needs, job_header(needs)), "#SBATCH --signal=B:USR1@600\n"));
}

TEST(JobHeader, OverridesAreWordsOfAShell) {
  JobNeeds needs = of_gpus();
  needs.overrides = {"run.seed=2", "memory.device=\"80 GB\"", "run.name=it's"};
  EXPECT_TRUE(has(print_job(needs, job_header(needs)), "\ntrain a.toml run.seed=2 'memory.device=\"80 GB\"' 'run.name=it'\\''s' \"$@\"\n"));
}

TEST(JobHeader, TimesAreThoseOfSlurm) {
  EXPECT_EQ(slurm_time(90), "01:30:00");
  EXPECT_EQ(slurm_time(1439), "23:59:00");
  EXPECT_EQ(slurm_time(1440 * 3 + 61), "3-01:01:00");
}

}  // namespace
}  // namespace tessera::job_header_test
