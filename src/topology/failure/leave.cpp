#include "topology/failure/leave.hpp"

#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>

#include "base/clock.hpp"

namespace tessera {

void drain_standard_error() {
  constexpr double drain_seconds = 2;
  struct stat status = {};
  int unread = 0;
  if (fstat(STDERR_FILENO, &status) != 0 || !S_ISFIFO(status.st_mode)) return;
  double deadline = now_seconds() + drain_seconds;
  while (ioctl(STDERR_FILENO, FIONREAD, &unread) == 0 && unread > 0 && now_seconds() < deadline) usleep(1000);
  usleep(20000);  // the reader passes it on before it looks at anything else; let it start
}

void leave_now(ExitCode code) {
  std::fflush(nullptr);
  drain_standard_error();
  _exit(static_cast<int>(code));
}

}  // namespace tessera
