#include "topology/failure/leave.hpp"

#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <iterator>
#include <string_view>

#include "base/clock.hpp"
#include "deck/environment.hpp"
#include "topology/failure/start.hpp"

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

int launcher_socket() {
  const auto text = environment("PMI_FD");
  int socket = -1;
  if (text && !started_by_srun()) std::from_chars(text->data(), text->data() + text->size(), socket);
  return socket;
}

void tell_launcher(int status) noexcept { tell_launcher(status, launcher_socket()); }

void tell_launcher(int status, int socket) noexcept {
  struct stat state = {};
  if (socket < 0 || fstat(socket, &state) != 0 || !S_ISSOCK(state.st_mode)) return;  // MPI's goodbye has closed it
  // PMI-1, as MPI_Abort says it. One line in one call: another thread may be waiting on the socket in MPI_Init.
  constexpr std::string_view abort = "cmd=abort exitcode=";
  char line[64], *at = std::copy(abort.begin(), abort.end(), line);
  at = std::to_chars(at, std::end(line) - 1, status).ptr;
  *at++ = '\n';
  if (write(socket, line, static_cast<std::size_t>(at - line)) < 0) return;  // the launcher is gone
}

void leave_now(ExitCode code) {
  std::fflush(nullptr);
  drain_standard_error();
  tell_launcher(static_cast<int>(code));
  _exit(static_cast<int>(code));
}

}  // namespace tessera
