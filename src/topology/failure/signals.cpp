#include "topology/failure/signals.hpp"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <ctime>
#include <thread>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "base/end_report.hpp"
#include "base/log.hpp"
#include "topology/failure/leave.hpp"

namespace tessera {
namespace {

constexpr double unseen_seconds = 5;

// The process's own: signals have no other owner.
std::atomic<bool> taken{false}, interrupted{false};
std::atomic<int> first_signal{0};
sigset_t held, before;  // what is held, and what was blocked before

std::string nothing_to_save() {
  return fmt::format("stopped by {} before the first step: there is nothing to save; start the same command again",
                     signal_name(stop_signal()));
}

[[noreturn]] void leave_unseen() {
  log_line(LogLevel::info, nothing_to_save());
  report_end(static_cast<int>(ExitCode::interrupted));
  leave_now(ExitCode::interrupted);
}

/// The next signal; 0 when `seconds` have passed without one.
int next_signal(double seconds) {
  const timespec limit{static_cast<time_t>(seconds),
                       static_cast<long>((seconds - static_cast<double>(static_cast<time_t>(seconds))) * 1e9)};
  const int signal = sigtimedwait(&held, nullptr, &limit);
  return signal > 0 ? signal : 0;
}

void watch() {
  constexpr double look_seconds = 0.25, idle_seconds = 3600;
  pthread_setname_np(pthread_self(), "signals");
  double since = 0;
  while (true) {
    const bool unseen = stop_requested() && !taken.load();
    if (unseen && now_seconds() - since > unseen_seconds) leave_unseen();
    int none = 0;
    const int signal = next_signal(unseen ? look_seconds : idle_seconds);
    if (signal == 0) continue;
    if (first_signal.compare_exchange_strong(none, signal)) since = now_seconds();
    if (signal == SIGINT && interrupted.exchange(true)) tell_launcher(128 + SIGINT), _exit(128 + SIGINT);
  }
}

}  // namespace

void hold_stop_signals() noexcept {
  if (sigismember(&held, SIGTERM) == 1) {  // what a library has done to SIGHUP since the start is not what was asked for
    sigprocmask(SIG_BLOCK, &held, nullptr);
    return;
  }
  sigemptyset(&held);
  for (int signal : {SIGTERM, SIGINT, SIGUSR1}) sigaddset(&held, signal);
  struct sigaction action = {};
  if (sigaction(SIGHUP, nullptr, &action) == 0 && action.sa_handler != SIG_IGN) sigaddset(&held, SIGHUP);
  sigprocmask(SIG_BLOCK, &held, &before);  // fails for wrong arguments only
}

void release_stop_signals() {
  if (int error = pthread_sigmask(SIG_SETMASK, &before, nullptr); error != 0)
    fail(ExitCode::internal, "releasing of signals failed: {}", std::strerror(error));
}

void watch_stop_signals() {
  hold_stop_signals();
  taken.store(false);
  static std::atomic<bool> watched{false};
  // Detached: it holds nothing, and a signal may come until the process ends.
  if (!watched.exchange(true)) std::thread(watch).detach();
}

void take_stop_signals() { taken.store(true); }
bool stop_requested() { return first_signal.load() != 0; }
int stop_signal() { return first_signal.load(); }

void leave_if_stopped() {
  if (stop_requested()) throw Error(ExitCode::interrupted, nothing_to_save());
}

const char* signal_name(int signal) {
  switch (signal) {
    case SIGTERM:
      return "SIGTERM";
    case SIGINT:
      return "SIGINT";
    case SIGUSR1:
      return "SIGUSR1";
    case SIGHUP:
      return "SIGHUP";
    default:
      return "signal";
  }
}

}  // namespace tessera
