// The limit of open files: raised as far as it goes, and said where it ends.
#include "base/open_files.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>

namespace tessera::open_files_test {
namespace {

TEST(OpenFiles, TheSoftLimitIsRaisedAndNeverLowered) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = before, after{};
  low.rlim_cur = std::min<rlim_t>(64, before.rlim_max);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  const std::string said = open_advice(EMFILE);
  EXPECT_NE(said.find(fmt::format("may have {} files open, and the system lets it have {}", low.rlim_cur, low.rlim_max)), said.npos)
      << said;
  EXPECT_NE(said.find("ulimit -n"), said.npos) << said;
  raise_open_files();
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &after), 0);
  EXPECT_EQ(after.rlim_cur, std::min<rlim_t>(before.rlim_max, 65536));
  EXPECT_EQ(after.rlim_max, before.rlim_max);
  raise_open_files();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  raise_open_files();
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &after), 0);
  EXPECT_GE(after.rlim_cur, before.rlim_cur);
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_EQ(open_advice(ENOENT), "Check the path and its permissions.");
}

}  // namespace
}  // namespace tessera::open_files_test
