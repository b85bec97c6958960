// What stands beside metrics.jsonl: tables and event files, made anew of it at each start.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "../scratch.hpp"
#include "io/metrics/csv_file.hpp"
#include "io/metrics/event_file.hpp"

namespace tessera::io::test::metrics_sinks_test {
using namespace tessera::test;
namespace {

const std::string history =
    "{\"step\": 0, \"time\": 5.5, \"ranks\": 2}\n{\"step\": 1, \"time\": 6.5, \"loss\": 2.5, \"load\": [3,4]}\nno row\n"
    "{\"step\": 1, \"time\": 7.0, \"val_loss\": 0.1}\n";

TEST(CsvFile, HasALineForEachRowWithAFigure) {
  Scratch dir;
  spill(dir / "metrics.jsonl", history);
  spill(dir / "metrics.csv", "of an earlier start\n");
  CsvFile csv(dir / "metrics.csv", {"step", "time", "loss", "val_loss"}, dir / "metrics.jsonl");
  csv.write({{"step", std::int64_t{2}}, {"time", 8.0}, {"loss", 1e-300}, {"load", std::vector<std::int64_t>{1}}});
  csv.write({{"step", std::int64_t{3}}, {"loss", std::numeric_limits<double>::infinity()}});
  csv.write({{"step", std::int64_t{3}}, {"time", 9.0}, {"other", 1.0}});
  EXPECT_EQ(slurp(dir / "metrics.csv"), "step,time,loss,val_loss\r\n1,6.5,2.5,\r\n1,7,,0.1\r\n2,8,1e-300,\r\n");
}

/// What TensorBoard reads: the library's own reader is asked by the peer test.
struct Reader {
  std::string bytes;
  std::size_t at = 0;

  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(bytes.at(at++));
      value |= static_cast<std::uint64_t>(byte & 127) << shift;
      if (byte < 128) return value;
    }
  }
  template <class T>
  T raw() {
    T value;
    std::memcpy(&value, bytes.data() + at, sizeof value);
    at += sizeof value;
    return value;
  }
  std::string text() {
    const std::size_t n = varint();
    at += n;
    return bytes.substr(at - n, n);
  }
  bool done() const { return at == bytes.size(); }
};

/// "TAG STEP TIME VALUE" of each scalar.
std::string scalars_of(const std::string& file) {
  std::string all;
  for (Reader in{file}; !in.done();) {
    const std::string length = file.substr(in.at, 8);
    const auto n = in.raw<std::uint64_t>();
    EXPECT_EQ(in.raw<std::uint32_t>(), masked_crc(length));
    Reader event{file.substr(in.at, n)};
    in.at += n;
    EXPECT_EQ(in.raw<std::uint32_t>(), masked_crc(event.bytes));
    double time = 0;
    std::uint64_t step = 0;
    while (!event.done()) switch (event.varint()) {
        case 1 << 3 | 1:
          time = event.raw<double>();
          break;
        case 2 << 3:
          step = event.varint();
          break;
        case 3 << 3 | 2:
          all += event.text() + "\n";
          break;
        case 5 << 3 | 2:
          for (Reader summary{event.text()}; !summary.done();) {
            EXPECT_EQ(summary.varint(), 1u << 3 | 2);
            Reader value{summary.text()};
            EXPECT_EQ(value.varint(), 1u << 3 | 2);
            const std::string tag = value.text();
            EXPECT_EQ(value.varint(), 2u << 3 | 5);
            all += fmt::format("{} {} {} {}\n", tag, step, time, value.raw<float>());
          }
          break;
        default:
          ADD_FAILURE() << "an unknown field";
          return all;
      }
  }
  return all;
}

std::string only_file(const std::string& folder) {
  std::string found;
  for (const auto& entry : fs::directory_iterator(folder)) found = found.empty() ? entry.path().string() : "more than one";
  return found;
}

