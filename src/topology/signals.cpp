#include "topology/signals.hpp"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <thread>

#include "base/check.hpp"

namespace tessera {
namespace {

// The process's own: signals have no other owner.
std::atomic<bool> taken{false};
std::atomic<int> first_signal{0};

sigset_t stop_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (int signal : {SIGTERM, SIGINT, SIGUSR1}) sigaddset(&set, signal);
  return set;
}

[[noreturn]] void end_by(int signal, const sigset_t& set) {
  std::signal(signal, SIG_DFL);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  raise(signal);
  _exit(128 + signal);
}

void watch() {
  const sigset_t set = stop_signals();
  pthread_setname_np(pthread_self(), "signals");
  bool interrupted = false;
  while (true) {
    int signal = 0, none = 0;
    if (sigwait(&set, &signal) != 0) continue;
    if (!taken.load()) end_by(signal, set);
    first_signal.compare_exchange_strong(none, signal);
    if (signal == SIGINT && interrupted) _exit(128 + SIGINT);
    interrupted = interrupted || signal == SIGINT;
  }
}

}  // namespace

void watch_stop_signals() {
  const sigset_t set = stop_signals();
  if (int error = pthread_sigmask(SIG_BLOCK, &set, nullptr); error != 0)
    fail(ExitCode::internal, "blocking of signals failed: {}", std::strerror(error));
  // Detached: it holds nothing, and a signal may come until the process ends.
  std::thread(watch).detach();
}

void take_stop_signals() { taken.store(true); }
bool stop_requested() { return first_signal.load() != 0; }
int stop_signal() { return first_signal.load(); }

const char* signal_name(int signal) {
  switch (signal) {
    case SIGTERM:
      return "SIGTERM";
    case SIGINT:
      return "SIGINT";
    case SIGUSR1:
      return "SIGUSR1";
    default:
      return "signal";
  }
}

}  // namespace tessera
