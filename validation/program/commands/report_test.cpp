// tessera report: what it prints, and which options go together.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>

#include "base/json.hpp"

#include "program.hpp"
#include "train/engine/device.hpp"

namespace tessera::report_test {
namespace {

TEST(ReportCommand, PrintsWhatThereIs) {
  const test::Scratch scratch;
  const auto text = test::run_program(scratch, {"report", "--disk", scratch.path()});
  EXPECT_EQ(text.status, 0) << text.err;
  for (const char* part : {"program\n", "node\n", "limits\n", "devices\n", "disks\n", "locked memory"})
    EXPECT_TRUE(test::has(text.out, part)) << text.out;
  const auto json = test::run_program(scratch, {"report", "--json"});
  EXPECT_EQ(json.status, 0) << json.err;
  EXPECT_TRUE(Json::parse(json.out)["lacking"].is_array());
}

/// Sets a variable for the programs that a test starts.
struct Setting {
  Setting(const char* name, const std::string& value) : name(name) {
    if (const char* old = std::getenv(name)) before = old;
    setenv(name, value.c_str(), 1);
  }
  ~Setting() { before ? setenv(name, before->c_str(), 1) : unsetenv(name); }
  const char* name;
  std::optional<std::string> before = {};
};

TEST(ReportCommand, LooksForGpusInEveryBuild) {
  const test::Scratch scratch;
  const Setting library("LD_LIBRARY_PATH", TESSERA_PRETENDED_NVML);
  const auto devices = [&](const char* gpus) {
    const Setting count("PRETENDED_GPUS", gpus);
    const auto json = test::run_program(scratch, {"report", "--json"});
    EXPECT_EQ(json.status, 0) << json.err;
    return Json::parse(json.out);
  };
  const auto two = devices("2"), none = devices("0"), silent = devices("-1");
  EXPECT_EQ(two["devices"]["GPU driver"], "580.65.06");
  EXPECT_FALSE(silent["devices"].contains("GPU driver"));
  if (has_gpu_backend()) return;  // then CUDA tells of the GPUs
  EXPECT_EQ(two["devices"]["GPU 0"], "Pretended H100, 80.00 GiB");
  EXPECT_EQ(two["devices"]["GPU 1"], "Pretended H100");
  EXPECT_TRUE(test::has(two["lacking"].dump(), "this node has 2 GPUs, but this build has no kernels for them")) << two["lacking"];
  EXPECT_EQ(none["devices"]["GPUs"], "none: the driver sees none");
  EXPECT_EQ(silent["devices"]["GPUs"], "none: the driver of NVIDIA does not answer (NVML status 9): nvidia-smi shows more");
}

TEST(ReportCommand, OfSeveralRanksIsOneTable) {
  const char* mpiexec = std::getenv("MPIEXEC");
  if (!mpiexec) GTEST_SKIP() << "CTest says which mpiexec";
  const test::Scratch scratch;
  const std::string out = scratch / "out", program = TESSERA_PROGRAM;
  const std::string command = fmt::format(
      "TESSERA_RANKS_PER_NODE=1 '{0}' -n 1 '{1}' report : -n 1 sh -c 'ulimit -n 512; CUDA_VISIBLE_DEVICES=5 exec \"$0\" report' '{1}' "
      ">'{2}' "
      "</dev/null",
      mpiexec, program, out);
  EXPECT_EQ(std::system(command.c_str()), 0);
  const std::string text = test::slurp(out);
  EXPECT_EQ(text.find("ranks 0-1 on "), 0u) << text;
  EXPECT_EQ(text.find("  processor  "), text.rfind("  processor  ")) << "once: " << text;
  EXPECT_TRUE(test::has(text, "\ndevices\n  CUDA_VISIBLE_DEVICES\n    rank 0                     none\n    rank 1                     5\n"))
      << text;
  EXPECT_TRUE(test::has(text, "nodes that differ\n")) << text;
  EXPECT_TRUE(test::has(text, " (rank 1): limit of open files is 512, on ")) << text;
}

TEST(ReportCommand, RefusesOptionsThatDoNotGoTogether) {
  const test::Scratch scratch;
  const std::vector<std::vector<std::string>> refused{
      {"report", "--measure", "--json"}, {"report", "--threads", "1"}, {"report", "--measure", "--device", "tpu"}, {"report", "here.toml"}};
  for (const auto& arguments : refused) EXPECT_EQ(test::run_program(scratch, arguments).status, 2) << arguments.back();
}

TEST(ReportCommand, MeasuresNothingOnAFolderThatIsNotThere) {
  const test::Scratch scratch;
  const auto done = test::run_program(scratch, {"report", "--disk", scratch / "none"});
  EXPECT_EQ(done.status, 0) << "a report tells what lacks";
  EXPECT_TRUE(test::has(done.out, "not usable")) << done.out;
}

}  // namespace
}  // namespace tessera::report_test
