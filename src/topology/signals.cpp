#include "topology/signals.hpp"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstring>

#include "base/check.hpp"

namespace tessera {
namespace {

// A handler has no argument to carry state in, so this is one of the few globals.
std::atomic<int> first_signal{0};
std::atomic<int> interrupts{0};
static_assert(std::atomic<int>::is_always_lock_free);

extern "C" void on_stop_signal(int signal) {
  int none = 0;
  first_signal.compare_exchange_strong(none, signal);
  if (signal == SIGINT && interrupts.fetch_add(1) > 0) _exit(128 + SIGINT);
}

}  // namespace

void install_signal_handlers() {
  struct sigaction action = {};
  action.sa_handler = on_stop_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (int signal : {SIGTERM, SIGINT, SIGUSR1})
    if (sigaction(signal, &action, nullptr) != 0)
      fail(ExitCode::internal, "installing the handler of {} failed: {}", signal_name(signal), std::strerror(errno));
}

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
