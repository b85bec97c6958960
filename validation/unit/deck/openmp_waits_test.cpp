// Which environments let threads of OpenMP wait awake, and for how long.
#include "deck/openmp_waits.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tessera::openmp_waits_test {
namespace {

std::vector<std::string> changed(std::vector<std::string> entries) {
  std::vector<char*> environment;
  for (std::string& entry : entries) environment.push_back(entry.data());
  environment.push_back(nullptr);
  shorten_openmp_waits(environment.data());
  std::vector<std::string> now;
  for (char** entry = environment.data(); *entry; ++entry) now.emplace_back(*entry);
  return now;
}

using Entries = std::vector<std::string>;
const std::string setting = "GOMP_SPINCOUNT=1000";

TEST(OpenMpWaits, AreShortWhereNobodyHasSaidHowLong) {
  EXPECT_EQ(changed({"A=1", "_=/bin/tessera", "SHLVL=2"}), (Entries{"A=1", setting, "SHLVL=2"}));
  EXPECT_EQ(changed({"_A=1", "SHLVL=2"}), (Entries{"_A=1", setting}));
  EXPECT_EQ(changed({"OLDPWD=/", "B=2"}), (Entries{setting, "B=2"}));
}

TEST(OpenMpWaits, StayAsAUserWantsThem) {
  for (const Entries& kept : {Entries{"_=x", "GOMP_SPINCOUNT=7"}, {"OMP_WAIT_POLICY=active", "_=x"}, {"A=1"}, {}})
    EXPECT_EQ(changed(kept), kept);
  shorten_openmp_waits(nullptr);
}

}  // namespace
}  // namespace tessera::openmp_waits_test
