// run.notify: what the command gets, that a step never waits for it, and that it hears of a run that was killed.
#include "train/observe/run_notices.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "../scratch.hpp"
#include "base/clock.hpp"

namespace tessera {
namespace {

std::string read(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::vector<Json> lines_of(const std::string& path) {
  std::vector<Json> lines;
  std::istringstream in(read(path));
  for (std::string line; std::getline(in, line);) lines.push_back(Json::parse(line));
  return lines;
}

const Json run_facts{{"run", "small"}, {"ranks", 2}};

TEST(RunNotices, TheCommandGetsAnObjectALineAndTheEndWaitsForIt) {
  const test::Scratch scratch;
  RunNotices notices;
  notices.begin("cat >> '" + (scratch / "told") + "'", 60, run_facts);
  notices.tell("stall", 7, {{"text", "step 7 \"took\" long\nand longer $(touch no) 'x'"}, {"seconds", 18.0}});
  notices.end(9, "finished", 0);
  const std::vector<Json> told = lines_of(scratch / "told");
  ASSERT_EQ(told.size(), 2u);
  EXPECT_EQ(told[0]["event"].get<std::string>(), "stall");
  EXPECT_EQ(told[0]["run"].get<std::string>(), "small");
  EXPECT_EQ(told[0]["step"].get<std::int64_t>(), 7);
  EXPECT_EQ(told[0]["text"].get<std::string>(), "step 7 \"took\" long\nand longer $(touch no) 'x'");
  EXPECT_EQ(told[1]["event"].get<std::string>(), "end");
  EXPECT_EQ(told[1]["reason"].get<std::string>(), "finished");
  EXPECT_EQ(told[1]["exit"].get<std::int64_t>(), 0);
  EXPECT_GT(told[1]["time"].get<double>(), 1.7e9);
  notices.end(9, "finished", 0);
  EXPECT_EQ(lines_of(scratch / "told").size(), 2u) << "an end is told once";
}

TEST(RunNotices, ACommandThatFailsIsSaidOnceWithItsWords) {
  testing::internal::CaptureStderr();
  {
    RunNotices notices;
    notices.begin("echo no such channel >&2; exit 3", 60, run_facts);
    notices.tell("stall", 1, {});
    notices.tell("stall", 2, {});
    notices.end(3, "finished", 0);
  }
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("run.notify: `echo no such channel >&2; exit 3` ended with status 3: no such channel"), std::string::npos) << said;
  EXPECT_EQ(said.find("run.notify"), said.rfind("run.notify")) << said;
}

TEST(RunNotices, ACommandThatHangsIsEndedAndNobodyWaitsInBetween) {
  const test::Scratch scratch;
  testing::internal::CaptureStderr();
  {
    RunNotices notices;
    // It goes on once the file is there, which is made after all that a step calls.
    notices.begin("while [ ! -e '" + (scratch / "go") + "' ]; do sleep 0.05; done; cat >> '" + (scratch / "told") + "'", 60, run_facts);
    for (int step = 0; step < 5; ++step) notices.tell("stall", step, {}), notices.look();
    EXPECT_FALSE(std::filesystem::exists(scratch / "told")) << "what a step calls has returned before the command has";
    std::ofstream(scratch / "go") << "now";
    notices.end(5, "finished", 0);
  }
  EXPECT_EQ(lines_of(scratch / "told").size(), 6u);
  {
    RunNotices notices;
    notices.begin("sleep 1000", 1, run_facts);
    notices.end(5, "finished", 0);
  }
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("`sleep 1000` took longer than 1 s (run.notify_limit)"), std::string::npos) << said;
}

TEST(RunNotices, LinesThatNobodyTakesAreGivenUpAndNotWaitedFor) {
  testing::internal::CaptureStderr();
  {
    RunNotices notices;
    notices.begin("sleep 1000", 2, run_facts);
    for (int i = 0; i < 200; ++i) notices.tell("stall", i, {{"text", std::string(10000, 'x')}});
  }
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("takes no more notices"), std::string::npos) << said;
  EXPECT_EQ(said.find("run.notify"), said.rfind("run.notify")) << said;
}

TEST(RunNotices, WhoIsKilledIsToldOf) {
  const test::Scratch scratch;
  const pid_t child = fork();
  if (child == 0) {
    RunNotices notices;
    notices.begin("cat > '" + (scratch / "part") + "' && mv '" + (scratch / "part") + "' '" + (scratch / "told") + "'", 60, run_facts);
    kill(getpid(), SIGKILL);
  }
  waitpid(child, nullptr, 0);
  for (const double last = now_seconds() + 60; now_seconds() < last && !std::filesystem::exists(scratch / "told");)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const std::vector<Json> told = lines_of(scratch / "told");
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0]["event"].get<std::string>(), "end");
  EXPECT_EQ(told[0]["reason"].get<std::string>(), "killed");
  EXPECT_GT(told[0]["time"].get<double>(), 1.7e9);
}

}  // namespace
}  // namespace tessera
