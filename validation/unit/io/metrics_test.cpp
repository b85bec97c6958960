#include "io/metrics/metrics.hpp"

#include <sys/stat.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include "base/json.hpp"

#include "../scratch.hpp"

namespace tessera::io::test::metrics_test {
using namespace tessera::test;
namespace {

TEST(Metrics, NoLinkIsWrittenThrough) {
  Scratch dir;
  spill(dir / "victim", "precious");
  fs::create_symlink("victim", dir / "metrics.jsonl");
  EXPECT_HAS(error_of(ExitCode::storage, [&] { MetricsFile(dir / "metrics.jsonl", 1); }), "metrics.jsonl: cannot open for writing");
  EXPECT_EQ(slurp(dir / "victim"), "precious");
  fs::remove(dir / "metrics.jsonl");
  // A copy of the folder by hard links keeps its rows.
  spill(dir / "copy.jsonl", "{\"step\": 1}\n{\"step\": 2}\n");
  fs::create_hard_link(dir / "copy.jsonl", dir / "metrics.jsonl");
  MetricsFile(dir / "metrics.jsonl", 2).write({{"step", std::int64_t{2}}, {"again", std::int64_t{1}}});
  EXPECT_EQ(slurp(dir / "copy.jsonl"), "{\"step\": 1}\n{\"step\": 2}\n");
  EXPECT_EQ(slurp(dir / "metrics.jsonl"), "{\"step\": 1}\n{\"step\": 2, \"again\": 1}\n");
}

TEST(Metrics, WhatIsNoRegularFileIsRefused) {
  Scratch dir;
  ASSERT_EQ(::mkfifo((dir / "metrics.jsonl").c_str(), 0600), 0);
  EXPECT_HAS(error_of(ExitCode::storage, [&] { MetricsFile m(dir / "metrics.jsonl", 0); }), "metrics.jsonl: this is a pipe");
}

TEST(Metrics, DoublesReadBackBitForBit) {
  Scratch dir;
  std::mt19937_64 engine(1);
  std::vector<double> values = {0.0, -0.0, 0.1, 1e300, 5e-324, 3.0, static_cast<double>(2.3456789f)};
  while (values.size() < 2000) {
    double v = std::bit_cast<double>(engine());
    if (std::isfinite(v)) values.push_back(v);
  }
  {
    MetricsFile m(dir / "metrics.jsonl", 0);
    for (std::size_t i = 0; i < values.size(); ++i) m.write({{"step", static_cast<std::int64_t>(i)}, {"loss", values[i]}});
  }
  std::ifstream in(dir / "metrics.jsonl");
  std::string line;
  for (auto v : values) {
    ASSERT_TRUE(std::getline(in, line));
    auto row = Json::parse(line);
    ASSERT_EQ(row["loss"].get<double>(), v) << line;
    ASSERT_EQ(std::bit_cast<std::uint64_t>(std::strtod(line.c_str() + line.rfind(' ') + 1, nullptr)), std::bit_cast<std::uint64_t>(v));
  }
}

TEST(Metrics, Rows) {
  Scratch dir;
  MetricsFile m(dir / "m", 0);
  m.write({{"step", std::int64_t{1}},
           {"lr", 0.001},
           {"bad", std::numeric_limits<double>::quiet_NaN()},
           {"worse", -std::numeric_limits<double>::infinity()},
           {"load", std::vector<std::int64_t>{3, 0, 12}},
           {"note", std::string("a \"quote\"\n\xff")}});
  EXPECT_EQ(
      slurp(dir / "m"),
      "{\"step\": 1, \"lr\": 0.001, \"bad\": null, \"worse\": null, \"load\": [3,0,12], \"note\": \"a \\\"quote\\\"\\n\xef\xbf\xbd\"}\n");
  EXPECT_HAS(error_of(ExitCode::storage, [&] { MetricsFile f(dir / "no/m", 0); }), "No such file");
}

TEST(Metrics, ResumeCutsWhatWillBeWrittenAgain) {
  Scratch dir;
  auto path = dir / "m";
  auto row = [](int step) { return fmt::format("{{\"step\": {}, \"loss\": {}.5}}\n", step, step); };
  const std::string event = "{\"event\": \"eval\"}\n";
  spill(path, row(1) + event + row(2) + row(3) + row(4) + "{\"step\": 5, \"lo");
  { MetricsFile m(path, 5); }
  EXPECT_EQ(slurp(path), row(1) + event + row(2) + row(3) + row(4));
  {
    MetricsFile m(path, 3);
    m.write({{"step", std::int64_t{3}}, {"loss", 9.25}});
  }
  EXPECT_EQ(slurp(path), row(1) + event + row(2) + "{\"step\": 3, \"loss\": 9.25}\n");
  { MetricsFile m(path, 0); }
  EXPECT_EQ(slurp(path), "");
}

// Lines that are no rows go to a file of their own, wherever they stand, and once.
TEST(Metrics, ResumeSetsDamagedLinesAside) {
  Scratch dir;
  const std::string path = dir / "m";
  auto row = [](int step) { return fmt::format("{{\"step\": {}}}\n", step); };
  spill(path, row(1) + "bro{ken\n" + row(2) + "{\"step\": 2, \n" + "[3]\n" + row(4) + row(5));
  testing::internal::CaptureStderr();
  { MetricsFile m(path, 4); }
  EXPECT_EQ(slurp(path), row(1) + row(2));
  EXPECT_EQ(slurp(path + ".damaged"), "bro{ken\n{\"step\": 2, \n[3]\n");
  { MetricsFile m(path, 4); }
  EXPECT_HAS(testing::internal::GetCapturedStderr(), "lines 2, 4, 5 are no rows of JSON");
  EXPECT_EQ(slurp(path), row(1) + row(2));
  spill(path, "again\n" + row(1));
  { MetricsFile m(path, 4); }
  EXPECT_EQ(slurp(path + ".damaged"), "bro{ken\n{\"step\": 2, \n[3]\nagain\n") << "what was set aside before stays";
}

/// Whatever happens to the file's name while it is written, no row is lost.
TEST(Metrics, MovedRemovedAndReplaced) {
  Scratch dir;
  const std::string path = dir / "metrics.jsonl";
  MetricsFile file(path, 1);
  auto write = [&](std::int64_t step) { file.write({{"step", step}}); };
  auto rows = [](int last) {
    std::string text;
    for (int step = 1; step <= last; ++step) text += fmt::format("{{\"step\": {}}}\n", step);
    return text;
  };
  testing::internal::CaptureStderr();
  write(1);
  fs::remove(path);
  write(2);
  EXPECT_EQ(slurp(path), rows(2));
  fs::rename(path, dir / "moved");
  write(3);
  write(4);
  EXPECT_EQ(slurp(path), rows(4));
  EXPECT_EQ(slurp(dir / "moved"), rows(2));
  fs::rename(path, dir / "away");
  spill(path, "somebody's\n");
  write(5);
  EXPECT_EQ(slurp(path), rows(5));
  EXPECT_EQ(slurp(path + ".old-1"), "somebody's\n");
  const std::string said = testing::internal::GetCapturedStderr();
  int times = 0;
  for (auto at = said.find("rewritten"); at != std::string::npos; at = said.find("rewritten", at + 1)) ++times;
  EXPECT_EQ(times, 3) << said;
}

}  // namespace
}  // namespace tessera::io::test::metrics_test
