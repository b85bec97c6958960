// tessera preflight: what it prints, whom it names, and that it leaves nothing behind.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "base/json.hpp"
#include "program.hpp"
#include "train/engine/device.hpp"

namespace tessera::preflight_command_test {
namespace {

const std::string deck = std::string(TESSERA_SOURCE_DIR) + "/inputs/quickstart.toml";
/// Limits that no machine is beyond, whatever else runs on it.
const std::vector<std::string> lax = {"preflight.slower=0.9999999",
                                      "preflight.slower_exchange=0.9999999",
                                      "preflight.slower_disk=0.9999999",
                                      "preflight.temperature=0",
                                      "preflight.throttled=1000000000000",
                                      "preflight.mended_errors=1000000000000",
                                      "preflight.memory_errors=1000000000000",
                                      "preflight.free_space=1 B",
                                      "run.device=host"};

std::vector<std::string> arguments(std::vector<std::string> begin, const std::vector<std::string>& more) {
  begin.insert(begin.end(), more.begin(), more.end());
  return begin;
}

/// Under mpiexec, by the shell; status and both outputs.
test::Finished launch(const test::Scratch& scratch, const std::string& ranks) {
  const std::string out = scratch / "out", err = scratch / "err";
  const int status = std::system(fmt::format("'{}' {} >'{}' 2>'{}' </dev/null", std::getenv("MPIEXEC"), ranks, out, err).c_str());
  return {.status = WEXITSTATUS(status), .out = test::slurp(out), .err = test::slurp(err)};
}

/// Ranks of a row that have a rate.
std::vector<int> measured(const Json& row) {
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < row["rates"].size(); ++rank)
    if (!row["rates"][rank].is_null() && row["rates"][rank].get<double>() > 0) ranks.push_back(static_cast<int>(rank));
  return ranks;
}

TEST(PreflightCommand, MeasuresAllRanksAndLeavesNothing) {
  if (!std::getenv("MPIEXEC")) GTEST_SKIP() << "CTest says which mpiexec";
  const test::Scratch scratch, folder;
  std::string words;
  for (const std::string& key : lax) words += fmt::format(" '{}'", key);
  setenv("TESSERA_RANKS_PER_NODE", "2", 1);  // the third rank is a node of its own
  const auto done = launch(scratch, fmt::format("-n 3 '{}' preflight '{}' {} 'run.output_dir={}' --seconds 0.2 --json", TESSERA_PROGRAM,
                                                deck, words, folder / "runs/new"));
  unsetenv("TESSERA_RANKS_PER_NODE");
  EXPECT_EQ(done.status, 0) << done.out << done.err;
  const Json json = Json::parse(done.out);
  EXPECT_TRUE(json["found"].empty()) << done.out;
  EXPECT_EQ(json["nodes"]["count"], 2);
  std::vector<std::string> names;
  for (const Json& row : json["measures"]) {
    const std::string name = row["name"];
    names.push_back(name);
    const std::vector<int> whose = name == "exchange in a node"       ? std::vector<int>{0, 1}
                                   : name == "exchange between nodes" ? std::vector<int>{0, 2}
                                                                      : std::vector<int>{0, 1, 2};
    EXPECT_EQ(measured(row), whose) << row;
  }
  EXPECT_EQ(names, (std::vector<std::string>{"product in bf16", "product in fp32", "copy in memory", "exchange in a node",
                                             "exchange between nodes", "all-gather of all ranks", "all-reduce of all ranks",
                                             "write to " + folder.path(), "read from " + folder.path()}));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(PreflightCommand, ARankWhoseFolderCannotBeWrittenIsNamedFirst) {
  if (!std::getenv("MPIEXEC")) GTEST_SKIP() << "CTest says which mpiexec";
  const test::Scratch scratch, folder;
  const std::string command = fmt::format("-n 1 '{}' preflight --device host --seconds 0.1 --folder", TESSERA_PROGRAM);
  const auto done = launch(scratch, fmt::format("{} '{}' : {} /proc", command, folder.path(), command));
  EXPECT_EQ(done.status, 7) << done.out << done.err;
  EXPECT_TRUE(done.out.starts_with("rank 1 on ")) << done.out;
  EXPECT_TRUE(test::has(done.out.substr(0, done.out.find('\n')), "write to /proc: ")) << done.out;
  EXPECT_TRUE(test::has(done.err, "error: preflight: rank 1 on ")) << done.err;
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(PreflightCommand, ADecksFaultsAreNamedBeforeAnythingIsMeasured) {
  const test::Scratch scratch;
  const auto typo = test::run_program(scratch, {"preflight", deck, "preflight.slowr=0.2"});
  EXPECT_EQ(typo.status, 2);
  EXPECT_TRUE(test::has(typo.err, "preflight.slowr: is not a key; did you mean preflight.slower?")) << typo.err;
  EXPECT_EQ(test::run_program(scratch, {"preflight", deck, "preflight.slower=1.5"}).status, 2);
  EXPECT_EQ(test::run_program(scratch, {"preflight", "--seconds", "0"}).status, 2);
}

TEST(PreflightCommand, AGpuThatIsNotWellIsNamed) {
  if (has_gpu_backend()) GTEST_SKIP() << "there the driver's own library is asked";
  const test::Scratch scratch;
  const std::string before = std::getenv("LD_LIBRARY_PATH") ? std::getenv("LD_LIBRARY_PATH") : "";
  setenv("LD_LIBRARY_PATH", TESSERA_PRETENDED_NVML, 1);
  setenv("PRETENDED_GPUS", "2", 1);
  const auto done = test::run_program(scratch, arguments({"preflight", deck, "--seconds", "0.1", "run.output_dir=" + scratch.path()},
                                                         arguments(lax, {"preflight.temperature=96", "preflight.memory_errors=0"})));
  before.empty() ? unsetenv("LD_LIBRARY_PATH") : setenv("LD_LIBRARY_PATH", before.c_str(), 1);
  unsetenv("PRETENDED_GPUS");
  EXPECT_EQ(done.status, 6) << done.out << done.err;
  for (const char* part : {": memory of GPU 1 had 1 error that could not be corrected", ": GPU 1 is at 97 degrees, above 96",
                           ": GPU 1 is slowed down by heat, by the hardware", ": GPU 1 is linked by 8 lanes of PCIe out of 16"})
    EXPECT_TRUE(test::has(done.out, part)) << done.out;
}

/// Whether the process holds an open file below a folder.
bool writes_below(pid_t process, const std::string& folder) {
  std::error_code gone;
  for (std::filesystem::directory_iterator fd(fmt::format("/proc/{}/fd", process), gone), end; !gone && fd != end; fd.increment(gone)) {
    std::error_code closed;
    if (std::filesystem::read_symlink(fd->path(), closed).string().starts_with(folder)) return true;
  }
  return false;
}

TEST(PreflightCommand, ASignalInTheMiddleLeavesNothing) {
  const test::Scratch folder;
  const pid_t child = fork();
  if (child == 0) {
    freopen("/dev/null", "w", stdout), freopen("/dev/null", "w", stderr);
    execl(TESSERA_PROGRAM, TESSERA_PROGRAM, "preflight", "--device", "host", "--seconds", "0.5", "--folder", folder.path().c_str(),
          nullptr);
    _exit(127);
  }
  ASSERT_GT(child, 0);
  // While it writes; should the test miss that, it has ended by itself and must have left nothing either.
  int status = 0;
  bool ended = false;
  while (!ended && !writes_below(child, folder.path())) ended = waitpid(child, &status, WNOHANG) == child;
  if (!ended) {
    kill(child, SIGTERM);
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) || WTERMSIG(status) == SIGTERM);
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace tessera::preflight_command_test
