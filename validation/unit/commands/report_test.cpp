// tessera report: what it prints, and which options go together.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "program.hpp"

namespace tessera {
namespace {

TEST(ReportCommand, PrintsWhatThereIs) {
  const test::Scratch scratch;
  const auto text = test::run_program(scratch, {"report", "--disk", scratch.path()});
  EXPECT_EQ(text.status, 0) << text.err;
  for (const char* part : {"program\n", "node\n", "limits\n", "devices\n", "disks\n", "locked memory"})
    EXPECT_TRUE(test::has(text.out, part)) << text.out;
  const auto json = test::run_program(scratch, {"report", "--json"});
  EXPECT_EQ(json.status, 0) << json.err;
  EXPECT_TRUE(nlohmann::json::parse(json.out)["lacking"].is_array());
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
}  // namespace tessera
