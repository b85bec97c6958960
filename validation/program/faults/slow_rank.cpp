// Preloaded into a rank by watchdog.py: the main thread of one rank falls behind at the calls by which it reads the clock, which are those
// between its tasks. No speed of a machine decides anything.
//   SLOW_RANK=R       which rank
//   SLOW_FILE=PATH    from when that file exists; its first word says how: "loop" never returns, "slow" makes all take three times as long
#include <dlfcn.h>
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <string_view>

namespace {

using Clock = int (*)(clockid_t, timespec*);

bool chosen() {
  const char *rank = std::getenv("PMI_RANK"), *wanted = std::getenv("SLOW_RANK");
  if (!rank) rank = std::getenv("OMPI_COMM_WORLD_RANK");
  return rank && wanted && std::string_view(rank) == wanted;
}

/// The first letter of the file, 0 where there is none.
char told() {
  static const char* path = std::getenv("SLOW_FILE");
  const int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  char letter = 0;
  if (file >= 0 && read(file, &letter, 1) != 1) letter = 0;
  if (file >= 0) close(file);
  return letter;
}

double seconds_of(const timespec& time) { return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec); }

}  // namespace

/// Outside a namespace, so that a stack shows its name.
extern "C" void loop_for_ever() {
  volatile unsigned turns = 0;
  while (true) turns = turns + 1;
}

extern "C" int clock_gettime(clockid_t which, timespec* time) {
  static const auto next = reinterpret_cast<Clock>(dlsym(RTLD_NEXT, "clock_gettime"));
  static const bool here = chosen();
  const int status = next(which, time);
  if (!here || gettid() != getpid()) return status;
  static double left = 0;
  const char how = told();
  if (how == 'l') loop_for_ever();
  timespec now;
  next(CLOCK_MONOTONIC, &now);
  if (how == 's' && left > 0) {
    const double rest = 2 * (seconds_of(now) - left);
    const timespec pause{static_cast<time_t>(rest), static_cast<long>(1e9 * (rest - static_cast<double>(static_cast<time_t>(rest))))};
    nanosleep(&pause, nullptr);
    next(CLOCK_MONOTONIC, &now);
    next(which, time);
  }
  left = seconds_of(now);
  return status;
}
