// The history of a run: what is added stays, and what a kill has cut is no event.
#include "io/metrics/events.hpp"

#include <cmath>
#include <limits>

#include "../scratch.hpp"

namespace tessera::io::test::events_test {
using namespace tessera::test;
namespace {

Event event(std::int64_t step, const std::string& name = "save") {
  return {.time = 1700000000.25 + static_cast<double>(step),
          .step = step,
          .event = name,
          .fields = {{"seconds", 0.1 * static_cast<double>(step)}}};
}

TEST(Events, AreReadAsTheyWereWritten) {
  Scratch dir;
  const std::string path = dir / "events.jsonl";
  EXPECT_TRUE(read_events(path).empty()) << "there is none";
  for (std::int64_t start = 0; start < 3; ++start) {
    EventLog log(path);
    for (std::int64_t step = 0; step < 4; ++step) log.write(event(10 * start + step));
  }
  const std::vector<Event> events = read_events(path);
  ASSERT_EQ(events.size(), 12u);
  for (std::size_t n = 0; n < events.size(); ++n) {
    const Event wanted = event(static_cast<std::int64_t>(10 * (n / 4) + n % 4));
    EXPECT_EQ(events[n].time, wanted.time);
    EXPECT_EQ(events[n].step, wanted.step);
    EXPECT_EQ(events[n].event, "save");
    EXPECT_EQ(events[n].fields, wanted.fields);
  }
}

TEST(Events, ACutLineCostsItself) {
  Scratch dir;
  const std::string path = dir / "events.jsonl", whole = line_of(event(1)) + line_of(event(2)), cut = line_of(event(3));
  for (std::size_t bytes = 0; bytes < cut.size(); ++bytes) {
    spill(path, whole + cut.substr(0, bytes));
    EXPECT_EQ(read_events(path).size(), 2u) << bytes;
    EventLog(path).write(event(4));
    EXPECT_EQ(slurp(path), whole + line_of(event(4))) << bytes;
  }
  // Of a tail, what stands before its first end of a line.
  EXPECT_EQ(events_of((whole + cut).substr(5), true).size(), 2u);
  EXPECT_TRUE(events_of(cut.substr(5, 10), true).empty());
}

TEST(Events, WhatIsNoneIsLeftOut) {
  const std::string text =
      "\n[1]\n{\"time\": 1}\n{\"time\": \"x\", \"step\": 1, \"event\": \"save\"}\n{\"time\": 1, \"step\": 1.5, \"event\": \"save\"}\n" +
      line_of(event(7)) + "garbage\n";
  const std::vector<Event> events = events_of(text);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].step, 7);
  // No number is no number, and a text of any bytes a line.
  const Event strange{.time = 1, .step = 2, .event = "warning", .fields = {{"text", "a\nb\xff\""}, {"val_loss", std::nan("")}}};
  const std::string line = line_of(strange);
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  ASSERT_EQ(events_of(line).size(), 1u);
  EXPECT_TRUE(events_of(line)[0].fields["val_loss"].is_null());
}

TEST(Events, AFileThatIsMovedAwayIsWrittenAnewWithAll) {
  Scratch dir;
  const std::string path = dir / "events.jsonl";
  EventLog log(path);
  log.write(event(1));
  fs::rename(path, dir / "aside");
  log.write(event(2));
  EXPECT_EQ(slurp(path), line_of(event(1)) + line_of(event(2)));
  EXPECT_EQ(slurp(dir / "aside"), line_of(event(1)));
  fs::remove(path);
  fs::create_symlink("victim", path);
  EXPECT_HAS(error_of(ExitCode::storage, [&] { EventLog again(path); }), "events.jsonl: cannot open for writing");
}

}  // namespace
}  // namespace tessera::io::test::events_test