TEST(EventFile, HoldsEachNumberOnceAfterAnyNumberOfStarts) {
  EXPECT_EQ(masked_crc({}), 0xa282ead8u);
  const std::string digits = "123456789";  // whose CRC-32C is 0xe3069283
  EXPECT_EQ(masked_crc(digits), (0xe3069283u >> 15 | 0xe3069283u << 17) + 0xa282ead8u);
  Scratch dir;
  spill(dir / "metrics.jsonl", history);
  const std::string folder = dir / "tensorboard",
                    before = "ranks 0 5.5 2\nloss 1 6.5 2.5\nload/0 1 6.5 3\nload/1 1 6.5 4\nval_loss 1 7 0.1\n";
  { EventFile first(folder, 100, dir / "metrics.jsonl"); }
  const std::string earlier = only_file(folder);
  EventFile again(folder, 100, dir / "metrics.jsonl");
  EXPECT_GT(only_file(folder), earlier) << "a later name, which who looks on turns to";
  again.write({{"step", std::int64_t{300}},
               {"time", 8.0},
               {"loss", 1.5},
               {"of", NamedNumbers{{"a.h5", 2.0}, {"none", std::numeric_limits<double>::quiet_NaN()}}}});
  again.write({{"step", std::int64_t{301}}, {"note", std::string("no number")}});
  EXPECT_EQ(scalars_of(slurp(only_file(folder))), "brain.Event:2\n" + before + "loss 300 8 1.5\nof/a.h5 300 8 2\n");
  spill(dir / "file", "");
  EXPECT_HAS(error_of(ExitCode::storage, [&] { EventFile(dir / "file", 1, dir / "metrics.jsonl"); }), "cannot make the folder");
  fs::create_symlink(folder, dir / "link");
  EXPECT_HAS(error_of(ExitCode::storage, [&] { EventFile(dir / "link", 1, dir / "metrics.jsonl"); }), "is a link to");
  EXPECT_NE(only_file(folder), "") << "what another run wrote there stays";
}

/// The step's row, which is the same whenever it is made.
MetricRow row_of(std::int64_t step) {
  return {{"step", step},
          {"time", 10.5 + static_cast<double>(step)},
          {"loss", 1.0 / static_cast<double>(step)},
          {"load", std::vector<std::int64_t>{step, 2}}};
}

/// What a start leaves that goes on after `done` steps: metrics.jsonl, then the table, then the scalars.
std::string left_by_start(const std::string& folder, std::int64_t done, std::int64_t last) {
  fs::remove_all(folder + "/tensorboard");
  {
    MetricsFile metrics(folder + "/m", done + 1);
    CsvFile csv(folder + "/m.csv", {"step", "time", "loss"}, folder + "/m");
    EventFile events(folder + "/tensorboard", 1, folder + "/m");
    for (std::int64_t step = done + 1; step <= last; ++step)
      metrics.write(row_of(step)), csv.write(row_of(step)), events.write(row_of(step));
  }
  return slurp(folder + "/m") + slurp(folder + "/m.csv") + scalars_of(slurp(only_file(folder + "/tensorboard")));
}

TEST(AllSinks, HaveEachRowOnceWhereverAKillCutTheFile) {
  Scratch dir;
  const std::string folder = dir / "run";
  fs::create_directories(folder);
  const std::string whole = left_by_start(folder, 0, 4), rows = slurp(folder + "/m");
  for (std::size_t cut = 0; cut <= rows.size(); ++cut) {
    const std::string left = rows.substr(0, cut);
    const std::int64_t steps = std::ranges::count(left, '\n');
    for (std::int64_t saved = std::max<std::int64_t>(0, steps - 1); saved <= steps; ++saved) {
      spill(folder + "/m", left);
      EXPECT_EQ(left_by_start(folder, saved, 4), whole) << "cut at byte " << cut << ", resumes from step " << saved;
    }
  }
}

}  // namespace
}  // namespace tessera::io::test::metrics_sinks_test
