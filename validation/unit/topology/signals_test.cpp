#include "topology/signals.hpp"

#include <gtest/gtest.h>
#include <signal.h>

namespace tessera {
namespace {

// One test: the flag is the process's, and nothing ever clears it.
TEST(Signals, TheFirstSignalIsKeptAndASecondInterruptLeavesAtOnce) {
  install_signal_handlers();
  EXPECT_FALSE(stop_requested());
  EXPECT_EQ(stop_signal(), 0);
  raise(SIGUSR1);
  EXPECT_TRUE(stop_requested());
  EXPECT_EQ(stop_signal(), SIGUSR1);
  EXPECT_STREQ(signal_name(stop_signal()), "SIGUSR1");
  raise(SIGTERM);
  raise(SIGTERM);
  EXPECT_EQ(stop_signal(), SIGUSR1);
  raise(SIGINT);
  EXPECT_EXIT(raise(SIGINT), ::testing::ExitedWithCode(130), "");
}

}  // namespace
}  // namespace tessera
