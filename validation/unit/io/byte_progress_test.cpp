// The time left of work in bytes: by the rate of the last seconds, and over passes that cost unlike much.
#include "io/files/byte_progress.hpp"

#include <gtest/gtest.h>

namespace tessera::io::byte_progress_test {
namespace {

double now = 0;
double clock_of_test() { return now; }

/// So many bytes each second, in fifths of a second.
void work(ByteProgress& progress, double seconds, std::int64_t bytes_a_second) {
  for (int i = 0; i < static_cast<int>(5 * seconds + 0.5); ++i) now += 0.2 + 1e-9, progress.add(bytes_a_second / 5);
}

TEST(ByteProgress, ForeseesASecondPassThatCostsMoreThanTheFirst) {
  now = 100;
  ByteProgress progress("tokenize", 10000, false, {1, 50}, clock_of_test);
  work(progress, 5, 1000);  // half of the first pass: 5 s of it are left, and 500 of the second
  EXPECT_NE(progress.line().find("8 min 25 s left"), std::string::npos) << progress.line();
  EXPECT_NE(progress.line().find("  1 %"), std::string::npos) << progress.line();
  work(progress, 5, 1000), progress.next_pass();
  EXPECT_NE(progress.line().find("8 min 20 s left"), std::string::npos) << progress.line();
}

TEST(ByteProgress, GoesByTheRateOfThePassUnderWay) {
  now = 100;
  ByteProgress progress("tokenize", 10000, false, {1, 50}, clock_of_test);
  work(progress, 10, 1000), progress.next_pass();
  work(progress, 10, 400);  // the cost was a guess: 6000 bytes are left
  EXPECT_NE(progress.line().find("400 B/s, 15 s left"), std::string::npos) << progress.line();
}

TEST(ByteProgress, ForgetsHowFastItOnceWas) {
  now = 100;
  ByteProgress progress("verify", 100000, false, {1}, clock_of_test);
  work(progress, 5, 10000), work(progress, 10, 1000);  // 40000 are left, at 1000 a second
  EXPECT_NE(progress.line().find("40 s left"), std::string::npos) << progress.line();
}

TEST(ByteProgress, OfAPipeHasNoEnd) {
  now = 100;
  ByteProgress progress("tokenize", 0, false, {1, 50}, clock_of_test);
  work(progress, 5, 1000);
  EXPECT_EQ(progress.line().find("left"), std::string::npos) << progress.line();
}

}  // namespace
}  // namespace tessera::io::byte_progress_test
