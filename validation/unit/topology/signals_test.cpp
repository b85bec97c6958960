#include "topology/failure/signals.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <thread>

#include "base/check.hpp"

namespace tessera::signals_test {
namespace {

/// What never comes ends with the time limit that CTest has for the program.
void wait_until(const std::function<bool()>& condition) {
  while (!condition()) usleep(1000);
}

// One test: the flag is the process's, and nothing ever clears it.
TEST(Signals, TheFirstSignalIsKeptAndASecondInterruptLeavesAtOnce) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  // What was held ends a process that has nothing to save, once it is released.
  EXPECT_EXIT((hold_stop_signals(), kill(getpid(), SIGTERM), release_stop_signals(), pause()), ::testing::KilledBySignal(SIGTERM), "");
  watch_stop_signals();
  take_stop_signals();
  EXPECT_FALSE(stop_requested());
  EXPECT_EQ(stop_signal(), 0);
  EXPECT_NO_THROW(leave_if_stopped());
  kill(getpid(), SIGUSR1);
  wait_until(stop_requested);
  EXPECT_EQ(stop_signal(), SIGUSR1);
  EXPECT_STREQ(signal_name(stop_signal()), "SIGUSR1");
  try {
    leave_if_stopped();
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code, ExitCode::interrupted);
    EXPECT_NE(std::string(error.what()).find("SIGUSR1 before the first step"), std::string::npos) << error.what();
  }
  // The signals wait for the thread that takes them, so that none is left says that it has seen them.
  for (int signal : {SIGTERM, SIGTERM, SIGINT}) {
    kill(getpid(), signal);
    wait_until([signal] {
      sigset_t pending;
      sigpending(&pending);
      return sigismember(&pending, signal) == 0;
    });
  }
  EXPECT_EQ(stop_signal(), SIGUSR1);
  EXPECT_EXIT(
      (watch_stop_signals(), take_stop_signals(), kill(getpid(), SIGINT), wait_until(stop_requested), kill(getpid(), SIGINT), pause()),
      ::testing::ExitedWithCode(130), "");
}

// No frame of a handler can land on a stack that is not one (see signals.hpp).
TEST(Signals, ThreadsThatStartLaterCannotBeInterrupted) {
  watch_stop_signals();
  std::thread([] {
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
    for (int signal : {SIGTERM, SIGINT, SIGUSR1, SIGHUP}) EXPECT_EQ(sigismember(&blocked, signal), 1) << signal_name(signal);
  }).join();
}

}  // namespace
}  // namespace tessera::signals_test
